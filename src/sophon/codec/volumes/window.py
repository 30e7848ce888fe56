"""Volume windows: the chunks or voxels of image and label that the next crop needs.

Byte layout: a bundle (`bundle`) of a patch of the image (`pipeline.ops.volumes.patch`), a patch of the label if there
is one, and the unchanged foreground index; for an image without a label, just its patch.
"""

from __future__ import annotations

from sophon.bundle import pack, unpack
from sophon.codec.codec import AheadCodec, Payload
from sophon.codec.window.refusal import WholeNeeded
from sophon.errors import OpError, PayloadError
from sophon.pipeline import Box, Key, Kind, Pipeline, Spec, Trace, can_crop_early
from sophon.pipeline.ops.volumes.decode import DecodeVolume, Opened
from sophon.pipeline.ops.volumes.patch import cut_patch
from sophon.pipeline.part import Signal, count_of
from sophon.pipeline.region import needed_region


class VolumeWindow(AheadCodec):
    """The part of a volume's image and label files that the next ops need."""

    @property
    def name(self) -> str:
        """The name in cuts, plans and requests."""
        return "window"

    def fits(self, spec: Spec) -> bool:
        """Return whether values of this spec can be encoded; only files can."""
        return spec.kind is Kind.ENCODED

    def looks_ahead(self, pipeline: Pipeline) -> bool:
        """Return whether the ops crop before any of them needs the whole volume."""
        return can_crop_early(pipeline)

    def encode_ahead(self, data: Payload, pipeline: Pipeline, key: Key, trace: Trace | None = None) -> bytes:
        """Return the window that one pass of a sample needs."""
        decode = _decoder(pipeline)
        opened = decode.open(data)
        if trace is not None:
            trace.size = opened.image.header.sizes
        box = _box(opened, pipeline, key)
        if box is None:
            raise WholeNeeded("this pass needs all of the volume.")
        parts: list[bytes | memoryview] = [cut_patch(opened.image, box)]
        if opened.label is not None:
            parts.append(cut_patch(opened.label, box))
        if opened.boxes is not None:
            parts.append(unpack(data, 1 + len(decode.fields))[-1])
        return pack(parts)

    def decode_ahead(self, payload: Payload, pipeline: Pipeline) -> Signal:
        """Return the part of the volume that a window holds."""
        try:
            opened, box = _decoder(pipeline).open_patches(payload)
            return opened.read(box)
        except OpError as error:
            raise PayloadError(f"the window is damaged: {error}") from error

    def cut_down(
        self, data: Payload, pipeline: Pipeline, key: Key, stop: int | None = None, trace: Trace | None = None
    ) -> Signal | None:
        """Decode only the part of a volume that ops[:stop] need in one pass."""
        if not can_crop_early(pipeline, stop):
            return None
        try:
            opened = _decoder(pipeline).open(data)
            if trace is not None:
                trace.windowable = True
            box = _box(opened, pipeline, key, stop)
            return None if box is None else opened.read(box)
        except OpError:
            return None  # the decoder hits the same problem and reports where


def _decoder(pipeline: Pipeline) -> DecodeVolume:
    decode = pipeline.ops[0]
    if not isinstance(decode, DecodeVolume):
        raise OpError("the pipeline does not begin with DecodeVolume.")
    return decode


def _box(opened: Opened, pipeline: Pipeline, key: Key, stop: int | None = None) -> Box | None:
    """Return the box that one pass needs; None for the whole volume."""
    box = needed_region(pipeline, key, opened.spec(), stop)
    return None if box is None or count_of(box) == 0 else box
