"""Walks through a recipe and decides which steps become ops and which run unchanged on the trainer.

- On pictures, every transform with a proven op becomes that op. The first transform without an op and all steps after
  it run unchanged, since nothing is known about its result.
- A conversion to a tensor becomes an op if all later steps do, or if pictures have a fixed size by then, so that a cut
  after it may pay off.
- Otherwise, if a crop of the tensor follows, the steps up to it need only a region (`regions`), and a window is sent.
- Otherwise the conversion and everything after it run unchanged.
- A transform that makes several views of a picture (`views`) becomes `Views`, with each view translated as a separate
  recipe.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any

from sophon.errors import ConfigError
from sophon.pipeline import ops
from sophon.pipeline.call import Call, Form, no_step
from sophon.pipeline.op import Op
from sophon.pipeline.spec import ENCODED, Kind
from sophon.pipeline.translation import timm, torchvision
from sophon.pipeline.translation.met import Became, Met, NoOp, Rows, after, origin
from sophon.pipeline.translation.regions import region_steps
from sophon.pipeline.translation.views import views_of

_TENSORS = "has no op on tensors"
_UNKNOWN = "comes after a step whose result is not known"


def ops_from_transform(transform: Any) -> list[Op]:
    """Return Decode and the steps of a transform, as applied to the pictures of an ImageFolder.

    Raises:
        ConfigError: An item is not a transform, or torchvision itself rejects it at that position.
    """
    decode = ops.Decode()
    return [decode, *_steps(list(flatten(transform)), Met(decode.output(ENCODED)), ())]


def _steps(parts: Sequence[Any], met: Met, before: Sequence[Op]) -> list[Op]:
    """Return the steps of transforms whose input is a picture, given the ops that ran before."""
    steps: list[Op] = []
    for at, part in enumerate(parts):
        try:
            became = _views(part, met, [*before, *steps], is_last=at + 1 == len(parts)) or translate(part, met)
            then = after(met, became)
        except NoOp as reason:
            return [*steps, *_as_they_are(parts[at:], str(reason), met.form)]
        if met.is_picture and then.spec.kind is Kind.TENSOR:
            has_size = None not in then.spec.shape
            return [*steps, *_from_conversion(parts[at:], met, [*before, *steps], has_size=has_size)]
        steps += became.ops
        met = then
    return steps


def _views(part: Any, met: Met, before: Sequence[Op], *, is_last: bool) -> Became | None:
    """Return a transform that makes several views as an op; None for any other transform.

    Views made by a user's class are translated only if no step follows: otherwise the form in which the next step gets
    the views (class and layout of tensors) would have to be known too.
    """
    found = views_of(part) if met.is_picture else None
    if found is None or not (is_last or isinstance(part, ops.Views)):
        return None
    views, container = found
    translated = [_steps(list(flatten(view)), met, before) for view in views]
    if any(isinstance(op, ops.Views) for steps in translated for op in steps):
        raise NoOp("makes views of views")
    if all(steps and isinstance(steps[0], Call) for steps in translated) and not isinstance(part, ops.Views):
        return None  # nothing is gained, and users expect their own class in messages
    return Became([ops.Views(tuple(map(tuple, translated)), container)])


def _from_conversion(parts: Sequence[Any], met: Met, before: Sequence[Op], *, has_size: bool) -> list[Op]:
    """Return the steps from a conversion to a tensor on; `has_size` says whether pictures have a fixed size by then."""
    steps: list[Op] = []
    for at, part in enumerate(parts):
        try:
            became = translate(part, met)
            met = after(met, became)
        except NoOp as reason:
            if has_size:
                return [*steps, *_as_they_are(parts[at:], str(reason), met.form)]
            if all(op.passes and not op.crops for op in before) and (passing := region_steps(parts)):
                # Steps after the crop get torchvision's own tensor.
                rest = parts[len(passing) :]
                return [*passing, *_as_they_are(rest, origin(rest[0]).why(_TENSORS) if rest else "", Form())]
            return _as_they_are(parts, f"makes a tensor of the whole picture, and after it: {reason}", Form())
        steps += became.ops
    return steps


def flatten(transform: Any) -> Iterable[Any]:
    """Yield the steps of a transform, without containers that only call their steps in sequence."""
    found = origin(transform)
    if (found.library, found.name) == ("torchvision", "Compose"):
        for part in transform.transforms:
            yield from flatten(part)
    elif type(transform) in (list, tuple) or (found.library, found.name) == ("torch", "Sequential"):
        for part in transform:
            yield from flatten(part)
    else:
        yield transform


def translate(transform: Any, met: Met) -> Became:
    """Translate a transform for an input of this kind.

    Raises:
        NoOp: The transform has no op for this input.
    """
    if isinstance(transform, Op):
        transform.output(met.spec)
        return Became([transform])
    if isinstance(transform, type) or not callable(transform):
        raise no_step("a transform", transform)
    found = origin(transform)
    torchvision.check_accepted(found, transform, met)
    build = _ROWS.get((found.library, met.spec.kind), {}).get(found.name)
    if build is None:
        reason = torchvision.REASONS.get(found.name) if found.library == "torchvision" else None
        has_none = "has no op" if met.is_picture else "has no op on tensors"
        raise NoOp(found.why(has_none if reason is None else f"{has_none}: {reason}"))
    try:
        became = build(transform, met)
    except (NoOp, ConfigError, TypeError, ValueError, AttributeError) as reason:  # attributes may hold anything
        raise NoOp(found.why(f"has no op with this setting ({reason})")) from reason
    return became if isinstance(became, Became) else Became([became])


def inner(transforms: Iterable[Any], met: Met) -> tuple[Op, ...]:
    """Return the ops of the transforms inside another one, all of which must work on pictures."""
    steps: list[Op] = []
    for part in chain.from_iterable(map(flatten, transforms)):
        became = translate(part, met)
        met = after(met, became)
        if not met.is_picture:
            raise NoOp("an inner step does not return a picture")
        steps += became.ops
    if not all(op.portable for op in steps):
        raise NoOp("an inner step has no equivalent op")
    return tuple(steps)


def _as_they_are(parts: Sequence[Any], reason: str, form: Form) -> list[Op]:
    """Return steps that run unchanged: the first for a given reason, the others because their input is unknown."""
    steps = []
    for part in parts:
        if isinstance(part, Op):
            steps.append(part)
        elif isinstance(part, type) or not callable(part):
            raise no_step("a transform", part)
        else:
            steps.append(Call(part, reason, form) if not steps else Call(part, origin(part).why(_UNKNOWN)))
    return steps


def _random_apply(t: Any, met: Met) -> Op:
    return ops.RandomApply(inner(t.transforms, met), t.p)


def _random_choice(t: Any, met: Met) -> Op:
    weights = getattr(t, "p", None)
    return ops.RandomChoice(_branches(t, met), None if weights is None else tuple(weights))


def _branches(t: Any, met: Met) -> tuple[Op, ...]:
    """Return one op for each transform inside another one; an op may stand for a sequence."""
    branches = [inner([part], met) for part in t.transforms]
    return tuple(branch[0] if len(branch) == 1 else ops.RandomApply(branch, 1.0) for branch in branches)


_ROWS: dict[tuple[str, Kind], Rows] = {
    ("torchvision", Kind.IMAGE): {
        **torchvision.ON_PICTURES,
        "RandomApply": _random_apply,
        "RandomChoice": _random_choice,
        "RandomOrder": lambda t, met: ops.RandomOrder(_branches(t, met)),
    },
    ("torchvision", Kind.TENSOR): torchvision.ON_TENSORS,
    ("timm", Kind.IMAGE): timm.ON_PICTURES,
    ("timm", Kind.TENSOR): timm.ON_TENSORS,
}
