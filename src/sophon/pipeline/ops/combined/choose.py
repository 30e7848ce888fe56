"""Ops made of other ops: randomly apply all or none of them, one of them, or all in random order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sophon.errors import ConfigError
from sophon.pipeline import checks
from sophon.pipeline.op import Op, Params
from sophon.pipeline.rng import Rng
from sophon.pipeline.spec import Kind, Objects, Spec, Value

_MAX_OPS = 64


def _check_ops(where: str, ops: Any) -> tuple[Op, ...]:
    parts = checks.sequence(where, ops, range(1, _MAX_OPS + 1))
    for part in parts:
        if not isinstance(part, Op):
            raise checks.fail(where, part, "an op")
    return parts


def _common(name: str, specs: Sequence[Spec]) -> Spec:
    """Return what all possible results have in common; dimensions that may differ are unknown."""
    first = specs[0]
    if any((s.kind, s.dtype, s.mode) != (first.kind, first.dtype, first.mode) for s in specs):
        found = " or ".join(sorted({str(s) for s in specs}))
        raise ConfigError(f"{name}: every possible result must be the same kind of value, got {found}")
    shape = tuple(d if all(s.shape[i] == d for s in specs) else None for i, d in enumerate(first.shape))
    return Spec(first.kind, shape, first.dtype, first.mode)


@dataclass(frozen=True)
class _Choose(Op):
    ops: tuple[Op, ...]

    @property
    def kind(self) -> Kind:
        """The kind that the inner ops take."""
        return self.ops[0].kind

    @property
    def portable(self) -> bool:
        """Whether all inner ops can be sent to another machine."""
        return all(op.portable for op in self.ops)

    @property
    def looks(self) -> bool:
        """Whether the draws of any inner op depend on the boxes of objects."""
        return any(op.looks for op in self.ops)

    @property
    def places(self) -> bool:
        """Whether every inner op knows where objects lie in its result."""
        return all(op.places for op in self.ops)

    def applied(self, params: Params) -> Sequence[tuple[int, Params]]:
        """Return which of the ops are applied, one after the other, and the parameters of each."""
        raise NotImplementedError

    def made(self, spec: Spec, params: Params) -> Spec:
        """Return the spec after the ops that are applied."""
        for index, drawn in self.applied(params):
            spec = self.ops[index].passed(spec, drawn)
        return spec

    def placed(self, spec: Spec, params: Params) -> Objects | None:
        """Return where objects lie after the ops that are applied."""
        return self.made(spec, params).objects

    def apply(self, value: Value, params: Params) -> Value:
        """Return the value after the ops that are applied."""
        for index, drawn in self.applied(params):
            value = self.ops[index].apply(value, drawn)
        return value


@dataclass(frozen=True)
class RandomApply(_Choose):
    """With probability p, apply all ops one after the other; otherwise none.

    Args:
        ops: Ops to apply.
        p: Probability.
    """

    p: float = 0.5

    def __post_init__(self) -> None:
        self._set(ops=_check_ops(self._where("ops"), self.ops), p=checks.probability(self._where("p"), self.p))

    def output(self, spec: Spec) -> Spec:
        """Return what is known about the result, whether or not the ops are applied."""
        result = spec
        for op in self.ops:
            result = op.output(result)
        return _common(self.name(), (spec, result))

    def draw(self, rng: Rng, spec: Spec) -> tuple[Params, ...] | None:
        """Return the parameters of each op, or None to apply none."""
        if not rng.chance(self.p):
            return None
        drawn = []
        for op in self.ops:
            drawn.append(op.draw(rng, spec))
            spec = op.passed(spec, drawn[-1])
        return tuple(drawn)

    def applied(self, params: tuple[Params, ...] | None) -> Sequence[tuple[int, Params]]:
        """Return all ops, or none."""
        return () if params is None else tuple(enumerate(params))


@dataclass(frozen=True)
class RandomChoice(_Choose):
    """Apply one op out of several.

    Args:
        ops: The choices.
        p: Weights of the choices; equal if None.
    """

    p: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        ops = _check_ops(self._where("ops"), self.ops)
        weights = self.p
        if weights is not None:
            where = self._where("p")
            weights = tuple(checks.number(where, w, 0.0) for w in checks.sequence(where, weights, (len(ops),)))
            if sum(weights) <= 0.0:
                raise checks.fail(where, self.p, "weights that add up to more than 0")
            if len(set(weights)) == 1:
                weights = None
        self._set(ops=ops, p=weights)

    def output(self, spec: Spec) -> Spec:
        """Return what all choices have in common."""
        return _common(self.name(), [op.output(spec) for op in self.ops])

    def draw(self, rng: Rng, spec: Spec) -> tuple[int, Params]:
        """Return the chosen op and its parameters."""
        weights = self.p or (1.0,) * len(self.ops)
        point = rng.uniform(0.0, sum(weights))
        chosen = 0
        for chosen, weight in enumerate(weights):  # noqa: B007 - the last one is meant when rounding runs past the end
            if point < weight:
                break
            point -= weight
        return chosen, self.ops[chosen].draw(rng, spec)

    def applied(self, params: tuple[int, Params]) -> Sequence[tuple[int, Params]]:
        """Return the chosen op."""
        return (params,)


@dataclass(frozen=True)
class RandomOrder(_Choose):
    """Apply all ops, one after the other, in a random order.

    Args:
        ops: Ops to apply.
    """

    def __post_init__(self) -> None:
        self._set(ops=_check_ops(self._where("ops"), self.ops))

    def output(self, spec: Spec) -> Spec:
        """Return what is known about the result in every order."""
        # The input that any op may get: the original input, or the result of any other op on such a value.
        while (wider := _common(self.name(), (spec, *(op.output(spec) for op in self.ops)))) != spec:
            spec = wider
        return _common(self.name(), [op.output(spec) for op in self.ops])

    def draw(self, rng: Rng, spec: Spec) -> tuple[tuple[int, Params], ...]:
        """Return the ops in the drawn order, with their parameters."""
        drawn = []
        for index in rng.permutation(len(self.ops)):
            params = self.ops[index].draw(rng, spec)
            drawn.append((index, params))
            spec = self.ops[index].passed(spec, params)
        return tuple(drawn)

    def applied(self, params: tuple[tuple[int, Params], ...]) -> Sequence[tuple[int, Params]]:
        """Return all ops, in the drawn order."""
        return params
