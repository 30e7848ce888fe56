"""Adapts a profile that was measured on an idle machine to the costs on the rig.

On the rig a core does more than run ops: TCP, Flight and the interpreter take part of its time, caches are cold when
samples come one at a time, and a quota stops and restarts processes. So a few samples are fetched on the rig at cuts of
each kind. With r the CPU seconds that replies report (or that finishing took), P those of the whole process and b the
bytes, the columns of the profile become ::

    storage_s = ratio(kind) · measured + handling            ratio: Σ r / Σ measured
    trainer_s = ratio(kind) · measured + receiving · bytes   sending, receiving: (P − Σ r) / Σ b of files
                                                             handling: the rest of P − Σ r, per sample

Sending is not a column: it is the storage CPU time per byte, and is part of the resources.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from sophon.bench.rig.processes import Server, Trainer
from sophon.codec import RAW, Cut
from sophon.profile.table import FloatTable, Profile

CUTS = ("0:window", "2:raw", "2:webp")  # one cut of each kind; other cuts are scaled like the most similar one
_SAMPLES = 40


@dataclass(frozen=True)
class Cost:
    """The cost of fetching some samples at one cut.

    Args:
        cut: The cut.
        samples: The samples that actually arrived at that cut.
        payload_bytes: Bytes of their payloads.
        storage_s: CPU seconds that their replies report.
        trainer_s: CPU seconds that finishing them took.
        server_s: CPU seconds of the whole server process.
        client_s: CPU seconds of the whole trainer process.
    """

    cut: Cut
    samples: list[int]
    payload_bytes: int
    storage_s: float
    trainer_s: float
    server_s: float
    client_s: float


def calibrated(
    profile: Profile, trainer: Trainer, server: Server, url: str, *, seed: int, epoch: int, storage: bool
) -> tuple[Profile, float]:
    """Return the profile with the costs of samples on the rig, and the storage CPU seconds per byte sent.

    Args:
        profile: Profile measured on an idle machine.
        trainer: The trainer's process.
        server: The server's process.
        url: Address of the data set.
        seed: Seed of the boxes.
        epoch: Epoch of the boxes.
        storage: Whether the server has cores for ops.
    """
    count = min(len(profile), _SAMPLES)
    samples = [i * len(profile) // count for i in range(count)]
    costs: dict[Cut, Cost] = {}
    for cut in (RAW, *map(Cut.parse, CUTS)):
        if cut == RAW or (storage and cut in profile.cuts):
            costs[cut] = _fetch(trainer, server, cut, url=url, samples=samples, seed=seed, epoch=epoch)
    raw = costs[RAW]
    sending = max(0.0, raw.server_s - raw.storage_s) / raw.payload_bytes
    receiving = max(0.0, raw.client_s - raw.trainer_s) / raw.payload_bytes
    cut_ones = [cost for cut, cost in costs.items() if cut != RAW and cost.samples]
    left_s = sum(cost.server_s - cost.storage_s - sending * cost.payload_bytes for cost in cut_ones)
    handling_s = max(0.0, left_s) / max(1, sum(len(cost.samples) for cost in cut_ones))
    storage_s, trainer_s = profile.storage_s.astype(np.float64), profile.trainer_s.astype(np.float64)
    ratios = {}
    for column, cut in enumerate(profile.cuts):
        cost = costs[_nearest(cut, costs)]
        there = _ratio(profile.storage_s, profile, cost, cost.storage_s)
        here = _ratio(profile.trainer_s, profile, cost, cost.trainer_s)
        legal = np.isfinite(profile.payload_bytes[:, column])
        size_bytes = profile.payload_bytes[legal, column]
        trainer_s[legal, column] = here * trainer_s[legal, column] + receiving * size_bytes
        if storage:  # otherwise there is no core to plan with
            base_s = there * storage_s[legal, column]
            storage_s[legal, column] = base_s if cut == RAW else base_s + handling_s
        ratios[str(cut)] = {"storage": there, "trainer": here}
    facts = {
        "ratios": ratios,
        "sending_s_per_byte": sending,
        "receiving_s_per_byte": receiving,
        "handling_s": handling_s,
    }
    made = replace(
        profile,
        storage_s=storage_s.astype(np.float32),
        trainer_s=trainer_s.astype(np.float32),
        provenance={**profile.provenance, "calibrated": facts},
    )
    return made, sending


def _fetch(trainer: Trainer, server: Server, cut: Cut, **request: Any) -> Cost:
    # Warm-up: builds the indexes of files and opens the data set, which cost the server time too.
    trainer.do("spend", cut=str(cut), **{**request, "samples": request["samples"][: None if cut.k == 0 else 1]})
    before_s = server.cpu_s()
    said = trainer.do("spend", cut=str(cut), **request)
    server_s = server.cpu_s() - before_s
    rows = [(sample, row) for sample, row in zip(request["samples"], said["rows"], strict=True) if row is not None]
    payload_bytes, storage_s, trainer_s = (sum(row[i] for _, row in rows) for i in range(3))
    return Cost(cut, [sample for sample, _ in rows], payload_bytes, storage_s, trainer_s, server_s, said["cpu_s"])


def _ratio(table: FloatTable, profile: Profile, cost: Cost, took_s: float) -> float:
    said_s = float(table[cost.samples, profile.column(cost.cut)].sum()) if cost.samples else 0.0
    return took_s / said_s if said_s > 0 and np.isfinite(said_s) and took_s > 0 else 1.0


def _nearest(cut: Cut, known: Mapping[Cut, object]) -> Cut:
    for like in known:
        if like.codec == cut.codec and (like.k > 0) == (cut.k > 0):
            return like
    return next((like for like in known if like.k > 0 and cut.k > 0), RAW)
