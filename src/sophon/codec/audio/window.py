"""Sound windows: the part of a WAV or FLAC file that the next crop needs, as a file of the same format.

For a WAV file, the window is a range of its bytes with a new header. For a FLAC file, it is the frames that the crop
touches, renumbered from the start and with new checksums (`_flac`).
"""

from __future__ import annotations

import struct
from bisect import bisect_left, bisect_right
from itertools import accumulate
from typing import TYPE_CHECKING

from sophon.codec.codec import AheadCodec, Payload
from sophon.codec.window.refusal import NotWindowable, WholeNeeded
from sophon.errors import OpError, PayloadError
from sophon.pipeline import Key, Kind, Pipeline, Spec, Trace, can_crop_early
from sophon.pipeline.ops.audio import flac, wav
from sophon.pipeline.ops.audio.decode import DecodeAudio, spec_of_file
from sophon.pipeline.ops.audio.flac import Flac
from sophon.pipeline.ops.audio.wav import Wav
from sophon.pipeline.part import Signal
from sophon.pipeline.region import needed_region

if TYPE_CHECKING:
    from sophon.codec.audio import _flac as kernel
else:
    try:
        from sophon.codec.audio import _flac as kernel
    except ImportError:  # built without a compiler
        kernel = None

_PLACE = struct.Struct("<QQ")  # first sample of the window, samples in the whole sound
_WORTHWHILE_SHARE = 0.7  # for a FLAC file: walking its frames takes a fifth of the time of decoding them


class AudioWindow(AheadCodec):
    """A WAV or FLAC file with only the samples or frames that the next ops need.

    Byte layout: two uint64, little-endian: the sample at which the window begins, and the number of samples in the
    whole sound; then a file.
    """

    @property
    def name(self) -> str:
        """The name in cuts, plans and requests."""
        return "window"

    def fits(self, spec: Spec) -> bool:
        """Return whether values of this spec can be encoded; only files can."""
        return spec.kind is Kind.ENCODED

    def looks_ahead(self, pipeline: Pipeline) -> bool:
        """Return whether the ops crop before any of them needs the whole sound."""
        return can_crop_early(pipeline)

    def encode_ahead(self, data: Payload, pipeline: Pipeline, key: Key, trace: Trace | None = None) -> bytes:
        """Return the window that one pass of a sample needs."""
        decode = _decoder(pipeline)
        header = decode.header(data)
        if trace is not None:
            trace.size = (header.samples,)
        interval = interval_of(pipeline, key, header)
        if interval is None:
            raise WholeNeeded("this pass needs all of the sound.")
        try:
            start, file = cut(data, header, *interval)
        except NotWindowable as reason:  # the whole file is sent instead
            raise OpError(f"{reason}.") from reason
        return _PLACE.pack(start, header.samples) + file

    def decode_ahead(self, payload: Payload, pipeline: Pipeline) -> Signal:
        """Return the part of the sound that a window holds."""
        view, decode = memoryview(payload), _decoder(pipeline)
        if len(view) < _PLACE.size:
            raise PayloadError(f"expected a sound window, got {len(view)} bytes")
        start, whole = _PLACE.unpack_from(view)
        file = view[_PLACE.size :]
        try:
            header = decode.header(file)
            if start + header.samples > whole or whole * header.channels > decode.max_samples:
                raise PayloadError(f"the window has {header.samples:,} samples at {start:,} of {whole:,}")
            return _placed(decode.decoded(file, header), start, whole)
        except OpError as error:
            raise PayloadError(f"the window is damaged: {error}") from error

    def cut_down(
        self, data: Payload, pipeline: Pipeline, key: Key, stop: int | None = None, trace: Trace | None = None
    ) -> Signal | None:
        """Decode only the part of a file that ops[:stop] need in one pass."""
        if not can_crop_early(pipeline, stop):
            return None
        decode = _decoder(pipeline)
        try:
            if trace is not None:
                trace.windowable = False
            header = decode.header(data)
            if trace is not None:
                trace.windowable = isinstance(header, Wav) or kernel is not None
            interval = interval_of(pipeline, key, header, stop)
            if interval is None:
                return None
            start, count = interval
            if isinstance(header, Wav):
                array = wav.decoded(data, header, start, count)
                return Signal(array, Kind.AUDIO.value, (float(header.rate),), (start,), (header.samples,))
            if count > _WORTHWHILE_SHARE * header.samples:
                return None
            begun, file = cut(data, header, start, count)
            return _placed(decode.decoded(file, flac.parse(file)), begun, header.samples)
        except (NotWindowable, OpError):
            return None  # decoding the whole file hits the same problem and reports it better


def interval_of(pipeline: Pipeline, key: Key, header: Wav | Flac, stop: int | None = None) -> tuple[int, int] | None:
    """Return the first sample that ops[:stop] need in one pass, and their number; None if they need all samples."""
    box = needed_region(pipeline, key, spec_of_file(header), stop)
    if box is None:
        return None
    start, count = box
    is_inside = 0 <= start < start + count <= header.samples
    return (start, count) if is_inside else None  # for other intervals, the op itself reports what is wrong


def cut(data: Payload, header: Wav | Flac, start: int, count: int) -> tuple[int, bytes]:
    """Return the sample at which a window begins, and the window as a file.

    Raises:
        NotWindowable: No window can be cut.
    """
    if isinstance(header, Wav):
        first = header.start + start * header.step
        return start, wav.written(header, memoryview(data)[first : first + count * header.step])
    if kernel is None:
        raise NotWindowable("the FLAC extension was not built")
    starts, blocks = kernel.walk(data, header.start, header.channels)
    ends = list(accumulate(blocks))
    if ends[-1] != header.samples:
        raise NotWindowable(f"the file has {ends[-1]:,} samples but declares {header.samples:,}")
    first, last = bisect_right(ends, start), bisect_left(ends, start + count)
    begun = ends[first] - blocks[first]
    frames = kernel.cut(data, starts, first, last + 1)
    return begun, _stream(header, ends[last] - begun) + frames


def _stream(header: Flac, samples: int) -> bytes:
    """Return the start of a FLAC file made of some frames; frame sizes and the overall checksum are left unknown."""
    packed = int.from_bytes(header.info[10:18], "big") >> 36 << 36 | samples
    return b"fLaC\x80\x00\x00\x22" + header.info[:4] + bytes(6) + packed.to_bytes(8, "big") + bytes(16)


def _placed(sound: Signal, start: int, whole: int) -> Signal:
    return Signal(sound.array, sound.kind, sound.scale, (start,), (whole,))


def _decoder(pipeline: Pipeline) -> DecodeAudio:
    decode = pipeline.ops[0]
    if not isinstance(decode, DecodeAudio):
        raise PayloadError("got a sound window for a pipeline that does not decode sound")
    return decode
