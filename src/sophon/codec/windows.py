"""window: the part of a file that the next crop needs, as a file of the same format; one codec per kind of data.

The decoder of a pipeline determines its kind (`Decoder.data`). A kind without a row has no windows: its crop is made
near storage and sent.
"""

from __future__ import annotations

from sophon.codec.audio.window import AudioWindow
from sophon.codec.codec import AheadCodec, Payload
from sophon.codec.volumes.window import VolumeWindow
from sophon.codec.window import jpeg
from sophon.codec.window.codec import JpegWindow
from sophon.errors import OpError, PayloadError
from sophon.pipeline import Key, Kind, Part, Pipeline, Spec, Trace
from sophon.pipeline.op import Decoder
from sophon.pipeline.part import Signal
from sophon.store.fields import AUDIO, PICTURE, VOLUME

WINDOWS: dict[str, AheadCodec] = {PICTURE: JpegWindow(), AUDIO: AudioWindow(), VOLUME: VolumeWindow()}
"""A row for each kind of data that has windows."""


def available() -> bool:
    """Return whether windows can be cut from any kind of file here: picture windows need an extension."""
    return len(WINDOWS) > 1 or jpeg.available()


def can_cut(pipeline: Pipeline) -> bool:
    """Return whether windows can be cut here from files of a pipeline's kind of data, if that has windows at all."""
    window = window_for(pipeline)
    return window is None or window.fits(pipeline.specs[0])


def window_for(pipeline: Pipeline) -> AheadCodec | None:
    """Return the codec that cuts windows for a pipeline, if its kind of data has one."""
    first = pipeline.ops[0]
    return WINDOWS.get(first.data) if isinstance(first, Decoder) else None


class Window(AheadCodec):
    """The part of a file that the next ops need, for any kind of data."""

    @property
    def name(self) -> str:
        """The name in cuts, plans and requests."""
        return "window"

    def fits(self, spec: Spec) -> bool:
        """Return whether values of this spec can be encoded; only files can."""
        return spec.kind is Kind.ENCODED and available()

    def looks_ahead(self, pipeline: Pipeline) -> bool:
        """Return whether this kind of file has windows, and the ops crop before any of them needs the whole."""
        window = window_for(pipeline)
        return window is not None and window.fits(pipeline.specs[0]) and window.looks_ahead(pipeline)

    def encode_ahead(self, data: Payload, pipeline: Pipeline, key: Key, trace: Trace | None = None) -> bytes:
        """Return the window that one pass of a sample needs."""
        window = window_for(pipeline)
        if window is None:
            raise OpError("no windows can be cut from files of this kind.")
        return window.encode_ahead(data, pipeline, key, trace)

    def decode_ahead(self, payload: Payload, pipeline: Pipeline) -> Part | Signal:
        """Return the part that a window holds."""
        window = window_for(pipeline)
        if window is None:
            raise PayloadError("got a window for a kind of file that has no windows")
        return window.decode_ahead(payload, pipeline)

    def cut_down(
        self, data: Payload, pipeline: Pipeline, key: Key, stop: int | None = None, trace: Trace | None = None
    ) -> Part | Signal | None:
        """Decode only the part of a file that ops[:stop] need in one pass."""
        window = window_for(pipeline)
        return None if window is None else window.cut_down(data, pipeline, key, stop, trace)
