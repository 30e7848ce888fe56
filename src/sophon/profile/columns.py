"""Chooses the cuts that get a column in the profile."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from math import prod

from sophon.codec.cut import RAW, WINDOW, Cut, legal_cuts
from sophon.codec.route import Route, can_follow
from sophon.codec.table import CODECS
from sophon.errors import ConfigError
from sophon.pipeline import Kind, Op, Pipeline, Spec, first_crop
from sophon.pipeline.ops import Views

_TYPICAL = {
    Kind.IMAGE: (375, 500, 3),  # a photo of ImageNet
    Kind.AUDIO: (1, 220_500),  # five seconds
    Kind.VOLUME: (1, 128, 256, 256),
}
"""Shapes assumed for values of unknown size, by kind."""
_CROPPED = tuple(_TYPICAL)


def cuts_to_profile(
    pipeline: Pipeline,
    codecs: Iterable[str] = tuple(CODECS),
    *,
    max_k: int | None = None,
    allow_lossy: bool = False,
) -> tuple[Cut, ...]:
    """Return the cuts that a plan may use, RAW first.

    Codecs are left out where another position is clearly better: after an op that changes neither shape nor type (a
    flip), where they cost the same as one op earlier, and before the crop or an op that makes pictures smaller, where
    they have more to encode.

    Args:
        pipeline: The pipeline to divide.
        codecs: The codecs available on both sides.
        max_k: How many ops can run near storage; by default all that are portable.
        allow_lossy: Whether to include codecs that change the value.
    """
    most = pipeline.max_cut if max_k is None else min(max_k, pipeline.max_cut)
    wanted = [
        cut
        for cut in legal_cuts(pipeline, codecs, allow_lossy=allow_lossy)
        if cut.k <= most and (cut.codec == "raw" or cut.k == 0 or suits_codecs(pipeline, cut.k))
    ]
    return (RAW, *(cut for cut in wanted if cut != RAW))


def routes_to_profile(pipeline: Pipeline, cuts: Iterable[Cut]) -> tuple[Route, ...]:
    """Return the relay routes worth profiling, built from cuts that have their own column.

    A relay does work for which neither the node nor the trainer has cores. So it receives a file or a window, which
    costs the node almost nothing, and sends on the result after the crop, if the pipeline crops.

    Args:
        pipeline: The pipeline to divide.
        cuts: The cuts that have a column.
    """
    table = tuple(cuts)
    crop = first_crop(pipeline.ops)
    after = [cut for cut in table if cut.k > (0 if crop is None else crop)]
    firsts = [cut for cut in table if cut in (RAW, WINDOW)]
    return tuple(Route((first, cut)) for first in firsts for cut in after if can_follow(pipeline, first, cut))


def resize_k(pipeline: Pipeline) -> int | None:
    """Return the number of ops after which all pictures have one size, where the policy `resize` cuts."""
    for k, spec in enumerate(pipeline.specs[: pipeline.max_cut + 1]):
        pictures = spec.views if spec.kind is Kind.VIEWS else (spec,)
        if spec.is_sized and all(picture.kind in _CROPPED for picture in pictures):
            return k
    return None


def suits_codecs(pipeline: Pipeline, k: int) -> bool:
    """Return whether a codec may pay off after the first k ops."""
    crop = first_crop(pipeline.ops)
    if crop is not None and k <= crop:
        return False  # it would encode pixels that are not needed
    before, after = pipeline.specs[k - 1], pipeline.specs[k]
    # An unknown shape may change in every op; a stage of views consists of several ops, possibly with a blur, and
    # blurred photos take a third fewer bytes.
    is_alike = before == after and not isinstance(pipeline.ops[k - 1], Views)
    if is_alike and after.kind is not Kind.OBJECT and after.is_sized:
        return False
    return k == len(pipeline) or not _shrinks(pipeline.ops[k], after)


def typical_bytes(spec: Spec) -> int:
    """Return the size of a value in bytes, with typical sides in place of unknown ones; 0 if a kind has none."""
    if spec.kind is Kind.VIEWS:
        return sum(map(typical_bytes, spec.views))
    if spec.kind in _TYPICAL:
        spec = replace(spec, shape=_typical(spec))
    return spec.size_bytes


def _typical(spec: Spec) -> tuple[int, ...]:
    return tuple(known or usual for known, usual in zip(spec.shape, _TYPICAL[spec.kind], strict=True))


def _shrinks(op: Op, spec: Spec) -> bool:
    """Return whether an op makes a typical value of its kind, such as a picture, smaller."""
    if spec.kind not in _TYPICAL:
        return False
    shape = _typical(spec)
    try:
        made = op.output(replace(spec, shape=shape))
    except ConfigError:
        return False
    return made.kind is spec.kind and made.is_sized and prod(side or 0 for side in made.shape) < prod(shape)
