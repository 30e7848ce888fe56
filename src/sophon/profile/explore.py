"""Decides which samples are cut, and how, while a profile is being made.

Codecs cannot be timed from outside, so a small share of the samples is actually sent in each of them. This is work that
has to be done anyway, only in a different place, and gives the same bits.

`explore` is for an epoch whose order is unknown, with a plan made at its end: the other samples are sent raw.
`explore_first` is for an epoch that is planned while it runs: the first samples try the most promising cuts a few
times, and until there is a plan the others are sent as windows where possible. A window is never larger than the file
and takes a storage node a fraction of a millisecond, so it is usually the right choice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sophon.codec.cut import RAW, Cut, looks_ahead
from sophon.codec.table import codec_named
from sophon.pipeline import Pipeline
from sophon.pipeline.spec import ENCODED
from sophon.profile.columns import suits_codecs, typical_bytes

DEFAULT_SHARE = 0.05
_ENOUGH = 12  # samples per cut: with single values 20 % off, their mean is then 6 % off
_LEAST = 3  # samples per cut, or fewer cuts are tried: needed to know how good a rule is
_AT_MOST = 0.1  # of a small data set, if that is fewer samples
_FIRST_RAW = 8  # samples sent raw before the first plan: they show the cost of ops on the trainer
_FIRST_BEST = 8  # samples before the first plan for each of the most promising cuts
_FIRST_AT_MOST = 0.3  # of the samples; with fewer, a first plan would rest on too little
_ROOM = 20  # samples to try per cut before less promising cuts are tried, since those send a lot
_BEST = 2  # the most promising cuts are always tried often enough: they are smaller than files


def cuts_to_try(pipeline: Pipeline, cuts: Sequence[Cut]) -> list[Cut]:
    """Return the cuts whose costs do not follow from those of the ops, and some that show how fast storage runs ops.

    The most promising come first: windows, then codecs, beginning with those that have least to encode and are designed
    for it, then uncompressed values, and finally codecs for whole files, which are usually already compressed.
    """
    last = max(cut.k for cut in cuts)
    tries = [
        cut for cut in cuts if cut != RAW and (cut.codec != "raw" or cut.k == last or suits_codecs(pipeline, cut.k))
    ]

    def promise(cut: Cut) -> tuple[int, int, bool, int]:
        place = 0 if looks_ahead(cut) else 3 if cut.k == 0 else 2 if cut.codec == "raw" else 1
        # Of two stages of views with pictures of the same size, the later one has blurred some of them.
        return place, typical_bytes(pipeline.specs[cut.k]), codec_named(cut.codec).fits(ENCODED), -cut.k

    return sorted(tries, key=promise)


def explore(
    pipeline: Pipeline,
    cuts: Sequence[Cut],
    samples: int,
    share: float,
    seed: int,
    among: NDArray[Any] | None = None,
    ranks: int = 1,
) -> NDArray[np.uint8]:
    """Return a column of `cuts` per sample: RAW for most, each of the others for some.

    Args:
        pipeline: The pipeline to divide.
        cuts: The columns.
        samples: Number of samples.
        share: Share of the samples to cut.
        seed: Determines which samples are cut.
        among: The samples that will pass at this rank; by default all.
        ranks: How many ranks share these samples in an unknown way; each has to learn from its part.
    """
    chosen = np.full(samples, cuts.index(RAW), np.uint8)
    row = np.arange(samples) if among is None else among
    tries = cuts_to_try(pipeline, cuts)
    mine = len(row) // ranks
    if share <= 0 or not tries or not mine:
        return chosen
    at_most = int(_AT_MOST * mine)
    count = max(int(share * mine), min(_ENOUGH * len(tries), at_most))
    tries = tries[: max(count // _LEAST, 1)]
    times = np.full(len(tries), count // len(tries))
    times[: count % len(tries)] += 1
    times[:_BEST] = np.maximum(times[:_BEST], min(_ENOUGH, at_most))
    columns = np.repeat(np.array([cuts.index(cut) for cut in tries], np.uint8), ranks * times)
    some = np.random.default_rng(seed).permutation(row)[: len(columns)]
    chosen[some] = columns[: len(some)]
    return chosen


@dataclass(frozen=True)
class First:
    """The cuts with which to start an epoch about which nothing is known.

    Args:
        columns: A column of the cuts for every sample.
        tried: The samples whose cut is tried, regardless of a plan.
        head: How many samples pass before the first plan.
    """

    columns: NDArray[np.uint8]
    tried: NDArray[Any]
    head: int


def explore_first(
    pipeline: Pipeline, cuts: Sequence[Cut], samples: int, share: float, seed: int, row: NDArray[Any]
) -> First | None:
    """Return the cuts with which to start an epoch that is planned while it runs; None if it has too few samples.

    Args:
        pipeline: The pipeline to divide.
        cuts: The columns.
        samples: Number of samples.
        share: Share of the samples that are tried, including those at the start.
        seed: Determines which samples are tried.
        row: The samples in the order in which they will pass here.
    """
    tries = cuts_to_try(pipeline, cuts)
    small = _smallest(pipeline, tries)
    times = [_FIRST_BEST if number < _BEST else _LEAST for number in range(len(small))]
    head = [RAW] * _FIRST_RAW + [cut for cut, count in zip(small, times, strict=True) for _ in range(count)]
    if share <= 0 or not tries or len(head) > _FIRST_AT_MOST * len(row):
        return None
    rng = np.random.default_rng(seed)
    columns = np.full(samples, cuts.index(tries[0] if looks_ahead(tries[0]) else RAW), np.uint8)
    first, others = row[: len(head)], row[len(head) :]
    columns[first] = rng.permutation(np.array([cuts.index(cut) for cut in head], np.uint8))
    later = rng.permutation(others)[: max(int(share * len(row)) - len(head), 0)]
    turns = [RAW, *small]
    if len(later) >= _ROOM * len(tries):
        turns += [cut for cut in tries if cut not in small]
    columns[later] = np.resize(np.array([cuts.index(cut) for cut in turns], np.uint8), len(later))
    return First(columns, np.concatenate([first, later]), len(head))


def _smallest(pipeline: Pipeline, tries: Sequence[Cut]) -> list[Cut]:
    """Return the cuts that a first plan could use: windows, and codecs where they have least to encode.

    Other cuts send a lot, and the cost of their ops is known from samples that are sent raw.
    """
    encoding = [cut for cut in tries if cut.k > 0 and cut.codec != "raw" and not looks_ahead(cut)]
    least = min((typical_bytes(pipeline.specs[cut.k]) for cut in encoding), default=0)
    small = {cut for cut in encoding if typical_bytes(pipeline.specs[cut.k]) <= least}
    return [cut for cut in tries if looks_ahead(cut) or cut in small] or list(tries)
