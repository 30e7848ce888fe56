"""Pipeline: an immutable sequence of ops that can be divided at any point and still yields the same bits."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable
from typing import Any

from sophon.errors import ConfigError, Error, OpError
from sophon.pipeline.call import Call
from sophon.pipeline.fuse import Fused, fuse
from sophon.pipeline.op import Json, Op, Params
from sophon.pipeline.ops.tensor import Tensor
from sophon.pipeline.registry import op_from_spec
from sophon.pipeline.rng import Key, Rng
from sophon.pipeline.spec import ENCODED, Spec, Value, spec_of
from sophon.pipeline.trace import Trace

_FORMAT = 1  # of the JSON form
_MAX_OPS = 64
_MAX_JSON_BYTES = 1 << 16  # a recipe is a few hundred bytes


class Pipeline:
    """What is done to a sample, from the bytes of its file to the tensor the model sees.

    A pipeline checks itself when it is built: every op must accept what the op before it gives. It cannot be changed
    afterwards, and its fingerprint names it on both sides of the link.

    Args:
        ops: Ops in order, the first one taking encoded bytes (`Decode`). A callable that is not an op becomes a `Call`:
            it stays on the trainer, and so does everything behind it.
    """

    __slots__ = ("_fused", "fingerprint", "ops", "specs")

    ops: tuple[Op, ...]
    specs: tuple[Spec, ...]
    fingerprint: str
    _fused: dict[int, tuple[Fused, ...]]

    def __init__(self, ops: Iterable[Op | Callable[[Any], Any]]) -> None:
        steps = tuple(_as_op(op) for op in ops)
        if not 1 <= len(steps) <= _MAX_OPS:
            raise ConfigError(f"expected 1 to {_MAX_OPS} ops, got {len(steps)}")
        specs = [ENCODED]
        for position, op in enumerate(steps):
            try:
                specs.append(op.output(specs[-1]))
            except ConfigError as error:
                raise ConfigError(f"op {position}: {error}") from error
        text = _canonical([op.to_spec() for op in steps])
        set_ = object.__setattr__
        set_(self, "ops", steps)
        set_(self, "specs", tuple(specs))
        set_(self, "fingerprint", hashlib.sha256(text.encode()).hexdigest()[:32])
        set_(self, "_fused", fuse(steps))

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"a pipeline cannot be changed; build another one instead of setting {name}")

    @classmethod
    def from_torchvision(cls, transform: Any) -> Pipeline:
        """Return the pipeline of a torchvision transform, v1 or v2, that is applied to the picture of an ImageFolder.

        Known transforms become ops. Any other callable runs on the trainer, seeded per sample.
        """
        from sophon.pipeline.torchvision import (
            ops_from_transform,
        )  # it builds pipelines: an import cycle otherwise

        return cls(ops_from_transform(transform))

    @property
    def max_cut(self) -> int:
        """The number of ops, from the first, that can run near storage."""
        for position, op in enumerate(self.ops):
            if not op.portable:
                return position
        return len(self.ops)

    def run(
        self,
        value: Value,
        key: Key,
        start: int = 0,
        stop: int | None = None,
        out: Tensor | None = None,
        trace: Trace | None = None,
    ) -> Value:
        """Run ops[start:stop] on a value that ops[:start] have given.

        Args:
            value: What to work on: the bytes of a file where start is 0.
            key: Which seed, epoch and sample; all that random ops depend on.
            start: The first op.
            stop: Behind the last op; by default all.
            out: Room for the result. It is used where that saves a copy; otherwise the result is a value of its own.
            trace: Where to note what each op takes, if anybody wants to know.

        Raises:
            OpError: An op failed; says which one, on which sample and what to try.
        """
        end = len(self.ops) if stop is None else stop
        if not 0 <= start <= end <= len(self.ops):
            raise ConfigError(f"expected 0 ≤ start ≤ stop ≤ {len(self.ops)}, got {start} and {end}")
        position = start
        while position < end:
            fused = self._fusion(position, end)
            after = position + (1 if fused is None else fused.span)
            drawn: list[Params] = []
            between: list[int] = []  # bytes that the ops of a fusion would have given, but for the last
            spec = spec_of(value)
            at = position
            try:
                for at in range(position, after):
                    op = self.ops[at]
                    drawn.append(op.draw(Rng(key, at), spec) if op.random else None)
                    if at + 1 < after:
                        spec = op.output(spec)
                        between.append(spec.size_bytes)
                if fused is not None:
                    value = fused.run(value, drawn, out if after == end else None)
                else:
                    value = op.apply(value, drawn[0])
            except OpError as error:
                raise error.at(self.ops[at].name(), at, int(key.sample)) from error.__cause__
            except Error:
                raise
            except Exception as error:
                problem = f"{type(error).__name__}: {error}."
                raise OpError(problem, op=_title(self.ops[at]), position=at, sample=int(key.sample)) from error
            if trace is not None:
                trace.passed(position, after, value, between)
            position = after
        return value

    def _fusion(self, position: int, end: int) -> Fused | None:
        """Return the longest fusion that begins at a position and does not reach beyond the end."""
        for fused in self._fused.get(position, ()):
            if position + fused.span <= end:
                return fused
        return None

    def to_spec(self) -> dict[str, Json]:
        """Return the pipeline as JSON values."""
        return {"format": _FORMAT, "ops": [op.to_spec() for op in self.ops]}

    def to_json(self) -> str:
        """Return the pipeline as JSON text, one line per op."""
        ops = ",\n".join(f"    {json.dumps(op.to_spec(), allow_nan=False)}" for op in self.ops)
        return f'{{\n  "format": {_FORMAT},\n  "ops": [\n{ops}\n  ]\n}}'

    @classmethod
    def from_spec(cls, spec: Json) -> Pipeline:
        """Return the pipeline that JSON values describe; unknown ops, versions and parameters are refused."""
        if not isinstance(spec, dict) or not isinstance(spec.get("ops"), list):
            raise ConfigError('expected a pipeline as {"format": 1, "ops": […]}')
        if spec.get("format") != _FORMAT:
            raise ConfigError(
                f"expected pipeline format {_FORMAT}, got {spec.get('format')!r}; install the same release"
            )
        if len(spec["ops"]) > _MAX_OPS:
            raise ConfigError(f"expected at most {_MAX_OPS} ops, got {len(spec['ops'])}")
        ops = []
        for position, part in enumerate(spec["ops"]):
            try:
                ops.append(op_from_spec(part))
            except ConfigError as error:
                raise ConfigError(f"op {position}: {error}") from error
        return cls(ops)

    @classmethod
    def from_json(cls, text: str) -> Pipeline:
        """Return the pipeline that JSON text describes."""
        if len(text) > _MAX_JSON_BYTES:
            raise ConfigError(f"expected a pipeline of at most {_MAX_JSON_BYTES:,} bytes of JSON, got {len(text):,}")
        try:
            spec = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"not a pipeline in JSON: {error}") from error
        return cls.from_spec(spec)

    def prefix(self, stop: int) -> Pipeline:
        """Return the pipeline of the first ops only: what a storage node needs to know."""
        return Pipeline(self.ops[:stop])

    def describe(self) -> str:
        """Return one line per op: what it gives, whether it is random, and why it stays on the trainer if it does."""
        lines = []
        for position, (op, spec) in enumerate(zip(self.ops, self.specs[1:], strict=True)):
            notes = ["random"] if op.random else []
            if isinstance(op, Call):
                notes = [f"trainer only: {op.reason}"]
            elif position >= self.max_cut:
                notes.append("trainer only: behind a trainer-only step")
            lines.append(f"{position}  {_title(op):<24} → {spec!s:<28} {', '.join(notes)}".rstrip())
        return "\n".join(lines)

    def __len__(self) -> int:
        return len(self.ops)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Pipeline) and self.ops == other.ops

    def __hash__(self) -> int:
        return hash(self.ops)

    def __repr__(self) -> str:
        return f"Pipeline([{', '.join(map(repr, self.ops))}])"

    def __reduce__(self) -> tuple[object, ...]:
        return (Pipeline, (self.ops,))  # for spawned worker processes; slots and fusions are rebuilt


def _as_op(step: Op | Callable[[Any], Any]) -> Op:
    if isinstance(step, Op):
        return step
    if isinstance(step, type) or not callable(step):
        raise ConfigError(f"expected an op or a callable, got {step!r}; did you forget the parentheses?")
    return Call(step)


def _title(op: Op) -> str:
    return f"Call({op.to_spec()['function']})" if isinstance(op, Call) else op.name()


def _canonical(value: Json) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
