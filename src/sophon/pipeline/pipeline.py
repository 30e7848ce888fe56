"""Pipeline: an immutable sequence of ops that can be divided at any point and still yields the same bits."""

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
from sophon.pipeline.op import Decoder, Json, Op, Params
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

_BOXES = "boxes"  # kind of field, as in `store.fields`
_ARRAYS = (Kind.TENSOR, Kind.VIEWS, *SIGNALS)  # what users see tensors of
_FORMAT = 1  # of the JSON form
_LONGEST_WORDS = 400  # characters: a recipe of ten ops has half of them
_MAX_JSON_BYTES = 1 << 16  # a recipe is a few hundred bytes


class Pipeline:
    """What is done to a sample, from the bytes of its file to the tensor the model sees.

    A pipeline checks itself when it is built: every op must accept what the op before it gives. It cannot be changed
    afterwards, and its fingerprint names it on both sides of the link.

    Args:
        ops: Ops in order, the first one taking encoded bytes: `Decode`, or the decoder of another kind of data. A
            callable that is not an op becomes a `Call`: it stays on the trainer, and so does everything after it.
            `Views` become several ops, one for each stage.
        fields: Name and kind of each further field of a sample that goes along with the picture: masks, boxes. The
            payload of such a sample holds them all (`codec.targets`); what is done to them is for the trainer alone.
    """

    __slots__ = ("_fused", "fields", "fingerprint", "ops", "specs")

    ops: tuple[Op, ...]
    fields: tuple[tuple[str, str], ...]
    specs: tuple[Spec, ...]
    fingerprint: str
    _fused: dict[int, tuple[Fused, ...]]

    def __init__(self, ops: Iterable[Op | Callable[[Any], Any]], fields: Iterable[tuple[str, str]] = ()) -> None:
        told = tuple(map(as_call, ops))
        if not 1 <= len(told) <= MOST_STEPS:
            raise ConfigError(f"expected 1 to {MOST_STEPS} ops, got {len(told)}")
        found: list[Op] = []
        specs = [ENCODED]
        for position, op in enumerate(told):
            try:
                for stage in op.divided(specs[-1]) if isinstance(op, Views) else (op,):
                    specs.append(stage.output(specs[-1]))
                    found.append(stage)
            except ConfigError as error:
                raise ConfigError(f"op {position}: {error}") from error
        steps = _with_metadata(tuple(found), specs)
        along = _checked_fields(tuple(fields))
        first = steps[0]
        if isinstance(first, Decoder) and first.fields:
            if along not in ((), first.fields):
                raise ConfigError(f"fields: {first.name()} decodes {first.fields} with the first; leave them out")
            along = _checked_fields(first.fields)
        spec = [op.to_spec() for op in steps]
        text = _canonical([spec, along] if along else spec)
        set_ = object.__setattr__
        set_(self, "ops", steps)
        set_(self, "fields", along)
        set_(self, "specs", tuple(specs))
        set_(self, "fingerprint", hashlib.sha256(text.encode()).hexdigest()[:32])
        set_(self, "_fused", fuse(steps))

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"a pipeline cannot be changed; build another one instead of setting {name}")

    @classmethod
    def from_torchvision(cls, transform: Any) -> Pipeline:
        """Return the pipeline of a torchvision transform, v1 or v2, that is applied to the picture of an ImageFolder.

        Transforms of torchvision and timm become ops where an op is proven to give their bits for the value that they
        meet. Any other callable runs on the trainer as it is, seeded per sample.
        """
        return cls(ops_from_transform(transform))

    @property
    def takes_bundle(self) -> bool:
        """Whether the fields of a sample are decoded together, by the first op."""
        return isinstance(self.ops[0], Decoder) and bool(self.ops[0].fields)

    @property
    def portable(self) -> int:
        """The number of ops, from the first, that can be sent to another machine."""
        for position, op in enumerate(self.ops):
            if not op.portable:
                return position
        return len(self.ops)

    @property
    def drawable(self) -> int:
        """The number of ops, from the first, whose parameters a storage node knows: it has no boxes but in a field."""
        if sum(kind.partition(":")[0] == _BOXES for _, kind in self.fields) == 1:
            return len(self.ops)
        return next((position for position, op in enumerate(self.ops) if op.looks), len(self.ops))

    @property
    def max_cut(self) -> int:
        """The number of ops, from the first, that can run near storage."""
        return min(self.portable, self.drawable)

    @property
    def looks(self) -> bool:
        """Whether an op draws by the boxes of a sample, which then have to come with the key."""
        return any(op.looks for op in self.ops)

    @property
    def first_call(self) -> int:
        """The position of the first step that uses the global generators, or the number of ops if none does."""
        for position, op in enumerate(self.ops):
            if op.is_own:
                return position
        return len(self.ops)

    @property
    def reach(self) -> int:
        """The number of ops that a storage node is told: those it can run, and those up to the crop."""
        crop = first_crop(self.ops)
        return self.portable if crop is None else max(self.portable, crop + 1)

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
            stop: After the last op; by default all.
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
                by_op = self.specs[position].kind in _ARRAYS
                value = met(self.ops[position], value, spec, by_op=by_op)
                for at in range(position, after):
                    op = self.ops[at]
                    seen = self._seen(at, key, spec) if op.looks else spec
                    drawn.append(op.draw(Rng(key, at), seen) if op.random else None)
                    if at + 1 < after:
                        spec = op.output(spec)
                        between.append(spec.size_bytes)
                if fused is not None:
                    value = fused.run(value, drawn, out if after == end else None)
                else:
                    value = op.apply(value, drawn[0])
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
        """Return the spec of what an op is given, with the sample's objects where the ops before it put them."""
        if key.sight is None:
            return spec
        seen = key.sight
        for at, op in enumerate(self.ops[1:position], start=1):
            seen = op.passed(seen, op.draw(Rng(key, at), seen) if op.random else None)
        if (seen.height, seen.width) != (spec.height, spec.width):
            raise OpError(
                f"a picture of {spec.width}×{spec.height} pixels, where one of {seen.width}×{seen.height} was expected."
            )
        return spec.with_objects(seen.objects)

    def _fusion(self, position: int, end: int) -> Fused | None:
        """Return the longest fusion that begins at a position and does not reach beyond the end."""
        for fused in self._fused.get(position, ()):
            if position + fused.span <= end:
                return fused
        return None

    def to_spec(self) -> dict[str, Json]:
        """Return the pipeline as JSON values."""
        ops = [op.to_spec() for op in self.ops]
        return {"format": _FORMAT, "ops": ops} | ({"fields": [list(one) for one in self.fields]} if self.fields else {})

    def to_json(self) -> str:
        """Return the pipeline as JSON text, one line per op."""
        ops = ",\n".join(f"    {json.dumps(op.to_spec(), allow_nan=False)}" for op in self.ops)
        fields = f',\n  "fields": {json.dumps(self.fields)}' if self.fields else ""
        return f'{{\n  "format": {_FORMAT},\n  "ops": [\n{ops}\n  ]{fields}\n}}'

    @classmethod
    def from_spec(cls, spec: Json) -> Pipeline:
        """Return the pipeline that JSON values describe; unknown ops, versions and parameters are refused."""
        pipeline, problem = cls.known_part(spec)
        if problem is not None:
            raise problem
        return cls(()) if pipeline is None else pipeline

    @classmethod
    def known_part(cls, spec: Json) -> tuple[Pipeline | None, ConfigError | None]:
        """Return the longest prefix of what JSON values describe that can be built here, and why it is not longer.

        Every op is looked at once, in order, up to the first that is wrong. None if that is the very first.
        """
        steps: list[Op] = []
        fields: Json = ()
        try:
            specs = [ENCODED]
            parts = _parts(spec)
            fields = _checked_fields(spec.get("fields", ()))
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
            raise ConfigError(f"not a pipeline in JSON: {error}; write what pipeline.to_json() gives") from error
        return cls.from_spec(spec)

    def prefix(self, stop: int) -> Pipeline:
        """Return the pipeline of the first ops only: what a storage node needs to know."""
        return Pipeline(self.ops[:stop], self.fields)

    def along(self, fields: Iterable[tuple[str, str]]) -> Pipeline:
        """Return the same pipeline for samples with further fields, each by name and kind."""
        return Pipeline(self.ops, fields)

    def describe(self) -> str:
        """Return one line per op: what it gives, whether it is random, and why it stays on the trainer if it does."""
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

    def __len__(self) -> int:
        return len(self.ops)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Pipeline) and (self.ops, self.fields) == (other.ops, other.fields)

    def __hash__(self) -> int:
        return hash((self.ops, self.fields))

    def __repr__(self) -> str:
        return f"Pipeline([{', '.join(map(repr, self.ops))}])"

    def __reduce__(self) -> tuple[object, ...]:
        return (Pipeline, (self.ops, self.fields))  # for spawned worker processes; slots and fusions are rebuilt


def _parts(spec: Json) -> list[Json]:
    """Return the ops of a pipeline in JSON, all of which are small enough to be looked at."""
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
    """Return names and kinds of fields, which may have been sent by somebody."""
    found = list(said) if isinstance(said, list | tuple) else None
    if found is None or len(found) >= MOST_STEPS:
        raise ConfigError(f"expected a list of fewer than {MOST_STEPS} fields")
    for one in found:
        if not isinstance(one, list | tuple) or len(one) != 2 or not all(isinstance(t, str) and t for t in one):
            raise ConfigError(f"expected the name and kind of a field, got {one!r:.80}")
    if len({name for name, _ in found}) < len(found):
        raise ConfigError("expected fields of different names")
    return tuple((name, kind) for name, kind in found)


def _with_metadata(steps: tuple[Op, ...], specs: Sequence[Spec]) -> tuple[Op, ...]:
    """Return the steps, of which Decode knows whether somebody's own code will look at the picture."""
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
    """Return whether somebody's own code will look at the picture, given steps and what each meets."""
    calls = [(op, spec) for op, spec in given if isinstance(op, Call)]
    if not calls or calls[0][1].kind is not Kind.IMAGE:
        return False
    # Albumentations is given an array, and whatever comes after it has no picture of the file any more.
    given_pictures = takewhile(lambda call: not is_albumentations(call.function), [op for op, _ in calls])
    return any(call.may_look_at_metadata for call in given_pictures)


def title(op: Op) -> str:
    """Return the name of a step, for people."""
    if isinstance(op, OnTensor) and op.name_of:
        return op.name_of
    return op.title if isinstance(op, Call) else op.name()


def _notes_on_views(op: Views) -> list[str]:
    """Return the steps of each view, equal ones once, and whether they stay on the trainer."""
    ways = dict.fromkeys(" + ".join(map(title, steps)) or "as it is" for steps in op.views)
    return [" or ".join(ways), *(["trainer only: a view has a step of your own"] if op.is_own else [])]


def in_words(pipeline: Pipeline) -> str:
    """Return what a pipeline does in one line, for people: its steps, with what is said of them."""
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
