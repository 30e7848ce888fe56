"""Recipes that make a tensor first and crop it later: the steps up to the crop need only a region of the picture.

Each step becomes an `OnTensor`, which runs the user's own object and tells both ends which pixels it needs. We draw the
parameters of these steps, with torchvision's distributions, and also those of simple steps after the crop; these then
need no global generator and can run in any thread. Starting with the first step that is not simple, all steps run
unchanged.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from sophon.errors import ConfigError
from sophon.pipeline import ops
from sophon.pipeline.call import of_library
from sophon.pipeline.code import digest
from sophon.pipeline.op import Op
from sophon.pipeline.ops.on_tensor import OnTensor
from sophon.pipeline.spec import Kind, Spec
from sophon.pipeline.translation.met import Met, NoOp, origin
from sophon.pipeline.translation.torchvision import interpolation, normalize, size_of

# Class → dtype of the tensor made from a picture.
_CONVERSIONS = {
    "PILToTensor": "uint8",
    "ToImage": "uint8",
    "ToTensor": "float32",
    "MaybePILToTensor": "uint8",
    "MaybeToTensor": "float32",
}
# On tensors, these classes change neither positions nor values.
_NOTHING = ("Identity", "ToPureTensor", "ToImage", "MaybeToTensor", "MaybePILToTensor")
_FLOATS = Spec(Kind.TENSOR, (3, None, None), "float32")  # pictures are decoded in colour
# Interpolations for tensors; Pillow has more.
_INTERPOLATIONS = ("nearest", "bilinear", "bicubic")


def region_steps(parts: Sequence[Any]) -> list[Op] | None:
    """Return the steps, starting with a conversion, for which both geometry and result are known.

    Return None if there is no crop among them: the whole picture would be needed, and nothing gained.
    """
    first, *rest = parts
    found = origin(first)
    if found.library not in ("torchvision", "timm") or found.name not in _CONVERSIONS:
        return None
    dtype = _CONVERSIONS[found.name]
    steps: list[Op] = [_step(None, dtype, first)]
    for part in rest:
        try:
            geometry, dtype = _geometry(part, dtype)
        except (NoOp, ConfigError):
            break
        steps.append(_step(geometry, dtype, part))
    return steps if any(step.crops for step in steps) else None


def _step(geometry: Op | None, dtype: str, transform: Any) -> OnTensor:
    found = origin(transform)
    return OnTensor(geometry, dtype, of_library(found.library, found.name), digest(transform), transform)


def _geometry(transform: Any, dtype: str) -> tuple[Op | None, str]:
    """Return the geometry of a step, and the dtype after it."""
    found = origin(transform)
    if found.library not in ("torchvision", "timm"):
        raise NoOp
    if found.name in _NOTHING or (found.name == "PILToTensor" and found.is_v2):
        return None, dtype
    if found.name == "Normalize":
        if dtype != "float32":
            raise NoOp
        normalize(transform, Met(_FLOATS)).output(_FLOATS)  # raises for numbers that torchvision itself would reject
        return None, dtype
    if found.name in ("ConvertImageDtype", "ToDtype") and str(transform.dtype) in ("torch.float32", f"torch.{dtype}"):
        return None, str(transform.dtype).removeprefix("torch.")
    moves = _MOVES.get(found.name) if found.library == "torchvision" else None
    if moves is None:
        raise NoOp
    return moves(transform), dtype


def _resizing(t: Any) -> Op:
    mode = interpolation(t)
    if mode not in _INTERPOLATIONS:
        raise NoOp
    if type(t).__name__ == "RandomResizedCrop":
        return ops.RandomResizedCrop(size_of(t.size), tuple(t.scale), tuple(t.ratio), mode)
    if t.size is None:
        raise NoOp
    return ops.Resize(size_of(t.size), mode, t.max_size)


def _random_crop(t: Any) -> Op:
    if t.padding is not None or t.pad_if_needed:
        raise NoOp
    return ops.RandomCrop(size_of(t.size))


_MOVES: dict[str, Callable[[Any], Op]] = {
    "RandomHorizontalFlip": lambda t: ops.RandomHorizontalFlip(t.p),
    "RandomVerticalFlip": lambda t: ops.RandomVerticalFlip(t.p),
    "CenterCrop": lambda t: ops.CenterCrop(size_of(t.size)),
    "RandomCrop": _random_crop,
    "Resize": _resizing,
    "RandomResizedCrop": _resizing,
}
