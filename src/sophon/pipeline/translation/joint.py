"""torchvision v2 recipes over whole samples (image, target): ops for the picture, and followers for the targets.

The picture's part of a transform becomes an op, as in any recipe. The targets' part stays the user's own object, which
runs on the trainer with the parameters that the op drew: torchvision's v2 keeps the two apart (`make_params` and
`transform`), so the rules for masks, boxes and keypoints are torchvision's own code, never ours.

A transform whose draws depend on the boxes (RandomIoUCrop) becomes an op with `looks` set, if it is known where the
boxes are at that point. `RandomApply`, `RandomChoice` and `RandomOrder` become ops made of ops, and the targets follow
each inner step that was applied.

Starting with the first transform that has no op, all transforms run unchanged, on samples that are assembled first.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from sophon.errors import ConfigError
from sophon.pipeline import ops
from sophon.pipeline.call import Call, Form, no_step
from sophon.pipeline.op import Op, Params
from sophon.pipeline.ops.on_tensor import OnTensor
from sophon.pipeline.spec import ENCODED, Kind
from sophon.pipeline.translation.met import Became, Met, NoOp, after, origin
from sophon.pipeline.translation.regions import region_steps
from sophon.pipeline.translation.walk import flatten, translate

Size = tuple[int, int]  # height, width
TheirParams = dict[str, Any]

# These change values but move nothing, so targets stay unchanged.
_PICTURE_ONLY = frozenset(
    {
        "ColorJitter", "GaussianBlur", "Grayscale", "Identity", "Normalize", "PILToTensor", "RGB",
        "RandomAdjustSharpness", "RandomAutocontrast", "RandomChannelPermutation", "RandomEqualize", "RandomGrayscale",
        "RandomInvert", "RandomPhotometricDistort", "RandomPosterize", "RandomSolarize", "ToImage", "ToPILImage",
    }
)  # fmt: skip
# These do nothing to a picture. A user function inside such a transform may use the whole sample.
_TARGETS_ONLY = frozenset(
    {
        "ClampBoundingBoxes", "ClampKeyPoints", "ConvertBoundingBoxFormat", "SanitizeBoundingBoxes",
        "SanitizeKeyPoints", "SetClampingMode",
    }
)  # fmt: skip
# Without randomness; targets follow with no parameters.
_STEADY = frozenset({"CenterCrop", "ConvertImageDtype", "Pad", "Resize", "ToDtype", "ToPureTensor"})


def _crop(t: Any, at: tuple[int, int], size: Size) -> TheirParams:
    """Return the parameters that torchvision's RandomCrop derives from the sample's size and the drawn place."""
    left, right, top, bottom = t.padding or (0, 0, 0, 0)
    height, width = size[0] + top + bottom, size[1] + left + right
    if t.pad_if_needed:
        more_y, more_x = max(0, t.size[0] - height), max(0, t.size[1] - width)
        top, bottom, left, right = top + more_y, bottom + more_y, left + more_x, right + more_x
        height, width = height + 2 * more_y, width + 2 * more_x
    padding = [left, top, right, bottom]
    return {
        "needs_crop": height > t.size[0] or width > t.size[1],
        "top": at[0],
        "left": at[1],
        "height": t.size[0],
        "width": t.size[1],
        "needs_pad": any(padding),
        "padding": padding,
    }


def _flipped(_: Any, is_flipped: bool, __: Size) -> TheirParams | None:
    return {} if is_flipped else None


def _to_size(_: Any, size: Any, __: Size) -> TheirParams:
    return {"size": [size] if isinstance(size, int) else tuple(size)}


def _zoomed_out(_: Any, sides: tuple[int, ...] | None, __: Size) -> TheirParams | None:
    return None if sides is None else {"padding": list(sides)}


def _iou_crop(_: Any, box: tuple[int, ...] | None, __: Size) -> TheirParams:
    return {} if box is None else dict(zip(("top", "left", "height", "width"), box, strict=True))


_DRAWN: Mapping[str, Callable[[Any, Params, Size], TheirParams | None]] = {
    "RandomAffine": lambda _, m, __: {
        "angle": m.angle, "translate": tuple(m.translate), "scale": m.scale, "shear": tuple(m.shear)
    },
    "RandomCrop": _crop,
    "RandomHorizontalFlip": _flipped,
    "RandomIoUCrop": _iou_crop,
    "RandomResize": _to_size,
    "RandomResizedCrop": lambda _, box, __: dict(zip(("top", "left", "height", "width"), box, strict=True)),
    "RandomRotation": lambda _, angle, __: {"angle": angle},
    "RandomShortestSize": _to_size,
    "RandomVerticalFlip": _flipped,
    "RandomZoomOut": _zoomed_out,
    "ScaleJitter": _to_size,
}  # fmt: skip
"""By class: a function that computes torchvision's parameters from the object, its op's draw and the input's size."""


_CONTAINERS = frozenset({"RandomApply", "RandomChoice", "RandomOrder"})

_MOVING = frozenset({"CenterCrop", "Pad", "Resize", *_DRAWN, *_CONTAINERS})  # moves pixels, and targets with them


@dataclass(frozen=True)
class Follower:
    """The effect of one transform on targets.

    Args:
        transform: The user's object.
        position: Position of the transform's op in the pipeline, or the position that the op would have.
        met: State of the picture at that point.
        inside: For a container: the effect of each of its transforms, in the order of the op's inner ops.
    """

    transform: Any
    position: int
    met: Met
    inside: tuple[Follower, ...] = ()

    @property
    def still(self) -> bool:
        """Whether targets stay unchanged."""
        return type(self.transform).__name__ in _PICTURE_ONLY

    @property
    def whole(self) -> bool:
        """Whether the transform is called with all targets at once rather than with one at a time."""
        return type(self.transform).__name__ in _TARGETS_ONLY

    @property
    def marks(self) -> bool:
        """Whether the transform marks boxes that fall outside the result."""
        return type(self.transform).__name__ == "RandomIoUCrop"

    @property
    def draws(self) -> bool:
        """Whether the transform's op also draws what happens to the targets."""
        return type(self.transform).__name__ in _DRAWN or bool(self.inside)

    def params(self, drawn: Params, size: Size) -> TheirParams | None:
        """Return torchvision's parameters; None if the transform is not applied.

        Args:
            drawn: The parameters that the transform's op drew.
            size: Size of the picture before the transform.
        """
        build = _DRAWN.get(type(self.transform).__name__)
        return {} if build is None else build(self.transform, drawn, size)


@dataclass(frozen=True)
class JointOps:
    """The translation of a recipe over samples.

    Args:
        ops: Ops on the picture and, from the first `Call` on, on the sample.
        followers: Transforms of the targets before the first `Call`, in order.
        form: Form of the picture's tensor, where an op gives an array.
    """

    ops: tuple[Op, ...]
    followers: tuple[Follower, ...]
    form: Form


def joint_ops(transform: Any, leads: bool = True) -> JointOps:
    """Translate a transform over samples.

    Args:
        transform: The recipe.
        leads: Whether the picture is the first item of a sample. torchvision treats the first of several plain tensors
            as the picture, so a picture in another place is recognised only while it is a PIL image or an `Image`.

    Raises:
        ConfigError: An item is not a transform, or torchvision itself rejects it at that position.
    """
    decode = ops.Decode()
    steps: list[Op] = [decode]
    followers: list[Follower] = []
    met = Met(decode.output(ENCODED))
    parts = list(flatten(transform))
    conversion: tuple[int, int, int, Met] | None = None  # its index, steps and followers before it, its input
    for at, part in enumerate(parts):
        try:
            _check_known(part, parts[:at], met, leads)
            became, inside = _became(part, met)
            then = after(met, became)
            _check_boxes_known(part, became.ops, steps, parts[:at])
        except NoOp as reason:
            if conversion is None:
                return _ended(steps, followers, met.form, parts[at:], str(reason))
            return _from_conversion(parts, steps, followers, conversion, str(reason), leads)
        if met.is_picture and then.spec.kind is Kind.TENSOR and None in then.spec.shape:
            conversion = at, len(steps), len(followers), met
        if _moves_targets(part):
            followers.append(Follower(part, len(steps), met, inside))
        steps += became.ops
        met = then
    return JointOps(tuple(steps), tuple(followers), met.form)


def _check_known(part: Any, before: Sequence[Any], met: Met, leads: bool) -> None:
    """Raise `NoOp` where torchvision may treat picture or targets differently from usual."""
    name = type(part).__name__
    if not (leads or met.is_picture or met.form.is_image):
        raise NoOp("the picture is a plain tensor and not the first item of the sample")
    if name in _MOVING and any(type(one).__name__ == "ToPureTensor" for one in before):
        raise NoOp("targets are plain tensors here, which it does not move")
    if name == "RandomRotation" and part.expand:
        raise NoOp("it makes pictures and targets of different sizes, which later steps may refuse")


def _check_boxes_known(part: Any, its_ops: Sequence[Op], steps: Sequence[Op], before: Sequence[Any]) -> None:
    """Raise `NoOp` if a step's draws depend on boxes that an earlier step may have changed in an unknown way."""
    if not any(op.looks for op in its_ops):
        return
    for step in steps[1:]:
        if not step.places:
            raise NoOp(origin(part).why(f"depends on the boxes, which are not known after {step.name()}"))
    for one in before:
        name = type(one).__name__
        if name in _TARGETS_ONLY and name != "ConvertBoundingBoxFormat":
            raise NoOp(origin(part).why(f"depends on the boxes, which {name} may have changed"))


def _became(part: Any, met: Met) -> tuple[Became, tuple[Follower, ...]]:
    """Return the op of a transform over samples, and for a container the followers of its inner steps."""
    if isinstance(part, type) or not callable(part) or isinstance(part, Op):
        raise no_step("a transform over samples", part)
    found = origin(part)
    name = found.name
    if not (found.library == "torchvision" and found.is_v2):
        raise NoOp(found.why("is not a torchvision v2 transform"))
    if name in _TARGETS_ONLY:
        if callable(getattr(part, "labels_getter", None)):
            raise NoOp("it calls your own function with the whole sample")
        return Became(), ()
    if name in _CONTAINERS:
        return _container(part, met)
    if name not in _PICTURE_ONLY | _STEADY | _DRAWN.keys():
        raise NoOp(found.why("has no op for samples with targets"))
    if name == "ToDtype" and isinstance(part.dtype, dict):
        return _to_dtypes(part, met), ()
    if name == "RandomIoUCrop":
        return _iou_crop_op(part, met), ()
    became = translate(_of_picture(part), met)
    if len(became.ops) > 1:
        raise NoOp(found.why("is more than one op"))
    return became, ()


def _iou_crop_op(t: Any, met: Met) -> Became:
    """Translate a crop that keeps objects; it is in no other table, since torchvision rejects it without targets."""
    try:
        op = ops.RandomIoUCrop(
            t.min_scale, t.max_scale, t.min_aspect_ratio, t.max_aspect_ratio, tuple(t.options), t.trials
        )
    except (ConfigError, TypeError, ValueError, AttributeError) as reason:  # attributes may hold anything
        raise NoOp(origin(t).why(f"has no op with this setting ({reason})")) from reason
    if not met.is_picture:
        raise NoOp(origin(t).why("has no op on tensors"))
    return Became([op])


def _container(part: Any, met: Met) -> tuple[Became, tuple[Follower, ...]]:
    """Return an op made of ops, one for each inner step."""
    if not met.is_picture:
        raise NoOp(origin(part).why("has no op on tensors"))
    if type(part).__name__ == "RandomApply":
        steps, followers = _inside(part.transforms, met)
        return Became([ops.RandomApply(steps, part.p)]), followers
    branches = [_branch(one, met) for one in part.transforms]
    steps, followers = tuple(op for op, _ in branches), tuple(follower for _, follower in branches)
    if type(part).__name__ == "RandomChoice":
        return Became([ops.RandomChoice(steps, tuple(part.p))]), followers
    for one in part.transforms:  # any of these may run before it
        _check_boxes_known(one, steps, [ops.Decode(), *steps], ())
    return Became([ops.RandomOrder(steps)]), followers


def _branch(part: Any, met: Met) -> tuple[Op, Follower]:
    """Return one of several choices as an op, which may be a sequence of ops, and its follower."""
    steps, followers = _inside([part], met)
    if len(steps) == 1:
        return steps[0], followers[0]
    return ops.RandomApply(steps, 1.0), Follower(part, 0, met, followers)


def _inside(transforms: Any, met: Met) -> tuple[tuple[Op, ...], tuple[Follower, ...]]:
    """Return one op for each step inside a container, and the follower of each."""
    steps: list[Op] = []
    followers: list[Follower] = []
    for part in chain.from_iterable(map(flatten, transforms)):
        _check_known(part, (), met, leads=True)
        became, inside = _became(part, met)
        then = after(met, became)
        if len(became.ops) != 1 or not then.is_picture:
            raise NoOp(origin(part).why("is inside another transform, and is not a single op on pictures"))
        _check_boxes_known(part, became.ops, [ops.Decode(), *steps], ())
        followers.append(Follower(part, 0, met, inside))
        steps += became.ops
        met = then
    return tuple(steps), tuple(followers)


def _to_dtypes(part: Any, met: Met) -> Became:
    """Translate how a ToDtype with one dtype per kind affects the picture."""
    if met.is_picture:
        return Became()  # it converts only tensors
    by_name = {getattr(kind, "__name__", kind): dtype for kind, dtype in part.dtype.items()}
    kind = "Image" if met.form.is_image else "Tensor"
    if kind not in by_name and "others" not in by_name:
        raise NoOp("a dtype for other kinds but not for the picture")
    dtype = by_name.get(kind, by_name.get("others"))
    if dtype is None:
        return Became()
    alone = copy.copy(part)
    alone.dtype = dtype
    return translate(alone, met)


def _of_picture(part: Any) -> Any:
    """Return a transform with its fill colour for pictures, if it has one per kind of input."""
    fills = getattr(part, "fill", None)
    if not isinstance(fills, dict):
        return part
    by_name = {
        f"{getattr(kind, '__module__', '')}.{getattr(kind, '__name__', kind)}": fill for kind, fill in fills.items()
    }
    alone = copy.copy(part)
    alone.fill = by_name.get("PIL.Image.Image", by_name.get(".others"))  # None is black, as in torchvision
    return alone


def _moves_targets(part: Any) -> bool:
    return type(part).__name__ not in _PICTURE_ONLY


def _from_conversion(
    parts: Sequence[Any],
    steps: Sequence[Op],
    followers: Sequence[Follower],
    conversion: tuple[int, int, int, Met],
    reason: str,
    leads: bool,
) -> JointOps:
    """Return a recipe in which a tensor step has no op and the pictures before it have different sizes.

    If a crop of the tensor follows, the steps up to it need only a region of the picture; otherwise they need all of
    it.
    """
    at, count, followed, met = conversion
    before, kept = list(steps[:count]), list(followers[:followed])
    passing = None
    if all(op.passes and not op.crops for op in before[1:]):
        passing = region_steps(_sure(parts[at:], leads))
    if passing is None:
        return _ended(
            before, kept, met.form, parts[at:], f"makes a tensor of the whole picture, and after it: {reason}"
        )
    for part, step in zip(parts[at:], passing, strict=False):
        assert isinstance(step, OnTensor)
        if _moves_targets(part):
            kept.append(Follower(part, len(before), met))
        before.append(step)
        met = Met(step.output(met.spec), Form(is_image=True) if type(part).__name__ == "ToImage" else met.form)
    rest = parts[at + len(passing) :]
    return _ended(before, kept, Form(), rest, origin(rest[0]).why("has no op on tensors") if rest else "")


def _sure(parts: Sequence[Any], leads: bool) -> list[Any]:
    """Return a conversion and the steps after it that torchvision is certain to apply to the picture."""
    found: list[Any] = []
    is_image = type(parts[0]).__name__ == "ToImage"
    for part in parts:
        is_pure = type(part).__name__ == "ToPureTensor"  # targets become plain tensors too, so they no longer move
        if is_pure or (found and not (leads or is_image)) or not origin(part).is_v2:
            break
        found.append(part)
    return found


def _ended(
    steps: Sequence[Op], followers: Sequence[Follower], form: Form, rest: Sequence[Any], reason: str
) -> JointOps:
    """Return a recipe whose last steps run unchanged."""
    calls: list[Op] = []
    for part in rest:
        if isinstance(part, type) or not callable(part) or isinstance(part, Op):
            raise no_step("a transform over samples", part)
        why = origin(part).why("comes after a step whose result is not known") if calls else reason
        calls.append(Call(part, why, form, is_joint=True))
    return JointOps((*steps, *calls), tuple(followers), form)
