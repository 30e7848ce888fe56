"""Translates torchvision's v1 and v2 transforms by inspecting the objects; torchvision itself is never imported.

Two tables give the op for each class, on pictures and on tensors. Only torchvision's own classes are in them: a
subclass may do anything. A class or setting without a row has no op, and its object runs unchanged.
"""

from __future__ import annotations

import math
import sys
from typing import Any

from sophon.errors import ConfigError
from sophon.pipeline import ops
from sophon.pipeline.call import Form
from sophon.pipeline.op import Op
from sophon.pipeline.translation.met import Became, Met, NoOp, Origin, Rows, with_image
from sophon.pipeline.translation.torchvision_blur import gaussian_blur

# Pillow's numbers, which torchvision accepts in place of its own names.
_BY_NUMBER = {0: "nearest", 1: "lanczos", 2: "bilinear", 3: "bicubic", 4: "box", 5: "hamming"}


def is_v2(t: Any) -> bool:
    """Return whether a transform belongs to torchvision's v2."""
    return type(t).__module__.startswith("torchvision.transforms.v2")


def interpolation(transform: Any) -> str:
    """Return the name of a transform's interpolation."""
    return interpolation_named(transform.interpolation)


def interpolation_named(mode: Any) -> str:
    """Return the name of an interpolation."""
    if isinstance(mode, int) and not isinstance(mode, bool):
        mode = _BY_NUMBER.get(mode, mode)
    mode = getattr(mode, "value", mode)
    # On pictures torchvision maps "nearest-exact" to Pillow's nearest.
    return "nearest" if mode == "nearest-exact" else str(mode)


def fill_of(transform: Any) -> Any:
    """Return the colour outside the picture."""
    fill = transform.fill
    if fill is None:
        return 0
    if isinstance(fill, dict):
        raise NoOp("a fill per type of input")
    return tuple(fill) if isinstance(fill, list | tuple) else fill


def size_of(size: Any) -> Any:
    """Return a size in the form that ops take."""
    return tuple(size) if isinstance(size, list | tuple) else size


def _resize(t: Any, _: Met) -> Op:
    if t.size is None:
        raise NoOp("size=None")
    return ops.Resize(size_of(t.size), interpolation(t), t.max_size)


def _padding(t: Any) -> Any:
    padding = t.padding
    if padding is None or isinstance(padding, int):
        return padding
    padding = tuple(padding)
    if is_v2(t) and len(padding) == 4 and type(t).__name__ == "RandomCrop":
        left, right, top, bottom = padding  # v2 keeps RandomCrop's padding in this order
        return left, top, right, bottom
    return padding


def _random_crop(t: Any, _: Met) -> Op:
    if t.pad_if_needed and t.padding_mode != "constant" and is_v2(t):
        raise NoOp("pad_if_needed with a reflected border, which v2 adds in one step")
    return ops.RandomCrop(size_of(t.size), _padding(t), t.pad_if_needed, fill_of(t), t.padding_mode)


def _color_jitter(t: Any, _: Met) -> Op:
    # torchvision stores None for a range that changes nothing.
    ranges = {name: getattr(t, name) or neutral for name, neutral in _NEUTRAL.items()}
    return ops.ColorJitter(**ranges)


_NEUTRAL = {"brightness": (1.0, 1.0), "contrast": (1.0, 1.0), "saturation": (1.0, 1.0), "hue": (0.0, 0.0)}


def _api(t: Any) -> str:
    """Return which of torchvision's two APIs, "v1" or "v2", a transform belongs to; their bits differ slightly."""
    return "v2" if is_v2(t) else "v1"


def _random_erasing(t: Any, met: Met) -> Op:
    value = t.value
    if value is None:  # v2's way of saying "random"
        value = "random"
    elif isinstance(value, list | tuple):
        value = tuple(value)
    if met.spec.dtype != "float32":
        raise NoOp(f"on {met.spec.dtype}")
    return ops.RandomErasing(t.p, tuple(t.scale), tuple(t.ratio), value)


def _to_float(t: Any, met: Met) -> Op | Became:
    """Translate `ConvertImageDtype`, and `ToDtype` with scaling."""
    if str(t.dtype) == f"torch.{met.spec.dtype}":
        return Became()
    if str(t.dtype) != "torch.float32":
        raise NoOp(f"dtype {t.dtype}")
    if met.spec.dtype != "uint8" or not getattr(t, "scale", True):
        raise NoOp(f"from {met.spec.dtype} without scaling")
    return ops.ToFloat("multiply" if is_v2(t) else "divide")


def normalize(t: Any, _: Met) -> Op:
    """Translate `Normalize`, whose mean and std may be tensors."""
    return ops.Normalize(_numbers(t.mean), _numbers(t.std))


def _numbers(found: Any) -> tuple[float, ...]:
    """Return numbers that are given as a single number, a list or tensors."""
    if hasattr(found, "tolist"):  # a tensor or an array, of one number per channel
        if math.prod(found.shape) not in (found.shape or (1,)):
            raise NoOp(f"numbers of shape {tuple(found.shape)}")
        found = found.reshape(-1).tolist()
    if isinstance(found, int | float):
        return (found,)
    return tuple(float(number) for number in found)


def to_tensor(*_: Any) -> Became:
    """Translate `ToTensor`, which gives floats of torch's default type."""
    torch: Any = sys.modules.get("torch")
    if torch is not None and str(torch.get_default_dtype()) != "torch.float32":
        raise NoOp(f"torch.get_default_dtype() is {torch.get_default_dtype()}")
    return Became([ops.ToTensor()], Form())


def pil_to_tensor(*_: Any) -> Became:
    """Translate `PILToTensor`, whose tensor has the picture's own layout in memory."""
    return Became([ops.PILToTensor()], Form(channels_last=True))


def unchanged(*_: Any) -> Became:
    """Translate a transform that does nothing to its input."""
    return Became()


def _preset(t: Any, _: Met) -> Became:
    """Translate the result of `weights.transforms()` for image classification."""
    steps = [
        ops.Resize(tuple(t.resize_size), interpolation(t)),
        ops.CenterCrop(tuple(t.crop_size)),
        ops.PILToTensor(),
        ops.ToFloat("divide"),
        ops.Normalize(_numbers(t.mean), _numbers(t.std)),
    ]
    return Became(steps, Form(channels_last=True))


ON_PICTURES: Rows = {
    "Identity": unchanged,
    "ToDtype": unchanged,  # v2 converts tensors and passes pictures through
    "ToPureTensor": unchanged,
    "Resize": _resize,
    "CenterCrop": lambda t, _: ops.CenterCrop(size_of(t.size)),
    "RandomCrop": _random_crop,
    "RandomResizedCrop": lambda t, _: ops.RandomResizedCrop(
        size_of(t.size), tuple(t.scale), tuple(t.ratio), interpolation(t)
    ),
    "RandomHorizontalFlip": lambda t, _: ops.RandomHorizontalFlip(t.p),
    "RandomVerticalFlip": lambda t, _: ops.RandomVerticalFlip(t.p),
    "Pad": lambda t, _: ops.Pad(_padding(t), fill_of(t), t.padding_mode),
    "RandomRotation": lambda t, _: ops.RandomRotation(
        tuple(t.degrees), interpolation(t), t.expand, t.center, fill_of(t)
    ),
    "RandomAffine": lambda t, _: ops.RandomAffine(
        tuple(t.degrees), t.translate, t.scale, t.shear, interpolation(t), fill_of(t), t.center, _api(t)
    ),
    "ColorJitter": _color_jitter,
    "Grayscale": lambda t, _: ops.Grayscale(t.num_output_channels),
    "RandomGrayscale": lambda t, _: ops.RandomGrayscale(t.p),
    "GaussianBlur": gaussian_blur,
    "RandomInvert": lambda t, _: ops.RandomInvert(t.p),
    "RandomPosterize": lambda t, _: ops.RandomPosterize(t.p, t.bits),
    "RandomSolarize": lambda t, _: ops.RandomSolarize(t.p, t.threshold),
    "RandomAdjustSharpness": lambda t, _: ops.RandomAdjustSharpness(t.p, t.sharpness_factor),
    "RandomAutocontrast": lambda t, _: ops.RandomAutocontrast(t.p),
    "RandomEqualize": lambda t, _: ops.RandomEqualize(t.p),
    "AutoAugment": lambda t, _: ops.AutoAugment(t.policy.value, interpolation(t), fill_of(t), _api(t)),
    "RandAugment": lambda t, _: ops.RandAugment(
        t.num_ops, t.magnitude, t.num_magnitude_bins, interpolation(t), fill_of(t), _api(t)
    ),
    "TrivialAugmentWide": lambda t, _: ops.TrivialAugmentWide(
        t.num_magnitude_bins, interpolation(t), fill_of(t), _api(t)
    ),
    "RGB": lambda *_: ops.RGB(),
    "RandomPhotometricDistort": lambda t, _: ops.RandomPhotometricDistort(
        tuple(t.brightness), tuple(t.contrast), tuple(t.saturation), tuple(t.hue), t.p
    ),
    "RandomChannelPermutation": lambda *_: ops.RandomChannelPermutation(),
    "RandomZoomOut": lambda t, _: ops.RandomZoomOut(fill_of(t), tuple(t.side_range), t.p),
    "ScaleJitter": lambda t, _: ops.ScaleJitter(tuple(t.target_size), tuple(t.scale_range), interpolation(t)),
    "RandomShortestSize": lambda t, _: ops.RandomShortestSize(tuple(t.min_size), t.max_size, interpolation(t)),
    "RandomResize": lambda t, _: ops.RandomResize(t.min_size, t.max_size, interpolation(t)),
    "ToPILImage": unchanged,  # in v2; v1 refuses pictures
    "PILToTensor": pil_to_tensor,
    "ToImage": lambda *_: Became([ops.PILToTensor()], Form(is_image=True, channels_last=True)),
    "ToTensor": to_tensor,
    "ImageClassification": _preset,
}

ON_TENSORS: Rows = {
    "Identity": unchanged,
    "ToPureTensor": lambda _, met: with_image(met, False),
    "ConvertImageDtype": _to_float,
    "ToDtype": _to_float,
    "Normalize": normalize,
    "RandomErasing": _random_erasing,
}

_KERNELS = "it computes with torch's kernels, whose last bits depend on the processor"

# Why a class has no op, if that is not obvious.
REASONS = {
    "AugMix": _KERNELS,
    "ElasticTransform": _KERNELS,
    "RandomPerspective": "it solves for its coefficients with LAPACK, whose last bits depend on the machine",
    "JPEG": "it needs torchvision's own JPEG encoder",
    "FiveCrop": "it gives several pictures",
    "TenCrop": "it gives several pictures",
}

# What torchvision itself rejects: by kind of value, then by family.
_REFUSED_ON_PICTURES = {
    False: ("Normalize", "LinearTransformation", "ConvertImageDtype", "RandomErasing", "ToPILImage"),
    True: ("Normalize", "LinearTransformation", "GaussianNoise"),
}
_REFUSED_ON_TENSORS = {False: ("ToTensor", "PILToTensor"), True: ()}


def check_accepted(found: Origin, transform: Any, met: Met) -> None:
    """Raise for a transform that torchvision itself would reject at that position for every sample."""
    if (
        found.library != "torchvision" or getattr(transform, "p", 1.0) == 0.0
    ):  # a transform that is never applied rejects nothing
        return
    if met.is_picture and found.name in _REFUSED_ON_PICTURES[found.is_v2]:
        remedy = "Leave it out." if found.name == "ToPILImage" else "Put ToTensor or ToImage before it."
        raise ConfigError(f"{found.name} takes a tensor, but the step before it gives a picture. {remedy}")
    if not met.is_picture and found.name in _REFUSED_ON_TENSORS[found.is_v2]:
        raise ConfigError(f"{found.name} takes a picture, but the step before it gives a tensor. Leave it out.")
    if met.spec.dtype == "uint8" and found.name == "Normalize":
        raise ConfigError(
            "Normalize takes floats, but the step before it gives uint8. "
            "Put ConvertImageDtype(torch.float32) or ToDtype(torch.float32, scale=True) before it."
        )
