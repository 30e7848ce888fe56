"""The contract of an op: a frozen dataclass that declares what it does to a sample, and does it.

An op that breaks any of these rules has a bug:

- Its fields are JSON values (numbers, strings, booleans, None, tuples of them, other ops) and fully determine what it
  does; `__post_init__` brings them into canonical form and raises `ConfigError` for anything that cannot work. A field
  that is not compared (``field(compare=False)``) stays in its process and is not part of the spec.
- `output` is the spec of what `apply` returns, for every input that `output` accepts; it may give None for a dimension
  it cannot know, and raises `ConfigError` for an input the op can never take.
- `draw` uses the given `Rng` and the input's spec, never the pixels, so that the parameters of any future epoch can be
  known before the picture is decoded. An op without randomness does not define `draw`. An op with `looks` set also uses
  the boxes of objects, which the caller has put into the spec; `placed` says where they are after an op.
- The first op of a pipeline is a `Decoder`, one for each kind of data: pictures, sound, volumes. Its result has axes,
  and a box is an interval on each of them (`part.Box`).
- `apply` is a pure function of (value, params), gives the same bits on every machine, and never changes its input. It
  raises on a value of a kind other than `takes`; no op passes on a value that it does not understand (`Pipeline.run`
  checks this too).
- `boxes_needed`, `boxes_before` and `sizes_made` give for many pictures at once what `draw`, `box_needed`, `box_before`
  and `made` give for one, to the last bit. They are optional: without them pictures are examined one by one, which
  takes half a minute for a plan of a million samples (`tests/pipeline/test_many_boxes.py`).
- A change that affects any bit of a result requires a new `version`.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Sequence
from typing import Any, ClassVar, TypeAlias

from sophon.errors import ConfigError
from sophon.pipeline.part import Box
from sophon.pipeline.rng import Key, Rng
from sophon.pipeline.spec import SIGNALS, Kind, Objects, Spec, Value
from sophon.pipeline.streams import Boxes, Sizes, Streams

Params: TypeAlias = Any
Json: TypeAlias = Any


@dataclasses.dataclass(frozen=True)
class Op:
    """One preprocessing step."""

    version: ClassVar[int] = 1
    takes: ClassVar[Kind]
    modes: ClassVar[tuple[str, ...]] = ()  # modes of pictures that the op takes, besides RGB and L
    still: ClassVar[bool] = False  # every pixel, and every object in the picture, stays in its place

    @classmethod
    def name(cls) -> str:
        """Return the name under which the op is registered."""
        return cls.__name__

    @property
    def kind(self) -> Kind:
        """The kind of value that this op takes; `Kind.OBJECT` if the op checks its input itself."""
        return self.takes

    def output(self, spec: Spec) -> Spec:
        """Return the spec of the result for an input of the given spec."""
        raise NotImplementedError

    def draw(self, rng: Rng, spec: Spec) -> Params:  # noqa: ARG002 - part of the contract
        """Return the random parameters for an input of the given spec; None for an op without randomness."""
        return None

    def made(self, spec: Spec, params: Params) -> Spec:  # noqa: ARG002 - part of the contract
        """Return the spec of the result given the parameters, which may be more precise than `output`."""
        return self.output(spec)

    def placed(self, spec: Spec, params: Params) -> Objects | None:  # noqa: ARG002 - part of the contract
        """Return the positions of an input's objects in the result; None if not known."""
        return spec.objects if self.still else None

    def passed(self, spec: Spec, params: Params) -> Spec:
        """Return the spec of `made`, with the objects in their new places."""
        made = self.made(spec, params)
        return made if spec.objects is None else made.with_objects(self.placed(spec, params))

    def apply(self, value: Value, params: Params) -> Value:
        """Return the result for the given parameters."""
        raise NotImplementedError

    def box_needed(self, spec: Spec, params: Params) -> Box | None:  # noqa: ARG002 - part of the contract
        """Return the box of the input that the output is made from; None if it needs the whole input.

        An op that returns a box also accepts a `Part` that contains it.
        """
        return None

    def box_before(self, box: Box, spec: Spec, params: Params) -> Box | None:  # noqa: ARG002 - part of the contract
        """Return the box of the input that a box of the output is made from; None if it needs the whole input.

        An op that returns a box also turns a `Part` into a `Part`.
        """
        return None

    def boxes_needed(self, streams: Streams, sizes: Sizes) -> Boxes | None:  # noqa: ARG002 - part of the contract
        """Return `box_needed` for many inputs at once, with the box of the whole picture in place of None.

        None if pictures have to be examined one by one.
        """
        return None

    def boxes_before(self, boxes: Boxes, streams: Streams, sizes: Sizes) -> Boxes | None:  # noqa: ARG002
        """Return `box_before` for many inputs at once; None as in `boxes_needed`."""
        return None

    def sizes_made(self, sizes: Sizes) -> Sizes | None:  # noqa: ARG002 - part of the contract
        """Return the sizes of many outputs; None as in `boxes_needed`."""
        return None

    @property
    def crops(self) -> bool:
        """Whether the op may need only a box of its input."""
        return type(self).box_needed is not Op.box_needed

    @property
    def passes(self) -> bool:
        """Whether a box of the output depends only on a box of the input."""
        return type(self).box_before is not Op.box_before

    @property
    def places(self) -> bool:
        """Whether the positions of objects after this op are known."""
        return self.still or type(self).placed is not Op.placed

    @property
    def random(self) -> bool:
        """Whether the result depends on the epoch."""
        return type(self).draw is not Op.draw

    @property
    def looks(self) -> bool:
        """Whether the op's random draws also depend on the boxes of objects."""
        return False

    @property
    def portable(self) -> bool:
        """Whether the op can be sent to another machine as a spec."""
        return True

    @property
    def is_own(self) -> bool:
        """Whether the op runs user code, which may draw from the global generators."""
        return False

    def to_spec(self) -> dict[str, Json]:
        """Return the op as JSON values."""
        fields = {f.name: _to_json(getattr(self, f.name)) for f in dataclasses.fields(self) if f.compare}
        return {"op": self.name(), "version": self.version, **fields}

    def _where(self, field: str) -> str:
        return f"{self.name()}.{field}"

    def _set(self, **fields: object) -> None:
        """Set fields to their canonical values; for `__post_init__` only."""
        for name, value in fields.items():
            object.__setattr__(self, name, value)

    def _check_kind(self, spec: Spec) -> None:
        """Raise unless the input has the kind this op takes (an unknown kind is checked at run time)."""
        if spec.kind not in (self.takes, Kind.OBJECT):
            article = "a" if self.takes is Kind.TENSOR else "an"
            first = f"{self.name()} takes {article} {self.takes.value}, but the op before it gives {spec}"
            raise ConfigError(f"{first}; {_remedy(self.takes, spec.kind)}")
        if spec.mode and spec.mode not in self.modes:
            known = ", ".join(("RGB", "L", *self.modes))
            raise ConfigError(
                f"{self.name()} takes pictures in mode {known}, but the op before it gives {spec}; "
                'leave it out, or use Decode(mode="RGB")'
            )


@dataclasses.dataclass(frozen=True)
class Decoder(Op):
    """The first op of a pipeline: decodes the bytes of a file to a value with axes."""

    takes: ClassVar[Kind] = Kind.ENCODED
    data: ClassVar[str]  # the kind of field that it decodes, as in `store.fields`; determines windows and costs

    @property
    def fields(self) -> tuple[tuple[str, str], ...]:
        """Names and kinds of further fields that are decoded together with the first; the input is then a bundle."""
        return ()

    @property
    def gives_parts(self) -> bool:
        """Whether a part of the output can be decoded without the rest, if later ops need no more."""
        return True

    def sized(self, sizes: Sequence[int]) -> Spec:
        """Return the spec of the output for a file of this size along each axis, as far as it is known."""
        raise NotImplementedError

    def specimen(self) -> bytes:
        """Return a small synthetic file, on which the op is tested (`pipeline.probe`)."""
        raise NotImplementedError

    def within(self, most: int) -> Decoder:  # noqa: ARG002 - part of the contract
        """Return this op with a limit of at most this many elements per value."""
        return self


class _Last(threading.local):
    """The last draw of a thread, and its input."""

    kept: tuple[Op, Key, int, Spec, Params] | None = None


_last = _Last()


def drawn(op: Op, key: Key, position: int, spec: Spec) -> Params:
    """Return the parameters of a random op; the last draw of a thread is reused.

    The box of a crop is needed twice: to know which part of a file to decode, and to crop.
    """
    last = _last.kept
    if last is not None and last[0] is op and last[1] is key and last[2] == position and last[3] == spec:
        return last[4]
    params = op.draw(Rng(key, position), spec)
    if not op.looks and spec.objects is None:  # comparisons of specs ignore objects
        _last.kept = (op, key, position, spec, params)
    return params


def first_crop_of(ops: Sequence[Op]) -> int | None:
    """Return the index of the first op that crops, if every op before it can work on a part."""
    for index, op in enumerate(ops):
        if op.crops:
            return index
        if not op.passes:
            return None
    return None


def _to_json(value: object) -> Json:
    if isinstance(value, Op):
        return value.to_spec()
    if isinstance(value, tuple):
        return [_to_json(part) for part in value]
    return value


def _remedy(takes: Kind, found: Kind) -> str:
    """Return the remedy for an op whose input is of the wrong kind."""
    if takes is Kind.ENCODED:
        return "put it first, where it gets the bytes of the file"
    if found is Kind.ENCODED:
        return "begin the pipeline with Decode()"
    if found in SIGNALS or takes in SIGNALS:
        return (
            f"there are other ops for {found.value}" if found in SIGNALS else f"begin with a decoder for {takes.value}"
        )
    return "put it after ToTensor()" if takes is Kind.TENSOR else "put it before the op that makes a tensor"
