"""The cost model: how many seconds an epoch takes with a plan.

Every sample has measures that depend on its route: bytes on the link, CPU seconds near storage and at the trainer, …
Each resource is spent by some of these measures (`sophon.plan.resources`), so its seconds are linear in their sums::

    T_r = Σ over samples of its part, Σ over measures of  coefficient · measure / rate
    T   = max over resources of T_r

All resources are busy at the same time, so the slowest one sets the pace (paper 3.2). With one node, that is

    T_Net = Σ b / B      seconds the link is busy           bottleneck "link"
    T_CS  = Σ s / S      seconds the storage cores are busy            "storage"
    T_CC  = Σ p / C      seconds the trainer cores are busy            "trainer"
    T_G   = n / G        seconds the consumer is busy                  "consumer"

and likewise for the store's reads. If a resource is missing, its seconds are 0 if nothing spends it, and infinite
otherwise; but a node without cores for ops can still send, so only its ops count as spending. Sums are float64.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sophon.errors import ConfigError
from sophon.plan.resources import KINDS, SAMPLES, Kind, Resource, Resources, kind_named
from sophon.profile.table import FloatTable, PartIndex, Profile

CutIndex = NDArray[np.uint8]
Sums = NDArray[np.float64]
_CHUNK = 2**16  # samples at a time: temporaries of 512 KiB stay in a core's cache
_AMOUNTS = {kind.amount: kind for kind in KINDS if kind.amount}
_BUSY = {f"{kind.name}_s": kind for kind in KINDS}
_THRIFTY = sorted((kind for kind in KINDS if kind.thrift is not None), key=lambda kind: kind.thrift or 0)


@dataclass(frozen=True)
class Totals:
    """Totals over all samples of an epoch, by measure: each an array with one sum per part.

    Args:
        sums: Sums by measure name, including `samples`.
    """

    sums: Mapping[str, Sums]

    @property
    def samples(self) -> int:
        """Number of samples."""
        return int(self.sums[SAMPLES].sum())


@dataclass(frozen=True)
class Prediction:
    """The predicted cost of an epoch.

    Amounts are also attributes, named as in the table of resources (`link_bytes`, `storage_cpu_s`). So are the busy
    seconds of each kind of resource (`link_s`, `consumer_s`): the longest if there are several of a kind, 0 if the kind
    is unknown.

    Args:
        epoch_s: T, the seconds of one epoch.
        bottleneck: The resource that limits the epoch: link, storage, trainer, consumer, …
        busy_s: Seconds that each resource is busy, by its label.
        used: Amounts spent, by the name that each kind of resource gives them.
        bound_s: No plan takes fewer seconds than this; None if the policy does not know.
    """

    epoch_s: float
    bottleneck: str
    busy_s: Mapping[str, float] = field(default_factory=dict)
    used: Mapping[str, float] = field(default_factory=dict)
    bound_s: float | None = None

    def __post_init__(self) -> None:
        # In the order of the table, so that a prediction that was saved reads as it did.
        names = [kind.name for kind in KINDS]
        ordered = sorted(self.busy_s, key=lambda label: (names.index(kind_named(label).name), label))
        object.__setattr__(self, "busy_s", {label: self.busy_s[label] for label in ordered})
        amounts = [*_AMOUNTS, *(name for name in self.used if name not in _AMOUNTS)]
        object.__setattr__(self, "used", {name: self.used[name] for name in amounts if name in self.used})

    def __getattr__(self, name: str) -> float:
        if name in _AMOUNTS:
            return self.used.get(name, 0.0)
        if name in _BUSY:
            kind = _BUSY[name].name
            return max((s for label, s in self.busy_s.items() if label.split(" ", 1)[0] == kind), default=0.0)
        raise AttributeError(name)

    @property
    def rank(self) -> tuple[float, ...]:
        """Sort key of plans, best first: fewer seconds, then less storage CPU, then fewer bytes."""
        return self.epoch_s, *(self.used.get(kind.amount, 0.0) for kind in _THRIFTY)

    def to_json(self) -> dict[str, Any]:
        """Return the prediction as a JSON object; infinite values are null."""
        return {
            "epoch_s": _finite(self.epoch_s),
            "bottleneck": self.bottleneck,
            "busy_s": {label: _finite(seconds) for label, seconds in self.busy_s.items()},
            "used": {name: _finite(amount) for name, amount in self.used.items()},
            "bound_s": None if self.bound_s is None else _finite(self.bound_s),
        }

    @classmethod
    def from_json(cls, said: Mapping[str, Any]) -> Prediction:
        """Return the prediction from the result of `to_json`."""
        names = {"epoch_s", "bottleneck", "busy_s", "used", "bound_s"}
        if not isinstance(said, Mapping) or set(said) != names:
            raise ConfigError(f"expected a prediction with {sorted(names)}, got {sorted(said)}.")
        return cls(
            _number(said["epoch_s"]),
            str(said["bottleneck"]),
            {str(label): _number(seconds) for label, seconds in said["busy_s"].items()},
            {str(name): _number(amount) for name, amount in said["used"].items()},
            None if said["bound_s"] is None else float(said["bound_s"]),
        )


def gather(profile: Profile, cut: CutIndex) -> Totals:
    """Return the totals of all samples when sample i has the route of column ``cut[i]``."""
    if cut.shape != (len(profile),) or cut.dtype != np.uint8 or int(cut.max()) >= len(profile.routes):
        raise ConfigError(
            f"a {cut.dtype} plan of shape {cut.shape} does not fit a profile of {len(profile)} samples and "
            f"{len(profile.routes)} cuts; make a new plan from this profile."
        )
    tables = profile.measures
    sums = sum_chosen(tuple(tables.values()), cut, profile.parts, profile.part_count)
    if not np.isfinite(sums).all():
        raise ConfigError("the plan gives a sample an impossible cut; make a new plan from this profile.")
    return Totals(fixed_sums(profile) | dict(zip(tables, sums.T, strict=True)))


def fixed_sums(profile: Profile) -> dict[str, Sums]:
    """Return the sums that do not depend on the plan: samples, and file reads if no route reads less."""
    found: dict[str, Sums] = {}
    if profile.parts is None:
        found[SAMPLES] = np.array([float(len(profile))])
    else:
        found[SAMPLES] = np.bincount(profile.parts, minlength=profile.part_count).astype(np.float64)
    if "read_bytes" not in profile.measures:
        files = profile.payload_bytes[:, profile.untouched]
        found["read_bytes"] = part_sums(files, profile.parts, profile.part_count)
    return found


def part_sums(values: NDArray[Any], parts: PartIndex | None, count: int) -> Sums:
    """Return the sum of values, one per part."""
    if parts is None:
        return np.array([values.sum(dtype=np.float64)])
    return np.asarray(np.bincount(parts, weights=values, minlength=count), np.float64)


def sum_chosen(
    tables: Sequence[FloatTable], cut: CutIndex, parts: PartIndex | None = None, part_count: int = 1
) -> Sums:
    """Return [parts, tables] sums of the chosen entries, for each [samples, routes] table and each part."""
    n = len(cut)
    first = int(cut[0])
    if (cut == first).all():
        return np.stack([part_sums(table[:, first], parts, part_count) for table in tables], axis=1)
    sums = np.zeros((part_count, len(tables)))
    for low in range(0, n, _CHUNK):
        index = cut[low : low + _CHUNK].astype(np.intp)
        index *= n
        index += np.arange(low, low + len(index))
        block = None if parts is None else parts[low : low + _CHUNK]
        for row, table in enumerate(tables):
            sums[:, row] += part_sums(table.T.reshape(-1).take(index), block, part_count)
    return sums


@dataclass(frozen=True)
class Loads:
    """Converts summed measures into seconds of resource use.

    Args:
        rows: The resources whose rates are known.
        measures: Names of the measures.
        per_s: [resources, parts, measures] seconds of a resource per unit of a measure.
        closed: [resources, parts, measures] True where the measure would use a resource that is not available.
    """

    rows: tuple[Resource, ...]
    measures: tuple[str, ...]
    per_s: NDArray[np.float64]
    closed: NDArray[np.bool_]

    @classmethod
    def of(cls, resources: Resources, measures: Sequence[str], parts: int) -> Loads:
        """Return the loads of some measures on the available resources."""
        rows = tuple(resources.rows())
        if resources.nodes and len(resources.nodes) < parts:
            raise ConfigError(f"the samples are in {parts} parts, but {len(resources.nodes)} nodes were given.")
        per_s = np.zeros((len(rows), parts, len(measures)))
        closed = np.zeros(per_s.shape, np.bool_)
        for place, row in enumerate(rows):
            where = slice(None) if row.part is None else slice(row.part, row.part + 1)
            for measure, coefficient in _spent_by(row.kind, resources, row.rate > 0).items():
                if measure in measures:
                    column = measures.index(measure)
                    per_s[place, where, column] = coefficient / row.rate if row.rate else 0.0
                    closed[place, where, column] = row.rate == 0
        return cls(rows, tuple(measures), per_s, closed)

    def times(self, sums: Sums) -> NDArray[np.float64]:
        """Return the seconds of every resource, for [parts, measures] sums."""
        times: NDArray[np.float64] = np.einsum("rpm,pm->r", self.per_s, sums)
        if self.closed.any():
            times[(self.closed & (sums > 0)).any(axis=(1, 2))] = np.inf
        return times


def _spent_by(kind: Kind, resources: Resources, has_any: bool = True) -> dict[str, float]:
    # Cost of one unit of each measure, by kind. A node without cores for ops still sends.
    found: dict[str, float] = {}
    for use in kind.uses:
        coefficient = 1.0 if not use.factor else float(getattr(resources, use.factor)) if has_any else 0.0
        if coefficient:
            found[use.measure] = found.get(use.measure, 0.0) + coefficient
    return found


def predict_totals(totals: Totals, resources: Resources, bound_s: float | None = None) -> Prediction:
    """Return the prediction for an epoch with these totals."""
    measures = tuple(totals.sums)
    sums = np.stack([totals.sums[measure] for measure in measures], axis=1)
    loads = Loads.of(resources, measures, len(sums))
    times = {row.label: float(seconds) for row, seconds in zip(loads.rows, loads.times(sums), strict=True)}
    bottleneck = max(times, key=lambda label: times[label])
    return Prediction(times[bottleneck], bottleneck, times, _used(totals, resources), bound_s)


def _used(totals: Totals, resources: Resources) -> dict[str, float]:
    known = {row.kind.name for row in resources.rows()}
    used = {}
    for kind in _AMOUNTS.values():
        if kind.is_required or kind.name in known:
            has_any = getattr(resources, kind.rate) > 0
            spent = _spent_by(kind, resources, has_any).items()
            known_sums = [(totals.sums[measure], each) for measure, each in spent if measure in totals.sums]
            used[kind.amount] = float(sum(each * sums.sum() for sums, each in known_sums))
    return used


def predict(profile: Profile, cut: CutIndex, resources: Resources, bound_s: float | None = None) -> Prediction:
    """Return the prediction for an epoch when sample i has the route of column ``cut[i]``."""
    return predict_totals(gather(profile, cut), resources, bound_s)


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _number(value: Any) -> float:
    return math.inf if value is None else float(value)
