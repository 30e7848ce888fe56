"""Which cuts are worth a column of the profile."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from math import prod

from sophon.codec.cut import RAW, Cut, legal_cuts
from sophon.codec.table import CODECS
from sophon.errors import ConfigError
from sophon.pipeline import Kind, Op, Pipeline, Spec

_TYPICAL = (375, 500, 3)  # height, width and channels of a photo of ImageNet


def cuts_to_profile(
    pipeline: Pipeline,
    codecs: Iterable[str] = tuple(CODECS),
    *,
    max_k: int | None = None,
    allow_lossy: bool = False,
) -> tuple[Cut, ...]:
    """Return the cuts that a plan may want, RAW first.

    Left out are codecs where another place is plainly better: behind an op that gives what it was given (a flip: same
    shape, same type), where they would cost what they cost one op earlier, and before an op that makes pictures
    smaller, where they would have more to do.

    Args:
        pipeline: What is to be divided.
        codecs: Which codecs there are on both sides.
        max_k: How many ops can run near storage; by default all that are portable.
        allow_lossy: Also codecs that change the value.
    """
    most = pipeline.max_cut if max_k is None else min(max_k, pipeline.max_cut)
    wanted = [
        cut
        for cut in legal_cuts(pipeline, codecs, allow_lossy=allow_lossy)
        if cut.k <= most and (cut.codec == "raw" or cut.k == 0 or suits_codecs(pipeline, cut.k))
    ]
    return (RAW, *(cut for cut in wanted if cut != RAW))


def suits_codecs(pipeline: Pipeline, k: int) -> bool:
    """Return whether a codec may be worth its while behind the first k ops."""
    before, after = pipeline.specs[k - 1], pipeline.specs[k]
    # A shape that is not known beforehand may change in every op.
    if before == after and after.kind is not Kind.OBJECT and None not in after.shape:
        return False
    return k == len(pipeline) or not _shrinks(pipeline.ops[k], after)


def _shrinks(op: Op, spec: Spec) -> bool:
    """Return whether an op makes a typical picture smaller."""
    if spec.kind is not Kind.IMAGE:
        return False
    height, width, channels = (known or usual for known, usual in zip(spec.shape, _TYPICAL, strict=True))
    try:
        made = op.output(replace(spec, shape=(height, width, channels)))
    except ConfigError:
        return False
    sides = [side for side in made.shape if side is not None]
    return made.kind is Kind.IMAGE and len(sides) == len(made.shape) and prod(sides) < height * width * channels
