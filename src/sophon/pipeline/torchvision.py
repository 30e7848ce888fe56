"""From torchvision transforms, v1 and v2, to ops, by looking at the objects: torchvision itself is never imported.

Only torchvision's own classes are translated; a subclass may do anything, so it stays a callable on the trainer, as
does a known class with a setting that has no op (the reason is kept for `Pipeline.describe`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from sophon.errors import ConfigError
from sophon.pipeline import ops
from sophon.pipeline.call import Call
from sophon.pipeline.op import Op
from sophon.pipeline.spec import ENCODED, Kind

_MODULE = "torchvision.transforms"
# Pillow's numbers, which torchvision accepts in place of its own names.
_BY_NUMBER = {0: "nearest", 1: "lanczos", 2: "bilinear", 3: "bicubic", 4: "box", 5: "hamming"}


class _NoOp(Exception):  # noqa: N818 - not an error: a setting without a counterpart
    """A transform has a setting that no op has; the text says which."""


def ops_from_transform(transform: Any) -> list[Op]:
    """Return Decode and the ops of a transform, with a Call for every part that has no op."""
    decode = ops.Decode()
    steps: list[Op] = [decode]
    spec = decode.output(ENCODED)
    for part in _flatten(transform):
        translated = _translate(part)
        try:
            after = spec
            for op in translated:
                after = op.output(after)
        except ConfigError as error:
            # torchvision accepts this transform here (some take pictures and tensors alike), and our ops do not.
            translated = [Call(part, f"{type(part).__name__} at this place has no op: {error}")]
            after = translated[0].output(spec)
        steps += translated
        spec = after
    return steps


def _flatten(transform: Any) -> Iterable[Any]:
    name = _known_name(transform)
    if name == "Compose":
        for part in transform.transforms:
            yield from _flatten(part)
    elif type(transform).__module__.startswith("torch.nn") and type(transform).__name__ == "Sequential":
        for part in transform:
            yield from _flatten(part)
    else:
        yield transform


def _known_name(transform: Any) -> str | None:
    cls = type(transform)
    return cls.__name__ if f"{cls.__module__}.".startswith(_MODULE + ".") else None


def _is_v2(transform: Any) -> bool:
    return type(transform).__module__.startswith(_MODULE + ".v2")


def _translate(transform: Any) -> list[Op]:
    if isinstance(transform, Op):
        return [transform]
    if not callable(transform):
        raise ConfigError(f"expected a transform, got {transform!r}")
    name = _known_name(transform)
    build = None if name is None else _BUILD.get(name)
    if build is None:
        return [Call(transform)]
    try:
        steps = build(transform)
    except (_NoOp, ConfigError) as reason:
        return [Call(transform, f"{name} with a setting that has no op: {reason}")]
    return steps if isinstance(steps, list) else [steps]


def _interpolation(transform: Any) -> str:
    mode = transform.interpolation
    if isinstance(mode, int) and not isinstance(mode, bool):
        mode = _BY_NUMBER.get(mode, mode)
    mode = getattr(mode, "value", mode)
    # On pictures torchvision maps "nearest-exact" to Pillow's nearest.
    return "nearest" if mode == "nearest-exact" else str(mode)


def _fill(transform: Any) -> Any:
    fill = transform.fill
    if fill is None:
        return 0
    if isinstance(fill, dict):
        raise _NoOp("a fill per type of input")
    return tuple(fill) if isinstance(fill, list | tuple) else fill


def _size(size: Any) -> Any:
    return tuple(size) if isinstance(size, list | tuple) else size


def _resize(t: Any) -> Op:
    if t.size is None:
        raise _NoOp("size=None")
    return ops.Resize(_size(t.size), _interpolation(t), t.max_size)


def _padding(t: Any) -> Any:
    padding = t.padding
    if padding is None or isinstance(padding, int):
        return padding
    padding = tuple(padding)
    if _is_v2(t) and len(padding) == 4 and type(t).__name__ == "RandomCrop":
        left, right, top, bottom = padding  # v2 keeps RandomCrop's padding in this order
        return left, top, right, bottom
    return padding


def _random_crop(t: Any) -> Op:
    if t.pad_if_needed and t.padding_mode != "constant" and _is_v2(t):
        raise _NoOp("pad_if_needed with a reflected border, which v2 adds in one step")
    return ops.RandomCrop(_size(t.size), _padding(t), t.pad_if_needed, _fill(t), t.padding_mode)


def _color_jitter(t: Any) -> Op:
    # torchvision stores None for a range that changes nothing.
    ranges = {name: getattr(t, name) or neutral for name, neutral in _NEUTRAL.items()}
    return ops.ColorJitter(**ranges)


_NEUTRAL = {"brightness": (1.0, 1.0), "contrast": (1.0, 1.0), "saturation": (1.0, 1.0), "hue": (0.0, 0.0)}


def _convert_image_dtype(t: Any) -> Op:
    _only_float32(t.dtype)
    return ops.ToFloat("multiply" if _is_v2(t) else "divide")


def _to_dtype(t: Any) -> Op:
    if isinstance(t.dtype, dict) or not t.scale:
        raise _NoOp("a dtype per type of input, or no scaling")
    _only_float32(t.dtype)
    return ops.ToFloat("multiply")


def _only_float32(dtype: Any) -> None:
    if str(dtype) != "torch.float32":
        raise _NoOp(f"dtype {dtype}")


def _random_erasing(t: Any) -> Op:
    value = t.value
    if value is None:  # v2's way of saying "random"
        value = "random"
    elif isinstance(value, list | tuple):
        value = tuple(value)
    return ops.RandomErasing(t.p, tuple(t.scale), tuple(t.ratio), value)


def _random_apply(t: Any) -> Op:
    return ops.RandomApply(_inner(t.transforms), t.p)


def _random_choice(t: Any) -> Op:
    weights = getattr(t, "p", None)
    branches = [_inner([part]) for part in t.transforms]
    steps = tuple(branch[0] if len(branch) == 1 else ops.RandomApply(branch, 1.0) for branch in branches)
    return ops.RandomChoice(steps, None if weights is None else tuple(weights))


def _inner(transforms: Any) -> tuple[Op, ...]:
    steps = [op for part in transforms for leaf in _flatten(part) for op in _translate(leaf)]
    for op in steps:
        if not op.portable:
            raise _NoOp("a step inside that has no op")
        if op.takes is not Kind.IMAGE:
            raise _NoOp("a step inside that is not on pictures")
    return tuple(steps)


def _preset(t: Any) -> list[Op]:
    """Translate what `weights.transforms()` returns for image classification."""
    return [
        ops.Resize(tuple(t.resize_size), _interpolation(t)),
        ops.CenterCrop(tuple(t.crop_size)),
        ops.PILToTensor(),
        ops.ToFloat("divide"),
        ops.Normalize(tuple(t.mean), tuple(t.std)),
    ]


_BUILD: dict[str, Callable[[Any], Op | list[Op]]] = {
    "Identity": lambda _: [],
    "Resize": _resize,
    "CenterCrop": lambda t: ops.CenterCrop(_size(t.size)),
    "RandomCrop": _random_crop,
    "RandomResizedCrop": lambda t: ops.RandomResizedCrop(
        _size(t.size), tuple(t.scale), tuple(t.ratio), _interpolation(t)
    ),
    "RandomHorizontalFlip": lambda t: ops.RandomHorizontalFlip(t.p),
    "RandomVerticalFlip": lambda t: ops.RandomVerticalFlip(t.p),
    "Pad": lambda t: ops.Pad(_padding(t), _fill(t), t.padding_mode),
    "RandomRotation": lambda t: ops.RandomRotation(tuple(t.degrees), _interpolation(t), t.expand, t.center, _fill(t)),
    "RandomAffine": lambda t: ops.RandomAffine(
        tuple(t.degrees), t.translate, t.scale, t.shear, _interpolation(t), _fill(t), t.center
    ),
    "ColorJitter": _color_jitter,
    "Grayscale": lambda t: ops.Grayscale(t.num_output_channels),
    "RandomGrayscale": lambda t: ops.RandomGrayscale(t.p),
    "GaussianBlur": lambda t: ops.GaussianBlur(tuple(t.kernel_size), tuple(t.sigma)),
    "RandomInvert": lambda t: ops.RandomInvert(t.p),
    "RandomPosterize": lambda t: ops.RandomPosterize(t.p, t.bits),
    "RandomSolarize": lambda t: ops.RandomSolarize(t.p, t.threshold),
    "RandomAdjustSharpness": lambda t: ops.RandomAdjustSharpness(t.p, t.sharpness_factor),
    "RandomAutocontrast": lambda t: ops.RandomAutocontrast(t.p),
    "RandomEqualize": lambda t: ops.RandomEqualize(t.p),
    "RandAugment": lambda t: ops.RandAugment(t.num_ops, t.magnitude, t.num_magnitude_bins, _interpolation(t), _fill(t)),
    "TrivialAugmentWide": lambda t: ops.TrivialAugmentWide(t.num_magnitude_bins, _interpolation(t), _fill(t)),
    "RandomApply": _random_apply,
    "RandomChoice": _random_choice,
    "PILToTensor": lambda _: ops.PILToTensor(),
    "ToImage": lambda _: ops.PILToTensor(),
    "ToPureTensor": lambda _: [],
    "ToTensor": lambda _: ops.ToTensor(),
    "ConvertImageDtype": _convert_image_dtype,
    "ToDtype": _to_dtype,
    "Normalize": lambda t: ops.Normalize(tuple(t.mean), tuple(t.std)),
    "RandomErasing": _random_erasing,
    "ImageClassification": _preset,
}
