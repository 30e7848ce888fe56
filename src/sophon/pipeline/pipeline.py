"""Pipeline: an immutable sequence of ops that can be divided at any point and still gives the same bits."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields, replace
from itertools import takewhile
from typing import Any

from sophon.errors import ConfigError, Error, OpError
from sophon.pipeline.call import Call, as_call, is_albumentations, met
from sophon.pipeline.fuse import Fused, fuse
from sophon.pipeline.known_failures import known_remedy
from sophon.pipeline.op import Decoder, Json, Op, Params, drawn
from sophon.pipeline.ops.combined.views import Views
from sophon.pipeline.ops.decode import Decode
from sophon.pipeline.ops.on_tensor import OnTensor
from sophon.pipeline.ops.tensor import Tensor
from sophon.pipeline.region import first_crop
from sophon.pipeline.registry import MOST_STEPS, check_bounds, op_from_spec
from sophon.pipeline.rng import Key, Rng
from sophon.pipeline.spec import ENCODED, SIGNALS, Kind, Spec, Value, spec_of
from sophon.pipeline.trace import Trace
from sophon.pipeline.translation import ops_from_transform
from sophon.pipeline.translation.torchaudio import op_for

_BOXES = "boxes"  # kind of field, as in `store.fields`
_ARRAYS = (Kind.TENSOR, Kind.VIEWS, *SIGNALS)  # kinds that users get as tensors
_FORMAT = 1  # version of the JSON form
_LONGEST_WORDS = 400  # characters: twice what a recipe of ten ops has
_MAX_JSON_BYTES = 1 << 16  # a recipe is a few hundred bytes


class Pipeline:
    """All preprocessing of a sample, from the bytes of its file to the tensor the model sees.

    A pipeline checks itself when it is built: every op must accept what the op before it gives. It cannot be changed
    afterwards, and its fingerprint identifies it on both sides of the link.

    Args:
        ops: Ops in order, the first one taking encoded bytes: `Decode`, or the decoder of another kind of data. A
            callable that is not an op becomes a `Call`: it stays on the trainer, and so does everything after it.
            `Views` become several ops, one for each stage.
        fields: Name and kind of each further field that accompanies the picture: masks, boxes. The payload of such a
            sample holds all of them and the picture's size (`codec.targets`); only the trainer processes them. None if
            nothing follows the picture; there may be none that cross the link, as where boxes are columns.

    Attributes:
        ops: The ops of the pipeline.
        specs: Specs before the first op and after each op.
        fingerprint: Identifies the pipeline on both sides of the link.
        is_joint: Whether targets follow the picture, so that its payload comes with fields and its size.
        portable: How many of the first ops can be sent to another machine.
        drawable: How many of the first ops have parameters that a storage node can draw; it knows boxes only from a
            field.
        max_cut: How many of the first ops can run near storage.
        looks: Whether an op's draws depend on the boxes of a sample, which must then come with the key.
        first_call: The position of the first step that uses the global generators, or the number of ops if none does.
        crop: The position of the first op that crops, if all ops between it and Decode can work on a part.
        notes: Cached facts about the pipeline, so that they need not be computed for every sample.
    """

    __slots__ = (
        "_fused", "_last_random", "crop", "drawable", "fields", "fingerprint", "first_call", "is_joint", "looks",
        "max_cut", "notes", "ops", "portable", "specs",
    )  # fmt: skip

    ops: tuple[Op, ...]
    fields: tuple[tuple[str, str], ...]
    specs: tuple[Spec, ...]
    fingerprint: str
    is_joint: bool
    portable: int
    drawable: int
    max_cut: int
    looks: bool
    first_call: int
    crop: int | None
    notes: dict[Any, Any]
    _fused: dict[int, tuple[Fused, ...]]
    _last_random: int

    def __init__(
        self, ops: Iterable[Op | Callable[[Any], Any]], fields: Iterable[tuple[str, str]] | None = None
    ) -> None:
        told = tuple(map(as_call, ops))
        if not 1 <= len(told) <= MOST_STEPS:
            raise ConfigError(f"expected 1 to {MOST_STEPS} ops, got {len(told)}")
        found: list[Op] = []
        specs = [ENCODED]
        for position, op in enumerate(told):
            try:
                if isinstance(op, Call):
                    op = op_for(op.function, specs[-1]) or op  # noqa: PLW2901 - the op at this position
                for stage in op.divided(specs[-1]) if isinstance(op, Views) else (op,):
                    specs.append(stage.output(specs[-1]))
                    found.append(stage)
            except ConfigError as error:
                raise ConfigError(f"op {position}: {error}") from error
        steps = _with_metadata(tuple(found), specs)
        along = _checked_fields(() if fields is None else tuple(fields))
        first = steps[0]
        takes_bundle = isinstance(first, Decoder) and bool(first.fields)
        is_joint = fields is not None and not takes_bundle
        if isinstance(first, Decoder) and first.fields:
            if along not in ((), first.fields):
                raise ConfigError(f"fields: {first.name()} decodes {first.fields} with the first field; leave them out")
            along = _checked_fields(first.fields)
        spec = [op.to_spec() for op in steps]
        text = _canonical([spec, along] if along or is_joint else spec)
        set_ = object.__setattr__
        set_(self, "ops", steps)
        set_(self, "fields", along)
        set_(self, "specs", tuple(specs))
        set_(self, "fingerprint", hashlib.sha256(text.encode()).hexdigest()[:32])
        set_(self, "is_joint", is_joint)
        set_(self, "_fused", fuse(steps))
        # Facts that every sample needs are computed once.
        set_(self, "portable", _first(steps, lambda op: not op.portable))
        set_(self, "drawable", _drawable(steps, along))
        set_(self, "max_cut", min(self.portable, self.drawable))
        set_(self, "looks", any(op.looks for op in steps))
        set_(self, "first_call", _first(steps, lambda op: op.is_own))
        set_(self, "crop", first_crop(steps))
        set_(self, "_last_random", max((position for position, op in enumerate(steps) if op.random), default=-1))
        set_(self, "notes", {})

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"a pipeline cannot be changed; build a new one instead of setting {name}")

    @classmethod
    def from_torchvision(cls, transform: Any) -> Pipeline:
        """Return the pipeline of a torchvision transform, v1 or v2, as applied to the pictures of an ImageFolder.

        A transform from torchvision or timm becomes an op where the op is proven to give the same bits for its input.
        Any other callable runs unchanged on the trainer, seeded per sample.
        """
        return cls(ops_from_transform(transform))

    @property
    def takes_bundle(self) -> bool:
        """Whether the fields of a sample are decoded together, by the first op."""
        return isinstance(self.ops[0], Decoder) and bool(self.ops[0].fields)

    @property
    def reach(self) -> int:
        """The number of ops that a storage node is told about: those it can run, and those up to the crop."""
        return self.portable if self.crop is None else max(self.portable, self.crop + 1)

    def run(
        self,
        value: Value,
        key: Key,
        start: int = 0,
        stop: int | None = None,
        out: Tensor | None = None,
        trace: Trace | None = None,
    ) -> Value:
        """Run ops[start:stop] on a value that ops[:start] have produced.

        Args:
            value: Input of the first op: the bytes of a file if start is 0.
            key: Seed, epoch and sample, on which all random ops depend.
            start: The first op.
            stop: One past the last op; by default all ops.
            out: Array for the result. It is used where that saves a copy; otherwise the result is a new value.
            trace: Records the cost of each op, if given.

        Raises:
            OpError: An op failed; the message says which one, on which sample and what to try.
        """
        end = len(self.ops) if stop is None else stop
        if not 0 <= start <= end <= len(self.ops):
            raise ConfigError(f"expected 0 ≤ start ≤ stop ≤ {len(self.ops)}, got {start} and {end}")
        position = start
        while position < end:
            fused = self._fusion(position, end, trace is not None)
            after = position + (1 if fused is None else fused.span)
            params: list[Params] = []
            between: list[int] = []  # sizes that intermediate results would have if the ops ran one by one
            spec = spec_of(value)
            at = position
            try:
                by_op = self.specs[position].kind in _ARRAYS
                value = met(self.ops[position], value, spec, by_op=by_op)
                for at in range(position, after):
                    op = self.ops[at]
                    seen = self._seen(at, key, spec) if op.looks else spec
                    params.append(drawn(op, key, at, seen) if op.random else None)
                    if at + 1 < after and (trace is not None or at < self._last_random):
                        spec = op.output(spec)
                        if trace is not None:
                            between.append(spec.size_bytes)
                if fused is not None:
                    value = fused.run(value, params, out if after == end else None)
                else:
                    value = op.apply(value, params[0])
            except OpError as error:
                raise error.at(title(self.ops[at]), at, int(key.sample)) from error.__cause__
            except Error:
                raise
            except Exception as error:
                told = OpError(f"{type(error).__name__}: {str(error).removesuffix('.')}.", remedy=known_remedy(error))
                raise told.at(title(self.ops[at]), at, int(key.sample)) from error
            if trace is not None:
                trace.passed(position, after, value, between)
            position = after
        return value

    def _seen(self, position: int, key: Key, spec: Spec) -> Spec:
        """Return the spec of an op's input, with the sample's objects where the earlier ops have placed them."""
        if key.sight is None:
            return spec
        seen = key.sight
        for at, op in enumerate(self.ops[1:position], start=1):
            seen = op.passed(seen, op.draw(Rng(key, at), seen) if op.random else None)
        if (seen.height, seen.width) != (spec.height, spec.width):
            raise OpError(f"the picture has {spec.width}×{spec.height} pixels, expected {seen.width}×{seen.height}.")
        return spec.with_objects(seen.objects)

    def _fusion(self, position: int, end: int, is_traced: bool) -> Fused | None:
        """Return the longest fusion that begins at a position and does not reach beyond the end.

        When ops are timed, fusions across a possible cut are not used: they would hide the costs on either side.
        """
        for fused in self._fused.get(position, ()):
            if position + fused.span <= end and not (is_traced and fused.hides):
                return fused
        return None

    def to_spec(self) -> dict[str, Json]:
        """Return the pipeline as JSON values."""
        ops = [op.to_spec() for op in self.ops]
        has_fields = self.fields or self.is_joint
        return {"format": _FORMAT, "ops": ops} | ({"fields": [list(one) for one in self.fields]} if has_fields else {})

    def to_json(self) -> str:
        """Return the pipeline as JSON text, one line per op."""
        ops = ",\n".join(f"    {json.dumps(op.to_spec(), allow_nan=False)}" for op in self.ops)
        fields = f',\n  "fields": {json.dumps(self.fields)}' if self.fields or self.is_joint else ""
        return f'{{\n  "format": {_FORMAT},\n  "ops": [\n{ops}\n  ]{fields}\n}}'

    @classmethod
    def from_spec(cls, spec: Json) -> Pipeline:
        """Return the pipeline that JSON values describe; unknown ops, versions and parameters are rejected."""
        pipeline, problem = cls.known_part(spec)
        if problem is not None:
            raise problem
        return cls(()) if pipeline is None else pipeline

    @classmethod
    def known_part(cls, spec: Json) -> tuple[Pipeline | None, ConfigError | None]:
        """Return the longest prefix of a pipeline in JSON that can be built here, and why it is not longer.

        Every op is examined once, in order, up to the first invalid one. Returns None if the very first op is invalid.
        """
        steps: list[Op] = []
        fields: Json = None
        try:
            specs = [ENCODED]
            parts = _parts(spec)
            fields = _checked_fields(spec["fields"]) if "fields" in spec else None
            for position, part in enumerate(parts):
                try:
                    op = op_from_spec(part)
                    specs.append(op.output(specs[-1]))
                except ConfigError as error:
                    raise ConfigError(f"op {position}: {error}") from error
                steps.append(op)
        except ConfigError as error:
            return (cls(steps, fields) if steps else None), error
        return (cls(steps, fields) if steps else None), None

    @classmethod
    def from_json(cls, text: str) -> Pipeline:
        """Return the pipeline that JSON text describes."""
        if len(text) > _MAX_JSON_BYTES:
            raise ConfigError(f"expected a pipeline of at most {_MAX_JSON_BYTES:,} bytes of JSON, got {len(text):,}")
        try:
            spec = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"expected a pipeline in JSON: {error}; give the output of pipeline.to_json()") from error
        return cls.from_spec(spec)

    def prefix(self, stop: int) -> Pipeline:
        """Return the pipeline of the first ops only, which is all that a storage node needs to know."""
        return self.with_ops(self.ops[:stop])

    def with_ops(self, ops: Iterable[Op]) -> Pipeline:
        """Return a pipeline of other ops for samples with the same fields."""
        return Pipeline(ops, self._given_fields)

    def along(self, fields: Iterable[tuple[str, str]]) -> Pipeline:
        """Return the same pipeline for samples with further fields, each by name and kind."""
        return Pipeline(self.ops, fields)

    def describe(self) -> str:
        """Return one line per op: its result, whether it is random, and why it stays on the trainer if it does."""
        lines = []
        width = max(len(title(op)) for op in self.ops)
        for position, (op, spec) in enumerate(zip(self.ops, self.specs[1:], strict=True)):
            notes = ["random"] if op.random else []
            if isinstance(op, Call):
                notes = [f"trainer only: {op.reason}"]
            elif isinstance(op, Views):
                notes += _notes_on_views(op)
            elif isinstance(op, OnTensor):
                region = "; a region of the picture is enough" if position < self.reach else ""
                notes.append(f"trainer only: on torch tensors{region}")
            if position >= self.max_cut and not any("trainer only" in note for note in notes):
                notes.append("trainer only: after a trainer-only step")
            lines.append(f"{position}  {title(op):<{width}} → {spec!s:<24} {', '.join(notes)}".rstrip())
        return "\n".join(lines)

    @property
    def _given_fields(self) -> tuple[tuple[str, str], ...] | None:
        return self.fields if self.is_joint else None

    @property
    def _identity(self) -> tuple[tuple[Op, ...], tuple[tuple[str, str], ...] | None]:
        return self.ops, self._given_fields

    def __len__(self) -> int:
        return len(self.ops)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Pipeline) and self._identity == other._identity

    def __hash__(self) -> int:
        return hash(self._identity)

    def __repr__(self) -> str:
        return f"Pipeline([{', '.join(map(repr, self.ops))}])"

    def __reduce__(self) -> tuple[object, ...]:
        return (Pipeline, self._identity)  # for spawned worker processes; slots and fusions are rebuilt


def _first(ops: Sequence[Op], is_it: Callable[[Op], bool]) -> int:
    """Return the position of the first op that meets the condition, or the number of ops if none does."""
    return next((position for position, op in enumerate(ops) if is_it(op)), len(ops))


def _drawable(ops: Sequence[Op], fields: Sequence[tuple[str, str]]) -> int:
    """Return the number of leading ops whose parameters a storage node can draw."""
    if sum(kind.partition(":")[0] == _BOXES for _, kind in fields) == 1:
        return len(ops)
    return _first(ops, lambda op: op.looks)


def _parts(spec: Json) -> list[Json]:
    """Return the ops of a pipeline in JSON, after checking that they are few and small."""
    if not isinstance(spec, dict) or not isinstance(spec.get("ops"), list):
        raise ConfigError('expected a pipeline as {"format": 1, "ops": […]}')
    parts: list[Json] = spec["ops"]
    if len(parts) > MOST_STEPS:
        raise ConfigError(f"expected at most {MOST_STEPS} ops, got {len(parts)}")
    check_bounds(spec)
    if spec.get("format") != _FORMAT:
        raise ConfigError(f"expected pipeline format {_FORMAT}, got {spec.get('format')!r}; install the same release")
    return parts


def _checked_fields(said: Json) -> tuple[tuple[str, str], ...]:
    """Return the names and kinds of fields, which may come from the network."""
    found = list(said) if isinstance(said, list | tuple) else None
    if found is None or len(found) >= MOST_STEPS:
        raise ConfigError(f"expected a list of fewer than {MOST_STEPS} fields")
    for one in found:
        if not isinstance(one, list | tuple) or len(one) != 2 or not all(isinstance(t, str) and t for t in one):
            raise ConfigError(f"expected the name and kind of a field, got {one!r:.80}")
    if len({name for name, _ in found}) < len(found):
        raise ConfigError("expected fields with different names")
    return tuple((name, kind) for name, kind in found)


def _with_metadata(steps: tuple[Op, ...], specs: Sequence[Spec]) -> tuple[Op, ...]:
    """Return the steps, with Decode told whether user code will see the picture."""
    first = steps[0]
    if not isinstance(first, Decode):
        return steps
    given = list(zip(steps, specs, strict=False))
    ways = [given]
    for op, spec in given:
        if isinstance(op, Views) and op.is_own:
            ways += [list(zip(*way, strict=False)) for way in zip(op.views, op.specs(spec), strict=True)]
    if not any(map(_may_look_at_metadata, ways)):
        return steps
    return (replace(first, metadata=True), *steps[1:])


def _may_look_at_metadata(given: Sequence[tuple[Op, Spec]]) -> bool:
    """Return whether user code will see the picture, given the steps and the input of each."""
    calls = [(op, spec) for op, spec in given if isinstance(op, Call)]
    if not calls or calls[0][1].kind is not Kind.IMAGE:
        return False
    # albumentations gets an array, so no step after it sees the file's picture.
    given_pictures = takewhile(lambda call: not is_albumentations(call.function), [op for op, _ in calls])
    return any(call.may_look_at_metadata for call in given_pictures)


def title(op: Op) -> str:
    """Return the name of a step for display."""
    if isinstance(op, OnTensor) and op.name_of:
        return op.name_of
    return op.title if isinstance(op, Call) else op.name()


def _notes_on_views(op: Views) -> list[str]:
    """Return the distinct step sequences of all views, and whether the views stay on the trainer."""
    ways = dict.fromkeys(" + ".join(map(title, steps)) or "as it is" for steps in op.views)
    return [" or ".join(ways), *(["trainer only: a view has a step of your own"] if op.is_own else [])]


def in_words(pipeline: Pipeline) -> str:
    """Return a one-line description of a pipeline for display: its steps with their settings."""
    text = ", ".join(map(_step_in_words, pipeline.ops))
    return text if len(text) <= _LONGEST_WORDS else text[:_LONGEST_WORDS] + "…"


def _step_in_words(op: Op) -> str:
    if isinstance(op, Call | OnTensor):
        return title(op)
    if isinstance(op, Views):
        counts = Counter(" + ".join(map(_step_in_words, steps)) or "nothing" for steps in op.views)
        return f"Views({', '.join(f'{count} × {words}' for words, count in counts.items())})"
    said = [f"{f.name}={getattr(op, f.name)!r}" for f in fields(op) if f.init and getattr(op, f.name) != f.default]
    return f"{op.name()}({', '.join(said)})" if said else op.name()


def _canonical(value: Json) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
