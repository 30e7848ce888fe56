"""The cost model: what an epoch of a plan takes, in seconds.

With b, s, p the bytes, storage CPU seconds and trainer CPU seconds of every sample at its cut, n samples and
resources B (link bytes/s), S (storage cores), C (trainer cores), G (consumer samples/s)::

    T_Net = Σ b / B      seconds the link is busy           bottleneck "link"
    T_CS  = Σ s / S      seconds the storage cores are busy            "storage"
    T_CC  = Σ p / C      seconds the trainer cores are busy            "trainer"
    T_G   = n / G        seconds the consumer is busy                  "consumer"
    T     = max(T_Net, T_CS, T_CC, T_G)

All four run at the same time, so the slowest decides (paper 3.2). With S = 0, T_CS is 0 where Σ s is, else
infinite. Sums are float64.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sophon.errors import ConfigError
from sophon.plan.resources import Resources
from sophon.profile.table import FloatTable, Profile

CutIndex = NDArray[np.uint8]
_CHUNK = 2**16  # samples at a time: temporaries of 512 KiB stay in a core's cache


@dataclass(frozen=True)
class Totals:
    """What all samples of an epoch use together.

    Args:
        samples: How many.
        link_bytes: Bytes on the link.
        storage_cpu_s: CPU seconds near storage.
        trainer_cpu_s: CPU seconds at the trainer.
    """

    samples: int
    link_bytes: float
    storage_cpu_s: float
    trainer_cpu_s: float


@dataclass(frozen=True)
class Prediction:
    """What an epoch is predicted to take.

    Args:
        epoch_s: T, the seconds of one epoch.
        bottleneck: What decides it: link, storage, trainer or consumer.
        link_s: T_Net.
        storage_s: T_CS.
        trainer_s: T_CC.
        consumer_s: T_G.
        link_bytes: Bytes on the link.
        storage_cpu_s: CPU seconds near storage.
        trainer_cpu_s: CPU seconds at the trainer.
        bound_s: No plan at all takes fewer seconds than this; None when the policy does not know.
    """

    epoch_s: float
    bottleneck: str
    link_s: float
    storage_s: float
    trainer_s: float
    consumer_s: float
    link_bytes: float
    storage_cpu_s: float
    trainer_cpu_s: float
    bound_s: float | None = None

    @property
    def rank(self) -> tuple[float, float, float]:
        """What makes one plan better than another: fewer seconds, then less storage CPU, then fewer bytes."""
        return self.epoch_s, self.storage_cpu_s, self.link_bytes

    def to_json(self) -> dict[str, Any]:
        """Return the prediction as a JSON object; what never ends is null."""
        return {
            name: None if isinstance(value, float) and math.isinf(value) else value
            for name, value in asdict(self).items()
        }

    @classmethod
    def from_json(cls, said: Mapping[str, Any]) -> Prediction:
        """Return the prediction that `to_json` described."""
        names = {field.name for field in fields(cls)}
        if set(said) != names:
            raise ConfigError(f"a prediction of {sorted(said)} was found where {sorted(names)} were expected.")
        values = dict(said)
        for name in names - {"bottleneck"}:
            if values[name] is None and name != "bound_s":
                values[name] = math.inf
            elif values[name] is not None:
                values[name] = float(values[name])
        return cls(**values)


def gather(profile: Profile, cut: CutIndex) -> Totals:
    """Return what all samples use together when sample i has the cut of column ``cut[i]``."""
    if cut.shape != (len(profile),) or cut.dtype != np.uint8 or int(cut.max()) >= len(profile.cuts):
        raise ConfigError(
            f"a plan of {cut.dtype}{cut.shape} does not fit a profile of {len(profile)} samples and "
            f"{len(profile.cuts)} cuts; make it from this profile."
        )
    sums = sum_chosen((profile.payload_bytes, profile.storage_s, profile.trainer_s), cut)
    if not np.isfinite(sums).all():
        raise ConfigError("the plan gives some sample a cut that it cannot have; make it from this profile.")
    return Totals(len(profile), *map(float, sums))


def sum_chosen(tables: Sequence[FloatTable], cut: CutIndex) -> NDArray[np.float64]:
    """Return for each [samples, cuts] table the sum of the chosen entries."""
    n = len(cut)
    first = int(cut[0])
    if (cut == first).all():
        return np.array([table[:, first].sum(dtype=np.float64) for table in tables])
    sums = np.zeros(len(tables))
    for low in range(0, n, _CHUNK):
        index = cut[low : low + _CHUNK].astype(np.intp)
        index *= n
        index += np.arange(low, low + len(index))
        for row, table in enumerate(tables):
            sums[row] += table.T.reshape(-1).take(index).sum(dtype=np.float64)
    return sums


def predict_totals(totals: Totals, resources: Resources, bound_s: float | None = None) -> Prediction:
    """Return what an epoch with these totals takes."""
    idle = totals.storage_cpu_s == 0
    cores = resources.storage_cores
    times = {
        "link": totals.link_bytes / resources.link_bytes_per_s,
        "storage": 0.0 if idle else totals.storage_cpu_s / cores if cores else math.inf,
        "trainer": totals.trainer_cpu_s / resources.trainer_cores,
        "consumer": totals.samples / resources.consumer_samples_per_s,
    }
    bottleneck = max(times, key=lambda name: times[name])
    return Prediction(
        epoch_s=times[bottleneck],
        bottleneck=bottleneck,
        link_s=times["link"],
        storage_s=times["storage"],
        trainer_s=times["trainer"],
        consumer_s=times["consumer"],
        link_bytes=totals.link_bytes,
        storage_cpu_s=totals.storage_cpu_s,
        trainer_cpu_s=totals.trainer_cpu_s,
        bound_s=bound_s,
    )


def predict(profile: Profile, cut: CutIndex, resources: Resources, bound_s: float | None = None) -> Prediction:
    """Return what an epoch takes when sample i has the cut of column ``cut[i]``."""
    return predict_totals(gather(profile, cut), resources, bound_s)
