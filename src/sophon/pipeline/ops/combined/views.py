"""Views: several results from one picture, each with its own steps and random draws.

A pipeline divides the steps that users write into stages, so that a cut may be between them: the crops, other steps on
pictures, steps on tensors, and the user's own code. In each stage a view has its own steps, possibly none. The first
stage branches: before that stage there is one picture, and a window of it has to contain the boxes of all views; after
that stage there are several small pictures, and a payload is a bundle of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from sophon.errors import ConfigError, Error, OpError
from sophon.pipeline import checks
from sophon.pipeline.call import Call, as_call, met
from sophon.pipeline.known_failures import known_remedy
from sophon.pipeline.op import Op, first_crop_of
from sophon.pipeline.part import Box
from sophon.pipeline.rng import Rng
from sophon.pipeline.spec import ENCODED, Kind, Spec, Value, ViewSet, checked_arrangement, spec_of
from sophon.pipeline.streams import Boxes, Sizes, Streams, whole

if TYPE_CHECKING:  # `fuse` imports this module
    from sophon.pipeline.fuse import Fused

MOST_VIEWS = 64  # the most parts a bundle can have; DINO has ten
_MOST_STEPS = 64  # steps of one view

Steps = tuple[Op, ...]


@dataclass(frozen=True)
class Views(Op):
    """Make several views of one picture: ``Views([global_crop] * 2 + [local_crop] * 8)``.

    If the input already consists of views, each view continues with its own steps.

    Args:
        views: For each view an op, a callable, or a list of them. Every view draws separately, even where two have the
            same steps.
        container: Container for the views of a sample: "list", "tuple", or another arrangement; see
            `sophon.pipeline.spec.arrangement`.
    """

    views: tuple[Steps, ...]
    container: str = "list"
    takes: ClassVar[Kind] = Kind.OBJECT  # a picture or tensor, or views; `output` says what it refuses

    if TYPE_CHECKING:  # what users may write; the canonical form is tuples of tuples of ops

        def __init__(self, views: Sequence[Any], container: str = "list") -> None: ...

    def __post_init__(self) -> None:
        where = self._where("views")
        if isinstance(self.views, str | bytes) or not isinstance(self.views, Sequence) or not len(self.views):
            raise checks.fail(where, self.views, "a list of views: ops, or lists of ops")
        if len(self.views) > MOST_VIEWS:
            raise ConfigError(f"{where}: expected at most {MOST_VIEWS} views, got {len(self.views)}")
        self._set(
            views=tuple(_steps(where, view) for view in self.views),
            container=checked_arrangement(self._where("container"), self.container, len(self.views)),
        )

    @property
    def portable(self) -> bool:
        """Whether all steps of all views can be sent to another machine."""
        return all(op.portable for op in self._all)

    @property
    def is_own(self) -> bool:
        """Whether a view runs user code."""
        return any(op.is_own for op in self._all)

    @property
    def random(self) -> bool:
        """Whether a view depends on the epoch."""
        return any(op.random for op in self._all)

    @property
    def crops(self) -> bool:
        """Whether every view may need only a box of the picture."""
        return all(first_crop_of(steps) is not None for steps in self.views)

    @property
    def _all(self) -> Iterable[Op]:
        return (op for steps in self.views for op in steps)

    def output(self, spec: Spec) -> Spec:
        """Return the specs of all views."""
        return self._spec(each[-1] for each in self.specs(spec))

    def specs(self, spec: Spec) -> list[list[Spec]]:
        """Return the input spec of each view's steps, and the result of the last one."""
        found = []
        for number, (steps, start) in enumerate(zip(self.views, self._starts(spec), strict=True)):
            specs = [start]
            for op in steps:
                try:
                    specs.append(op.output(specs[-1]))
                except ConfigError as error:
                    raise ConfigError(f"view {number}: {error}") from error
            found.append(specs)
        return found

    def _starts(self, spec: Spec) -> Sequence[Spec]:
        if spec.kind in (Kind.IMAGE, Kind.TENSOR):
            return [spec] * len(self.views)
        if spec.kind is Kind.VIEWS and len(spec.views) == len(self.views):
            return spec.views
        if spec.kind is Kind.ENCODED:
            raise ConfigError("Views takes a picture; begin the pipeline with Decode()")
        raise ConfigError(f"Views takes a picture, or {len(self.views)} views, but the op before it gives {spec}")

    def _spec(self, views: Iterable[Spec]) -> Spec:
        return Spec(Kind.VIEWS, (len(self.views),), self.container, views=tuple(views))

    def divided(self, spec: Spec) -> list[Views]:
        """Return the stages that replace this op in a pipeline.

        Dividing a stage again gives the same stage, so both ends have the same stages.
        """
        ends = [_ends(steps, specs) for steps, specs in zip(self.views, self.specs(spec), strict=True)]
        stages = []
        for low, high in zip((0, 1, 2, 3), (1, 2, 3, 4), strict=True):
            parts = [steps[each[low] : each[high]] for steps, each in zip(self.views, ends, strict=True)]
            if any(parts):
                stages.append(Views(tuple(parts), self.container))
        return stages or [self]

    def draw(self, rng: Rng, spec: Spec) -> Rng:  # noqa: ARG002 - part of the contract
        """Return the stream from which every step derives its own stream.

        A step draws once its input is known, which may not be possible in advance.
        """
        return rng

    def apply(self, value: Value, params: Rng | None) -> ViewSet:
        """Return all views."""
        return self.each(value, params, ())

    def each(self, value: Value, rng: Rng | None, fusions: Sequence[Mapping[int, tuple[Fused, ...]]]) -> ViewSet:
        """Return all views, with ops fused where that is possible.

        Args:
            value: The picture, or the views so far.
            rng: The result of `draw`.
            fusions: The fusions of each view, by position; none by default.
        """
        if isinstance(value, ViewSet) and len(value.values) != len(self.views):
            raise OpError(f"expected {len(self.views)} views, but the previous step gave {len(value.values)}.")
        starts = value.values if isinstance(value, ViewSet) else (value,) * len(self.views)
        made = []
        for number, (steps, start) in enumerate(zip(self.views, starts, strict=True)):
            run = _Run(steps, fusions[number] if fusions else {})
            try:
                made.append(run.run(start, rng, number))
            except OpError as error:
                problem = f"view {number}, {run.title}: {error.problem}"
                raise OpError(problem, remedy=error.remedy) from error.__cause__
            except Error:
                raise
            except Exception as error:
                problem = f"view {number}, {run.title}: {type(error).__name__}: {str(error).removesuffix('.')}."
                raise OpError(problem, remedy=known_remedy(error)) from error
        return ViewSet(tuple(made), self.container)

    def box_needed(self, spec: Spec, params: Rng | None) -> Box | None:
        """Return the smallest box that contains the boxes of all views."""
        found = []
        for number, steps in enumerate(self.views):
            box = None if spec.kind is Kind.VIEWS else _box(steps, spec, params, number)
            if box is None:
                return None
            found.append(box)
        top, left = min(box[0] for box in found), min(box[1] for box in found)
        bottom, right = max(box[0] + box[2] for box in found), max(box[1] + box[3] for box in found)
        return top, left, bottom - top, right - left

    def boxes_needed(self, streams: Streams, sizes: Sizes) -> Boxes | None:
        """Return the smallest boxes that contain the boxes of all views."""
        found: Boxes | None = None
        for number, steps in enumerate(self.views):
            boxes = _boxes(steps, streams, sizes, number)
            if boxes is None:
                return None
            found = boxes if found is None else _union(found, boxes)
        return found


def in_stages(ops: Iterable[Op]) -> list[Op]:
    """Return the ops of a pipeline, with views replaced by their stages."""
    found: list[Op] = []
    spec = ENCODED
    for op in ops:
        for stage in op.divided(spec) if isinstance(op, Views) else (op,):
            spec = stage.output(spec)
            found.append(stage)
    return found


class _Run:
    """One view while it is computed.

    Args:
        steps: Steps of the view.
        fusions: Steps that are done in one pass, by position.
    """

    def __init__(self, steps: Steps, fusions: Mapping[int, tuple[Fused, ...]]) -> None:
        self._steps = steps
        self._fusions = fusions
        self._at = 0

    @property
    def title(self) -> str:
        """The name of the running step."""
        op = self._steps[self._at]
        return op.title if isinstance(op, Call) else op.name()

    def run(self, value: Value, rng: Rng | None, view: int) -> Value:
        """Return the result of all steps on a value, with the random draws of a view."""
        while self._at < len(self._steps):
            first, fused = self._at, next(iter(self._fusions.get(self._at, ())), None)
            span = 1 if fused is None else fused.span
            spec, drawn = spec_of(value), []
            by_op = first == 0 or not isinstance(self._steps[first - 1], Call)
            value = met(self._steps[first], value, spec, by_op=by_op)
            for self._at in range(first, first + span):
                op = self._steps[self._at]
                drawn.append(op.draw(rng.inside(view, self._at), spec) if rng is not None and op.random else None)
                spec = op.output(spec) if self._at + 1 < first + span else spec
            value = op.apply(value, drawn[0]) if fused is None else fused.run(value, drawn, None)
            self._at += 1
        return value


def _steps(where: str, view: Any) -> Steps:
    steps = tuple(map(as_call, view)) if isinstance(view, list | tuple) else (as_call(view),)
    if len(steps) > _MOST_STEPS:
        raise ConfigError(f"{where}: expected at most {_MOST_STEPS} steps per view, got {len(steps)}")
    if any(isinstance(op, Views) for op in steps):
        raise ConfigError(f"{where}: expected no Views inside Views; put all views into one list")
    return steps


def _ends(steps: Steps, specs: Sequence[Spec]) -> tuple[int, int, int, int, int]:
    """Return where the stages of a view begin, and where the last one ends.

    First the steps up to the final size of the picture; then other picture steps that can run near storage; then tensor
    steps and trainer-only steps; and last, everything from the first user step on.
    """
    count = len(steps)
    own = next((at for at, op in enumerate(steps) if op.is_own), count)
    pictures = next((at for at in range(own) if not steps[at].portable or specs[at + 1].kind is not Kind.IMAGE), own)
    sized = max((at + 1 for at in range(pictures) if specs[at + 1] != specs[at]), default=0)
    return 0, sized, pictures, own, count


def _box(steps: Steps, spec: Spec, rng: Rng | None, view: int) -> Box | None:
    """Return the box of a picture that the steps of a view need; None if they need the whole picture."""
    passed: list[tuple[Op, Spec, Any]] = []
    for number, op in enumerate(steps):
        params = op.draw(rng.inside(view, number), spec) if rng is not None and op.random else None
        box = op.box_needed(spec, params)
        if box is not None:
            for earlier, its_spec, its_params in reversed(passed):
                box = None if box is None else earlier.box_before(box, its_spec, its_params)
            return box
        if not op.passes:
            return None
        passed.append((op, spec, params))
        spec = op.made(spec, params)
    return None


def _boxes(steps: Steps, streams: Streams, sizes: Sizes, view: int) -> Boxes | None:
    """Return `_box` for many pictures, with whole pictures for None; None if they must be examined one by one."""
    crop = first_crop_of(steps)
    if crop is None:
        return whole(sizes)
    passed: list[tuple[Op, Streams, Sizes]] = []
    for number, op in enumerate(steps[:crop]):
        passed.append((op, streams.inside(view, number), sizes))
        made = op.sizes_made(sizes)
        if made is None:
            return None
        sizes = made
    boxes = steps[crop].boxes_needed(streams.inside(view, crop), sizes)
    for op, its_streams, its_sizes in reversed(passed):
        boxes = None if boxes is None else op.boxes_before(boxes, its_streams, its_sizes)
    return boxes


def _union(one: Boxes, other: Boxes) -> Boxes:
    top, left = np.minimum(one[0], other[0]), np.minimum(one[1], other[1])
    bottom = np.maximum(one[0] + one[2], other[0] + other[2])
    right = np.maximum(one[1] + one[3], other[1] + other[3])
    return top, left, bottom - top, right - left
