"""Adapts a profile that was measured on an idle machine to the costs on the rig.

On the rig a core does more than run ops: TCP, Flight and the interpreter take part of its time, caches are cold when
samples come one at a time, and a quota stops and restarts processes. So a few samples are fetched on the rig at cuts of
each kind. With r the CPU seconds that replies report (or that finishing took), P those of the whole process and b the
bytes, the columns of the profile become ::

    storage_s = ratio(kind) · measured + handling(kind)      ratio: Σ r / Σ measured
    trainer_s = ratio(kind) · measured + receiving · bytes   sending, receiving: (P − Σ r) / Σ b of files
                                                             handling: the rest of P − Σ r, per sample

Sending is not a column: it is the storage CPU time per byte, and is part of the resources.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from sophon.bench.rig.processes import Server, Trainer
from sophon.codec import RAW, Cut
from sophon.profile.table import FloatTable, Profile

# One cut of each kind; other cuts are scaled like the most similar one.
CUTS = ("0:window", "2:raw", "2:webp", "2:jxl1", "2:jxl3")
_SAMPLES = 40
_ROUNDS = 3  # a tenth of a core does so little at a time that one round may be a quarter off
_WARM = 8  # the first samples of a worker process cost more than those of a whole epoch


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

    def handling_s(self, sending_s_per_byte: float) -> float:
        """Return the CPU seconds of the server per sample that neither its reply reports nor its bytes explain."""
        left_s = self.server_s - self.storage_s - sending_s_per_byte * self.payload_bytes
        return max(0.0, left_s) / len(self.samples) if self.samples else 0.0


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
    cuts = [RAW, *(cut for cut in map(Cut.parse, CUTS) if storage and cut in profile.cuts)]
    request: dict[str, Any] = {"url": url, "samples": samples, "seed": seed, "epoch": epoch}
    # First of all what is done once: making the indexes of files, opening the data set, filling the workers' buffers.
    for cut in cuts:
        trainer.do("spend", cut=str(cut), **{**request, "samples": samples[: None if cut.k == 0 else _WARM]})
    # In turns, as cuts alternate in an epoch.
    fetched = [[_fetch(trainer, server, cut, request) for cut in cuts] for _ in range(_ROUNDS)]
    costs = {cut: _joined([round_[i] for round_ in fetched]) for i, cut in enumerate(cuts)}
    raw = costs[RAW]
    sending = max(0.0, raw.server_s - raw.storage_s) / raw.payload_bytes
    receiving = max(0.0, raw.client_s - raw.trainer_s) / raw.payload_bytes
    storage_s, trainer_s = profile.storage_s.astype(np.float64), profile.trainer_s.astype(np.float64)
    ratios = {}
    for column, cut in enumerate(profile.cuts):
        cost = costs[_nearest(cut, costs)]
        handling_s = 0.0 if cut == RAW else cost.handling_s(sending)
        there = _ratio(profile.storage_s, profile, cost, cost.storage_s)
        here = _ratio(profile.trainer_s, profile, cost, cost.trainer_s)
        legal = np.isfinite(profile.payload_bytes[:, column])
        size_bytes = profile.payload_bytes[legal, column]
        trainer_s[legal, column] = here * trainer_s[legal, column] + receiving * size_bytes
        if storage:  # otherwise there is no core to plan with
            storage_s[legal, column] = there * storage_s[legal, column] + handling_s
        ratios[str(cut)] = {"storage": there, "trainer": here, "handling_s": handling_s}
    facts = {
        "ratios": ratios,
        "sending_s_per_byte": sending,
        "receiving_s_per_byte": receiving,
    }
    made = replace(
        profile,
        storage_s=storage_s.astype(np.float32),
        trainer_s=trainer_s.astype(np.float32),
        provenance={**profile.provenance, "calibrated": facts},
    )
    return made, sending


def _fetch(trainer: Trainer, server: Server, cut: Cut, request: Mapping[str, Any]) -> Cost:
    before_s = server.cpu_s()
    said = trainer.do("spend", cut=str(cut), **request)
    server_s = server.cpu_s() - before_s
    rows = [(sample, row) for sample, row in zip(request["samples"], said["rows"], strict=True) if row is not None]
    payload_bytes, storage_s, trainer_s = (sum(row[i] for _, row in rows) for i in range(3))
    return Cost(cut, [sample for sample, _ in rows], payload_bytes, storage_s, trainer_s, server_s, said["cpu_s"])


def _joined(costs: Sequence[Cost]) -> Cost:
    """Return the cost of all samples together; those of several rounds count as often as they were fetched."""
    samples = [sample for cost in costs for sample in cost.samples]
    names = ("payload_bytes", "storage_s", "trainer_s", "server_s", "client_s")
    return Cost(costs[0].cut, samples, **{name: sum(getattr(cost, name) for cost in costs) for name in names})


def _ratio(table: FloatTable, profile: Profile, cost: Cost, took_s: float) -> float:
    said_s = float(table[cost.samples, profile.column(cost.cut)].sum()) if cost.samples else 0.0
    return took_s / said_s if said_s > 0 and np.isfinite(said_s) and took_s > 0 else 1.0


def _nearest(cut: Cut, known: Mapping[Cut, object]) -> Cut:
    for like in known:
        if like.codec == cut.codec and (like.k > 0) == (cut.k > 0):
            return like
    return next((like for like in known if like.k > 0 and cut.k > 0), RAW)
