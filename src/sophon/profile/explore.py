"""Which samples are cut, and how, while a profile is made.

Codecs cannot be timed from outside, so a small share of the samples is really sent in each of them: work that has to be
done anyway, in another way, with the same bits. The others are sent as they are.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from sophon.codec.cut import RAW, Cut
from sophon.pipeline import Pipeline
from sophon.profile.cuts import suits_codecs

DEFAULT_SHARE = 0.05
_ENOUGH = 12  # samples per cut: the error of a mean whose parts are 20 % off is then 6 %
_AT_MOST = 0.1  # of a small data set, which has fewer samples than that


def cuts_to_try(pipeline: Pipeline, cuts: Sequence[Cut]) -> list[Cut]:
    """Return the cuts whose costs are not known from the ops alone, and some that tell how fast storage runs ops."""
    last = max(cut.k for cut in cuts)
    return [
        cut for cut in cuts if cut != RAW and (cut.codec != "raw" or cut.k == last or suits_codecs(pipeline, cut.k))
    ]


def explore(pipeline: Pipeline, cuts: Sequence[Cut], samples: int, share: float, seed: int) -> NDArray[np.uint8]:
    """Return a column of `cuts` per sample: RAW for most, each of the others for some.

    Args:
        pipeline: What is divided.
        cuts: The columns.
        samples: How many there are.
        share: Of the samples that are cut.
        seed: Which ones.
    """
    chosen = np.full(samples, cuts.index(RAW), np.uint8)
    tries = cuts_to_try(pipeline, cuts)
    if share <= 0 or not tries:
        return chosen
    count = int(max(share * samples, min(_ENOUGH * len(tries), _AT_MOST * samples)))
    columns = np.array([cuts.index(cut) for cut in tries], np.uint8)
    some = np.random.default_rng(seed).permutation(samples)[:count]
    chosen[some] = columns[np.arange(len(some)) % len(columns)]
    return chosen
