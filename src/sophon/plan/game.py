"""A game of a few plans against three resources, solved exactly.

Given the times of J plans on the three resources (link, storage, trainer), one side mixes plans to make the
largest time small, the other mixes resources to make the smallest plan large; both meet at the same value. An
optimal mixture is a
vertex: it equalises as many resources as it uses plans. With three resources there are few enough vertices to
    try
them all, which needs no pivoting rules and cannot cycle.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float64]
Matrix = NDArray[np.float64]
_ROW_PAIRS = ((0, 1), (0, 2), (1, 2))
_RESOURCES = 3


@dataclass(frozen=True)
class Mix:
    """The best mixture of plans.

    Args:
        plans: Indices of the plans in it, at most three.
        weights: The share of each, summing to 1.
        value: The largest of the three mixed times.
    """

    plans: tuple[int, ...]
    weights: Vector
    value: float


def binding(times: Matrix, start: Sequence[int] = ()) -> tuple[Vector, NDArray[np.intp]]:
    """Return the weights on resources that make the smallest weighted plan largest, and who decides.

    Plans are taken in one by one, always the one that the weights so far overrate most: a handful decides
    however many there are.

    Args:
        times: [plans, 3] time of each plan on each resource, in any unit; may be negative.
        start: Plans to begin with: those that decided before the last ones were added.
    """
    taken = list(start)
    weights = _weigh(times[taken]) if taken else np.full(_RESOURCES, 1 / _RESOURCES)
    while True:
        values = times @ weights
        worst = int(values.argmin())
        if worst in taken:
            return weights, np.array(taken)
        taken.append(worst)
        weights = _weigh(times[taken])


def mix_plans(times: Matrix) -> Mix:
    """Return the mixture of plans whose largest time is smallest.

    Args:
        times: [plans, 3] time of each plan on each resource, in any unit; may be negative.
    """
    _, chosen = binding(times)
    found = _mix(times[chosen])
    return Mix(tuple(int(chosen[plan]) for plan in found.plans), found.weights, found.value)


def _mix(times: Matrix) -> Mix:
    best = min(range(len(times)), key=lambda plan: (float(times[plan].max()), plan))
    found = Mix((best,), np.ones(1), float(times[best].max()))
    for size in (2, 3):
        subsets = _subsets(len(times), size)
        if not len(subsets):
            break
        for weights in _equalising(times, subsets):
            mixed = np.einsum("kp,kpr->kr", weights, times[subsets])
            values = np.where(weights.min(axis=1) >= 0, mixed.max(axis=1), np.inf)
            index = int(values.argmin())
            if values[index] < found.value:
                found = Mix(tuple(map(int, subsets[index])), weights[index], float(values[index]))
    return found


def _weigh(times: Matrix) -> Vector:
    candidates = [np.eye(_RESOURCES)]
    pairs = _subsets(len(times), 2)
    if len(pairs):
        gaps = times[pairs[:, 0]] - times[pairs[:, 1]]
        for first, second in _ROW_PAIRS:
            edge = np.zeros((len(pairs), _RESOURCES))
            edge[:, first], edge[:, second] = -gaps[:, second], gaps[:, first]
            candidates.append(_normalised(edge))
    triples = _subsets(len(times), 3)
    if len(triples):
        apex = times[triples[:, 0]]
        candidates.append(_normalised(np.cross(apex - times[triples[:, 1]], apex - times[triples[:, 2]])))
    weights = np.concatenate(candidates)
    weights = weights[weights.min(axis=1) >= 0]
    values = (weights @ times.T).min(axis=1)
    best: Vector = weights[int(values.argmax())]
    return best


def _equalising(times: Matrix, subsets: NDArray[np.intp]) -> list[Matrix]:
    # Weights that make as many resources equal as there are plans; some are negative, the caller drops those.
    if subsets.shape[1] == 2:
        found = []
        for first, second in _ROW_PAIRS:
            gaps = times[subsets, first] - times[subsets, second]
            found.append(_normalised(np.stack([-gaps[:, 1], gaps[:, 0]], axis=1)))
        return found
    one = times[subsets, 0] - times[subsets, 1]
    two = times[subsets, 0] - times[subsets, 2]
    return [_normalised(np.cross(one, two))]


def _normalised(vectors: Matrix) -> Matrix:
    # Rows that sum to 1; where no such row exists (parallel plans), -1 marks the row as no candidate.
    sums = vectors.sum(axis=1, keepdims=True)
    usable = np.abs(sums) > 1e-300
    with np.errstate(over="ignore"):
        rows = np.where(usable, vectors / np.where(usable, sums, 1.0), -1.0)
    return np.where(np.isfinite(rows), rows, -1.0)


@cache
def _subsets(count: int, size: int) -> NDArray[np.intp]:
    return np.array(list(combinations(range(count), size)), dtype=np.intp).reshape(-1, size)
