"""Cuts: where a pipeline is divided between storage node and trainer, and in which codec the value crosses the link."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from sophon.bundle import unpack
from sophon.codec import views
from sophon.codec.boxes import boxes_among, with_sight
from sophon.codec.codec import AheadCodec, Codec, Payload
from sophon.codec.table import CODECS, codec_named
from sophon.codec.targets import mask_box, packed
from sophon.codec.window.windowed import Windowed
from sophon.codec.windows import window_for
from sophon.errors import ConfigError, OpError
from sophon.pipeline import Key, Pipeline, Tensor, Trace, Value
from sophon.pipeline.ops.decode import Decode, kept_metadata
from sophon.pipeline.spec import ViewSet


@dataclass(frozen=True, order=True, slots=True)
class Cut:
    """ops[:k] run near storage, and the result crosses the link encoded by a codec."""

    k: int
    codec: str = "raw"

    def __str__(self) -> str:
        return f"{self.k}:{self.codec}"

    @classmethod
    def parse(cls, text: str) -> Cut:
        """Parse a cut such as ``2:webp``."""
        k, _, codec = text.partition(":")
        if not k.isdecimal() or not codec:
            raise ConfigError(f"expected a cut as NUMBER:CODEC, for example 2:webp, got {text!r}")
        return cls(int(k), codec_named(codec).name)


RAW = Cut(0)
WINDOW = Cut(0, "window")


def is_exact(cut: Cut) -> bool:
    """Return whether a cut preserves every bit of the tensors; False for an unknown codec."""
    try:
        return codec_named(cut.codec).exact
    except ConfigError:
        return False


def looks_ahead(cut: Cut) -> bool:
    """Return whether the codec of a cut sends a part of the file, so that its decoder replaces the pipeline's."""
    return isinstance(codec_named(cut.codec), AheadCodec)


def legal_cuts(pipeline: Pipeline, codecs: Iterable[str] = tuple(CODECS), *, allow_lossy: bool = False) -> list[Cut]:
    """Return every cut at which a pipeline can be divided.

    Args:
        pipeline: The pipeline to divide.
        codecs: Names of the codecs to consider.
        allow_lossy: Also consider codecs that change the value.
    """
    table = [codec_named(name) for name in codecs]
    return [
        Cut(k, codec.name)
        for k in range(pipeline.max_cut + 1)
        for codec in table
        if (codec.exact or allow_lossy) and _fits(pipeline, k, codec)
    ]


def _fits(pipeline: Pipeline, k: int, codec: Codec) -> bool:
    if isinstance(codec, AheadCodec) and (k > 0 or not codec.looks_ahead(pipeline)):
        return False
    return views.fits(codec, pipeline.specs[k])


def check_cut(pipeline: Pipeline, cut: Cut) -> Codec:
    """Return the codec of a cut, or raise if the pipeline cannot be divided there."""
    codec = codec_named(cut.codec)
    if cut in pipeline.notes:  # already checked
        return codec
    if not 0 <= cut.k <= pipeline.max_cut or not _fits(pipeline, cut.k, codec):
        legal = ", ".join(map(str, legal_cuts(pipeline, allow_lossy=True)))
        raise ConfigError(f"the pipeline cannot be cut at {cut}; choose from {legal}")
    pipeline.notes[cut] = True
    return codec


def make_payload(pipeline: Pipeline, data: bytes, key: Key, cut: Cut, trace: Trace | None = None) -> bytes:
    """Do the storage node's part: run ops[:k] on the bytes of a file, or a window of it, and encode the result.

    For a pipeline with fields, both the bytes and the payload are bundles of these fields.
    """
    codec = check_cut(pipeline, cut)
    if pipeline.is_joint:
        return _make_joint(pipeline, codec, data, key, cut, trace or Trace(len(pipeline)))
    return _make_single(pipeline, codec, data, key, cut, trace)


def _make_joint(pipeline: Pipeline, codec: Codec, data: bytes, key: Key, cut: Cut, trace: Trace) -> bytes:
    first, *others = unpack(data, 1 + len(pipeline.fields))
    key = with_sight(pipeline, key, first, (0, 0), boxes_among(pipeline.fields, others))
    made = _make_single(pipeline, codec, bytes(first), key, cut, trace)
    height, width = trace.size  # fields that belong together always belong to a picture
    box, size = None, (height, width)
    if key.sight is not None:  # the trainer repeats the draws from the size, even if it cannot read the header
        size = key.sight.height, key.sight.width
    if 0 not in size:
        box = mask_box(pipeline, key, size, None if isinstance(codec, AheadCodec) else cut.k)
    payload = packed(pipeline, others, made, size, box)
    trace.coded()
    return payload


def _make_single(
    pipeline: Pipeline, codec: Codec, data: bytes, key: Key, cut: Cut, trace: Trace | None = None
) -> bytes:
    if isinstance(codec, AheadCodec):
        payload = bytes(data) if isinstance(data, Windowed) else codec.encode_ahead(data, pipeline, key, trace)
    else:
        run = _run_window if isinstance(data, Windowed) else _run_file
        value = run(pipeline, data, key, cut.k, None, trace)
        if isinstance(pipeline.ops[0], Decode) and pipeline.ops[0].metadata and _has_metadata(value):
            raise OpError("its EXIF orientation or colour profile, which a later step may use, would be lost.")
        payload = views.encode(codec, value)
    if trace is not None:
        trace.coded()
    return payload


def _has_metadata(value: Value) -> bool:
    parts = value.values if isinstance(value, ViewSet) else (value,)
    return any(kept_metadata(part) is not None for part in parts)


def finish_payload(
    pipeline: Pipeline,
    payload: Payload,
    key: Key,
    cut: Cut,
    stop: int | None = None,
    out: Tensor | None = None,
    trace: Trace | None = None,
) -> Value:
    """Do the trainer's part: decode a payload and run ops[k:stop], writing into `out` where that saves a copy.

    Every op that runs is recorded in the trace. For a pipeline with fields this takes the payload of the picture
    (`targets.taken_apart`).
    """
    codec = check_cut(pipeline, cut)
    if isinstance(codec, AheadCodec):
        value: Value = codec.decode_ahead(payload, pipeline)
        start = 1
    else:
        value = views.decode(codec, payload, pipeline.specs[cut.k])
        start = cut.k
    if trace is not None:
        trace.coded()
        if start == 1:
            trace.decoded(value)
    if start == 0:
        return _run_file(pipeline, value, key, stop, out, trace)
    return pipeline.run(value, key, start, stop, out, trace)


def _run_window(
    pipeline: Pipeline,
    payload: bytes,
    key: Key,
    stop: int | None = None,
    out: Tensor | None = None,
    trace: Trace | None = None,
) -> Value:
    """Run ops[:stop] on a window of a file."""
    window = codec_named("window")
    assert isinstance(window, AheadCodec)
    part = window.decode_ahead(payload, pipeline)
    if trace is not None:
        trace.passed(0, 1, part)
    return pipeline.run(part, key, 1, stop, out, trace)


def _run_file(
    pipeline: Pipeline,
    data: bytes,
    key: Key,
    stop: int | None = None,
    out: Tensor | None = None,
    trace: Trace | None = None,
) -> Value:
    """Run ops[:stop] on a file; where that pays off, only the part that the next crop needs is decoded."""
    window = window_for(pipeline)
    part = None if window is None else window.cut_down(data, pipeline, key, stop, trace)
    if part is None:
        return pipeline.run(data, key, 0, stop, out, trace)
    if trace is not None:
        trace.passed(0, 1, part)
    return pipeline.run(part, key, 1, stop, out, trace)
