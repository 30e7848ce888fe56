"""From a profile that was measured in peace to what the rig really costs.

On the rig a core has more to do than ops: TCP, Flight and the interpreter take part of it, caches are cold where
samples come one at a time, and under a quota a process is stopped and started. Two corrections, both measured on the rig:

- Replies carry the CPU seconds that the server spent. A few samples are asked for at the cuts that matter, and each
  column of the profile is scaled by what they took there over what the profile says; the trainer's seconds likewise.
- Sending and receiving at the full rate of the link takes a share of each core, which is measured in an epoch of raw
  files and taken off the cores that a plan may count on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from sophon.bench.rig.processes import Trainer
from sophon.codec import RAW, Cut
from sophon.profile.table import FloatTable, Profile

_CUTS = ("0:window", "2:raw", "2:webp")  # one of each kind; the others are scaled as the one most like them
_SAMPLES = 32


def calibrated(profile: Profile, trainer: Trainer, url: str, *, seed: int, epoch: int, storage: bool) -> Profile:
    """Return the profile scaled to what a server and a trainer take on the rig.

    Args:
        profile: Measured in peace.
        trainer: Asks and finishes.
        url: Of the data set.
        seed: Of the boxes.
        epoch: Likewise.
        storage: Whether the server has any core for ops.
    """
    samples = (
        [i * len(profile) // _SAMPLES for i in range(_SAMPLES)] if len(profile) > _SAMPLES else [*range(len(profile))]
    )
    asked = [str(RAW)] + [text for text in _CUTS if storage and Cut.parse(text) in profile.cuts]
    spent = trainer.do("spend", url=url, cuts=asked, samples=samples, seed=seed, epoch=epoch)
    ratios = {Cut.parse(text): _ratios(profile, Cut.parse(text), samples, spent[text]) for text in asked}
    tables = {}
    for name in ("storage_s", "trainer_s"):
        table = getattr(profile, name).copy()
        for column, cut in enumerate(profile.cuts):
            table[:, column] *= ratios[_nearest(cut, ratios)][name]
        tables[name] = table
    provenance = {**profile.provenance, "calibrated": {str(cut): row for cut, row in ratios.items()}}
    return replace(profile, **tables, provenance=provenance)


def _ratios(profile: Profile, cut: Cut, samples: list[int], spent: list[list[Any]]) -> dict[str, float]:
    rows = [(sample, *row) for sample, row in zip(samples, spent, strict=True) if row is not None]
    found = {}
    for name, position in (("storage_s", 1), ("trainer_s", 2)):
        table: FloatTable = getattr(profile, name)
        said = float(sum(table[row[0], profile.column(cut)] for row in rows))
        took = sum(row[position] for row in rows)
        found[name] = took / said if said > 0 and np.isfinite(said) and took > 0 else 1.0
    return found


def _nearest(cut: Cut, known: Mapping[Cut, object]) -> Cut:
    for like in known:
        if like.codec == cut.codec and (like.k > 0) == (cut.k > 0):
            return like
    return next((like for like in known if like.k > 0 and cut.k > 0), RAW)
