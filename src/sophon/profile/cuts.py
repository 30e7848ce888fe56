"""Which cuts are worth a column of the profile."""

from __future__ import annotations

from collections.abc import Iterable

from sophon.codec.cut import RAW, Cut, legal_cuts
from sophon.codec.table import CODECS
from sophon.pipeline import Kind, Pipeline


def cuts_to_profile(
    pipeline: Pipeline,
    codecs: Iterable[str] = tuple(CODECS),
    *,
    max_k: int | None = None,
    allow_lossy: bool = False,
) -> tuple[Cut, ...]:
    """Return the cuts that a plan may want, RAW first.

    Left out are codecs behind an op that gives what it was given (a flip: same shape, same type): they would cost what
    they cost one op earlier, and save nothing more.

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
        if cut.k <= most and (cut.codec == "raw" or not _keeps_spec(pipeline, cut.k))
    ]
    return (RAW, *(cut for cut in wanted if cut != RAW))


def _keeps_spec(pipeline: Pipeline, k: int) -> bool:
    if k == 0:
        return False
    before, after = pipeline.specs[k - 1], pipeline.specs[k]
    # A shape that is not known beforehand may change in every op.
    return before == after and after.kind is not Kind.OBJECT and None not in after.shape
