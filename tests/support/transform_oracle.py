"""torchvision itself, given the randomness of a pipeline's steps.

A `Call` runs the user's object under generators that are seeded from (seed, epoch, sample, position): so does this. Any
other random step draws parameters of its own; here torchvision's object is made to use them, by putting them in the
place of its `get_params` (v1) or `make_params` (v2), or by a probability of 0 or 1.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterable, Sequence
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from PIL import Image

from sophon.pipeline import Call, Key, Pipeline, Rng, spec_of
from sophon.pipeline.ops import Views


def flat(transform: Any) -> Iterable[Any]:
    """Yield the transforms of nested Compose objects, one after the other."""
    is_known = type(transform).__module__.startswith(("torchvision.", "torch."))  # albumentations has a Compose too
    if is_known and type(transform).__name__ in ("Compose", "Sequential"):
        parts = transform.transforms if hasattr(transform, "transforms") else transform
        for part in parts:
            yield from flat(part)
    else:
        yield transform


def steps_of(parts: Sequence[Any]) -> list[tuple[Any, int, tuple[Any, ...]]]:
    """Return, for each transform, its first position in the pipeline and the steps that it became.

    Ops come first, and from the first step that holds a user's object on, each transform is one step. What becomes an
    op may depend on what follows, but where some transforms are ops, they are the same ops without what follows.
    """
    steps = _translated(parts)
    if any(isinstance(step, Views) for step in steps):
        return _steps_with_views(parts, steps)
    held = next((at for at, step in enumerate(steps) if _object_in(step) is not None), len(steps))
    count = len(parts) - (len(steps) - held)  # of transforms that became ops
    found, before = [], len(_translated([]))
    for at, part in enumerate(parts[:count], 1):
        ops = _translated(parts[:at])
        # Decode also knows whether somebody's own code will look at the picture, which is decided by what follows.
        assert ops[1:] == steps[1 : len(ops)], f"{ops} are not the first steps of {steps}"
        found.append((part, before, ops[before:]))
        before = len(ops)
    assert before == held, f"{parts[:count]} became {steps[:held]}"
    for part, position in zip(parts[count:], range(held, len(steps)), strict=True):
        assert _object_in(steps[position]) is part, f"{steps[position]} stands at the place of {part}"
        found.append((part, position, (steps[position],)))
    return found


def _steps_with_views(parts: Sequence[Any], steps: Sequence[Any]) -> list[tuple[Any, int, tuple[Any, ...]]]:
    """Return what `steps_of` does for a recipe whose last transform makes views; its stages are what it became."""
    first = next(at for at, step in enumerate(steps) if isinstance(step, Views))
    before = steps_of(parts[:-1]) if len(parts) > 1 else []
    return [*before, (parts[-1], first, tuple(steps[first:]))]


def _view(value: Any, transform: Any, view: int, position: int, stages: Sequence[Any], key: Key, chance: bool) -> Any:
    """Return what torchvision makes of one view, given the randomness of its steps in all stages."""
    its_own = [
        (op, Rng(key, at).inside(view, step))
        for at, stage in enumerate(stages, position)
        for step, op in enumerate(stage.views[view])
    ]
    for part, _, steps in steps_of(list(flat(transform))):
        mine, its_own = its_own[: len(steps)], its_own[len(steps) :]
        assert [_told(op) for op, _ in mine] == [_told(op) for op in steps], f"{mine} stand at the place of {steps}"
        value = _one(part, value, steps, mine[0][1] if mine else None, chance)
    assert not its_own, f"{its_own} of view {view} come from nowhere"
    return value


def _told(op: Any) -> Any:
    return op.function if isinstance(op, Call) else op


def _translated(parts: Sequence[Any]) -> tuple[Any, ...]:
    from torchvision.transforms import Compose

    return Pipeline.from_torchvision(Compose(list(parts))).ops


def _object_in(step: Any) -> Any:
    """Return the user's object that a step runs, or None for an op."""
    return step.function if isinstance(step, Call) else getattr(step, "transform", None)


def run(value: Any, parts: Sequence[tuple[Any, int, tuple[Any, ...]]], key: Key, chance: bool) -> Any:
    """Return what torchvision makes of a picture.

    Args:
        value: The picture.
        parts: From `steps_of`.
        key: Which seed, epoch and sample.
        chance: Whether parameters are drawn at all. Where they are not, torchvision is called as it is.
    """
    for part, position, steps in parts:
        if steps and isinstance(steps[0], Views):
            views = enumerate(part.transforms)  # as `tests.support.recipes.Views` has them
            value = [_view(value, transform, view, position, steps, key, chance) for view, transform in views]
        else:
            value = _one(part, value, steps, Rng(key, position), chance)
    return value


def _one(part: Any, value: Any, steps: Sequence[Any], rng: Rng | None, chance: bool) -> Any:
    if len(steps) == 1 and isinstance(steps[0], Call):
        return seeded(part, value, rng.word())
    if len(steps) == 1 and chance and steps[0].random:
        return forced(part, value, steps[0].draw(rng, spec_of(_plain(value))))
    return part(value)


def seeded(transform: Any, value: Any, seed: int) -> Any:
    """Return what a transform gives under global generators with this seed."""
    random.seed(seed)
    np.random.seed(seed & 0xFFFFFFFF)
    torch.random.default_generator.manual_seed(seed & 0x7FFFFFFFFFFFFFFF)
    if hasattr(transform, "set_random_state"):  # albumentations: generators of its own, and arguments by name
        own = seed & 0x7FFFFFFF
        transform.set_random_state(np.random.default_rng(own), random.Random(own))
        return transform(image=np.array(value))["image"]
    return transform(value)


def forced(transform: Any, value: Any, drawn: Any) -> Any:
    """Return what a transform gives with drawn parameters."""
    name = type(transform).__name__
    how = _FORCED.get(name)
    if how is not None:
        return how(transform, value, drawn)
    assert drawn is None, f"{name} draws {drawn!r}: say in {__name__} how torchvision is made to use that"
    return transform(value)


def _plain(value: Any) -> Any:
    return value.numpy() if isinstance(value, torch.Tensor) else value


def _is_v2(transform: Any) -> bool:
    return type(transform).__module__.startswith("torchvision.transforms.v2")


def _with(transform: Any, **attributes: Any) -> Any:
    changed = copy.copy(transform)
    for name, value in attributes.items():
        setattr(changed, name, value)
    return changed


def _given(transform: Any, v1: tuple[Any, ...], v2: dict[str, Any]) -> Any:
    """Return the transform with fixed parameters."""
    if not _is_v2(transform):
        return _with(transform, get_params=lambda *_, **__: v1)
    made = transform.make_params  # some are no chance but follow from the input
    return _with(transform, make_params=lambda inputs: {**made(inputs), **v2})


def _by_chance(transform: Any, value: Any, drawn: bool) -> Any:
    return _with(transform, p=float(drawn))(value)


def _crop(transform: Any, value: Any, drawn: tuple[int, int]) -> Any:
    top, left = drawn
    return _given(transform, (top, left, *transform.size), {"top": top, "left": left})(value)


def _resized_crop(transform: Any, value: Any, drawn: tuple[int, int, int, int]) -> Any:
    return _given(transform, drawn, dict(zip(("top", "left", "height", "width"), drawn, strict=True)))(value)


def _rotation(transform: Any, value: Any, drawn: float) -> Any:
    # In v1 a call returns one number, not a tuple.
    given = (
        _given(transform, (), {"angle": drawn}) if _is_v2(transform) else _with(transform, get_params=lambda _: drawn)
    )
    return given(value)


def _affine(transform: Any, value: Any, drawn: Any) -> Any:
    names = ("angle", "translate", "scale", "shear")
    found = (drawn.angle, tuple(drawn.translate), drawn.scale, tuple(drawn.shear))
    return _given(transform, found, dict(zip(names, found, strict=True)))(value)


def _jitter(transform: Any, value: Any, drawn: Sequence[tuple[int, float]]) -> Any:
    order = [which for which, _ in drawn]
    factors = tuple(dict(drawn).get(which) for which in range(4))
    names = [f"{name}_factor" for name in ("brightness", "contrast", "saturation", "hue")]
    return _given(transform, (order, *factors), {"fn_idx": order, **dict(zip(names, factors, strict=True))})(value)


def _blur(transform: Any, value: Any, drawn: float) -> Any:
    if _is_v2(transform):
        return _given(transform, (), {"sigma": [drawn, drawn]})(value)
    return _with(transform, get_params=lambda *_: drawn)(value)


def _erasing(transform: Any, value: Any, drawn: Any) -> Any:
    if drawn is None:
        return _with(transform, p=0.0)(value)
    *box, noise = drawn
    fixed = transform.value if isinstance(transform.value, list | tuple) else [transform.value]
    patch = torch.tensor(fixed)[:, None, None] if noise is None else torch.from_numpy(noise)
    given = _given(transform, (*box, patch), dict(zip("ijhwv", (*box, patch), strict=True)))
    return _with(given, p=1.0)(value)


def _augment(transform: Any, value: Any, drawn: Sequence[tuple[str, float]]) -> Any:
    from torchvision.transforms.autoaugment import _apply_op
    from torchvision.transforms.functional import get_dimensions

    channels, height, width = get_dimensions(value)
    fill = transform.fill
    if isinstance(value, torch.Tensor) and fill is not None:
        fill = [float(fill)] * channels if isinstance(fill, int | float) else [float(f) for f in fill]
    for name, magnitude in drawn:
        if _is_v2(transform):
            settings = {"interpolation": transform.interpolation, "fill": transform._fill}
            bins = getattr(transform, "num_magnitude_bins", 10)
            table = transform._AUGMENTATION_SPACE[name][0](bins, height, width)
            at, sign = _bin(name, magnitude, table, is_v2=True)
            size = 0.0 if at is None else sign * float(table[at])
            value = transform._apply_image_or_video_transform(value, name, size, **settings)
        else:
            value = _apply_op(value, name, magnitude, interpolation=transform.interpolation, fill=fill)
    return value


def _bin(name: str, magnitude: float, table: torch.Tensor | None, is_v2: bool) -> tuple[int | None, int]:
    """Return which number of torchvision's own table is meant, and its sign; v2 solarizes in shares of 255."""
    if table is None or table.ndim == 0:
        assert magnitude == 0.0, (name, magnitude)
        return None, 1
    wanted = abs(magnitude) / 255.0 if is_v2 and name == "Solarize" else abs(magnitude)
    at = int((table - wanted).abs().argmin())
    assert abs(float(table[at]) - wanted) < 1e-4, (name, magnitude, table)
    return at, -1 if magnitude < 0 else 1


def _augmix(transform: Any, value: Any, drawn: Any) -> Any:
    """Have torchvision draw prescribed numbers, one after the other."""
    from torchvision.transforms.functional import get_dimensions

    _, height, width = get_dimensions(value)
    is_v2 = _is_v2(transform)
    if is_v2:
        space = transform._AUGMENTATION_SPACE if transform.all_ops else transform._PARTIAL_AUGMENTATION_SPACE
        tables = {name: (made(10, height, width), signed) for name, (made, signed) in space.items()}
    else:
        tables = transform._augmentation_space(10, (height, width))
    original, chains = drawn
    weights = iter([[original, 1.0], [weight for weight, _ in chains]])
    integers: list[int] = []
    reals: list[float] = []
    for _, steps in chains:
        if transform.chain_depth <= 0:
            integers.append(len(steps))
        for name, magnitude in steps:
            table, signed = tables[name]
            at, sign = _bin(name, magnitude, table, is_v2)
            integers.append(list(tables).index(name))
            if at is not None:
                integers.append(at)
            if signed and is_v2:
                reals.append(0.0 if sign < 0 else 1.0)
            elif signed:
                integers.append(int(sign < 0))
    given = _with(transform, _sample_dirichlet=lambda _: torch.tensor([next(weights)]))
    next_integer, next_real = iter(integers), iter(reals)
    with (
        patch.object(torch, "randint", lambda *_, **__: torch.tensor([next(next_integer)])),
        patch.object(torch, "rand", lambda *_, **__: torch.tensor([next(next_real)])),
    ):
        result = given(value)
    assert not [*next_integer, *next_real], "torchvision drew less than it was given"
    return result


def _distort(transform: Any, value: Any, drawn: Any) -> Any:
    steps, order = drawn
    names = [f"{name}_factor" for name in ("brightness", "contrast", "saturation", "hue")]
    given = {name: dict(steps).get(which) for which, name in enumerate(names)}
    turns = [which for which, _ in steps]
    given["contrast_before"] = 1 in turns and turns.index(1) <= (0 in turns)
    given["channel_permutation"] = None if order is None else torch.tensor(order)
    return _given(transform, (), given)(value)


def _permutation(transform: Any, value: Any, drawn: Sequence[int]) -> Any:
    return _given(transform, (), {"permutation": torch.tensor(drawn)})(value)


def _size(transform: Any, value: Any, drawn: int | Sequence[int]) -> Any:
    return _given(transform, (), {"size": [drawn] if isinstance(drawn, int) else tuple(drawn)})(value)


def _order(transform: Any, value: Any, drawn: Sequence[tuple[int, Any]]) -> Any:
    for index, params in drawn:
        value = forced(transform.transforms[index], value, params)
    return value


def _timm_crop(transform: Any, value: Any, drawn: Any) -> Any:
    from torchvision.transforms import InterpolationMode

    box, mode = drawn if len(drawn) == 2 else (drawn, None)
    given = _with(transform, get_params=lambda *_: box)
    return (given if mode is None else _with(given, interpolation=InterpolationMode(mode)))(value)


def _timm_resize(transform: Any, value: Any, drawn: Any) -> Any:
    assert transform.random_scale_prob == transform.random_aspect_prob == 0.0, "say here how to give it a size"
    return transform(value)


def _apply(transform: Any, value: Any, drawn: Sequence[Any] | None) -> Any:
    if drawn is not None:
        parts = [part for inner in transform.transforms for part in flat(inner)]
        for part, params in zip(parts, drawn, strict=True):
            value = forced(part, value, params)
    return value


def _choice(transform: Any, value: Any, drawn: tuple[int, Any]) -> Any:
    chosen, params = drawn
    return forced(transform.transforms[chosen], value, params)


def _sequence(transform: Any, value: Any, drawn: Any) -> Any:
    """A sequence inside a container is an op of ops, or the one op that it consists of."""
    parts = list(flat(transform))
    return forced(parts[0], value, drawn) if len(parts) == 1 else _apply(transform, value, drawn)


def _zoom_out(transform: Any, value: Any, drawn: Sequence[int] | None) -> Any:
    if drawn is None:
        return _with(transform, p=0.0)(value)
    return _with(_given(transform, (), {"padding": list(drawn)}), p=1.0)(value)


def _iou_crop(transform: Any, value: Any, drawn: Sequence[int] | None) -> Any:
    """Have torchvision draw the numbers that lead to a crop, and check and mark boxes by itself."""
    options = transform.options
    chosen = options.index(max(options) if drawn is None else min(options))
    assert drawn is not None or options[chosen] >= 1.0
    numbers = iter(()) if drawn is None else iter(_crop_numbers(transform, value, drawn))
    with (
        patch.object(torch, "randint", lambda *_, **__: torch.tensor([chosen])),
        patch.object(torch, "rand", lambda *_, **__: torch.tensor(next(numbers), dtype=torch.float64)),
    ):
        result = transform(value)  # another crop than the first would be a StopIteration
    assert not [*numbers], "torchvision drew less than it was given"
    return result


def _crop_numbers(transform: Any, value: Any, drawn: Sequence[int]) -> list[list[float]]:
    from torchvision.transforms.v2._utils import get_bounding_boxes

    top, left, height, width = drawn
    full_height, full_width = get_bounding_boxes(torch.utils._pytree.tree_flatten(value)[0]).canvas_size
    low, spread = transform.min_scale, transform.max_scale - transform.min_scale
    sides = ((width, full_width), (height, full_height))
    shares = [((side + 0.5) / full - low) / (spread or 1.0) for side, full in sides]
    places = [
        (at + 0.5) / (full - side) if full > side else 0.0 for at, (side, full) in zip((left, top), sides, strict=True)
    ]
    return [shares, places]


_CHANCES = (
    "RandomHorizontalFlip",
    "RandomVerticalFlip",
    "RandomGrayscale",
    "RandomInvert",
    "RandomPosterize",
    "RandomSolarize",
    "RandomAdjustSharpness",
    "RandomAutocontrast",
    "RandomEqualize",
)
_FORCED: dict[str, Callable[[Any, Any, Any], Any]] = {
    **dict.fromkeys(_CHANCES, _by_chance),
    "RandomCrop": _crop,
    "RandomResizedCrop": _resized_crop,
    "RandomRotation": _rotation,
    "RandomAffine": _affine,
    "ColorJitter": _jitter,
    "GaussianBlur": _blur,
    "RandomErasing": _erasing,
    "RandAugment": _augment,
    "TrivialAugmentWide": _augment,
    "AutoAugment": _augment,
    "AugMix": _augmix,
    "RandomPhotometricDistort": _distort,
    "RandomChannelPermutation": _permutation,
    "RandomResize": _size,
    "RandomShortestSize": _size,
    "ScaleJitter": _size,
    "RandomApply": _apply,
    "RandomChoice": _choice,
    "RandomOrder": _order,
    "Compose": _sequence,
    "RandomIoUCrop": _iou_crop,
    "RandomZoomOut": _zoom_out,
    "RandomResizedCropAndInterpolation": _timm_crop,
    "ResizeKeepRatio": _timm_resize,
}


def facts(value: Any) -> Any:
    """Return kind, type, shape and bits of a result, whoever made it; the same of each part of a list."""
    if isinstance(value, Image.Image):
        return ("picture", value.mode, value.size, value.tobytes())
    if isinstance(value, np.ndarray):
        return ("tensor", value.dtype.name, value.shape, value.tobytes())
    if isinstance(value, torch.Tensor):
        dtype = str(value.dtype).removeprefix("torch.")
        flat = value.detach().contiguous().flatten().as_subclass(torch.Tensor)
        bits = flat.view(torch.uint8).numpy().tobytes() if len(flat) else b""
        return ("tensor", dtype, tuple(value.shape), bits)
    if isinstance(value, list | tuple):
        return [facts(part) for part in value]
    return ("something else", type(value).__name__, repr(value), b"")


def difference(ours: Any, theirs: Any) -> str:
    """Return in words how our facts differ from torchvision's; nothing where they do not."""
    if ours == theirs:
        return ""
    if isinstance(ours, list) and isinstance(theirs, list) and len(ours) == len(theirs):
        pairs = enumerate(zip(ours, theirs, strict=True))
        return "; ".join(f"part {i}: {text}" for i, pair in pairs if (text := difference(*pair)))
    if isinstance(ours, list) or isinstance(theirs, list) or ours[:3] != theirs[:3]:
        return f"ours is {_short(ours)}, torchvision's {_short(theirs)}"
    dtype = "uint8" if ours[0] == "picture" else ours[1]
    try:
        a, b = (np.frombuffer(side[3], dtype).astype(np.float64) for side in (ours, theirs))
    except TypeError:  # NumPy has no bfloat16
        return f"other bits of {_short(ours)}"
    apart = np.flatnonzero(a != b)
    if not len(apart):
        return "the same numbers, but other bits (signs of zero, or not-a-numbers)"
    return f"{len(apart)} of {len(a)} values of {_short(ours)} differ, by at most {np.abs(a - b).max():.6g}"


def _short(one: Any) -> str:
    if isinstance(one, list):
        return f"{len(one)} parts"
    kind, dtype, shape, _ = one
    return f"a {kind} {dtype} {shape}"
