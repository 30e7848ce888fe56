"""Translates timm's transforms by inspecting the objects; timm itself is never imported."""

from __future__ import annotations

from typing import Any

from sophon.pipeline import ops
from sophon.pipeline.op import Op
from sophon.pipeline.translation.met import Met, Rows
from sophon.pipeline.translation.torchvision import (
    fill_of,
    interpolation_named,
    pil_to_tensor,
    size_of,
    to_tensor,
    unchanged,
)


def _resized_crop(t: Any, _: Met) -> Op:
    names = _interpolations(t)
    told = (size_of(t.size), tuple(t.scale), tuple(t.ratio))
    if len(names) == 1:
        return ops.RandomResizedCrop(*told, names[0])
    return ops.RandomResizedCropAndInterpolation(*told, names)


def _resize_keep_ratio(t: Any, _: Met) -> Op:
    return ops.ResizeKeepRatio(
        size_of(t.size),
        t.longest,
        _interpolations(t),
        t.random_scale_prob,
        tuple(t.random_scale_range),
        t.random_scale_area,
        t.random_aspect_prob,
        tuple(t.random_aspect_range),
    )


def _interpolations(t: Any) -> tuple[str, ...]:
    """Return the names of the interpolations to draw from."""
    found = t.interpolation if isinstance(t.interpolation, list | tuple) else (t.interpolation,)
    return tuple(interpolation_named(mode) for mode in found)


ON_PICTURES: Rows = {
    "RandomResizedCropAndInterpolation": _resized_crop,
    "ResizeKeepRatio": _resize_keep_ratio,
    "CenterCropOrPad": lambda t, _: ops.CenterCropOrPad(size_of(t.size), fill_of(t), t.padding_mode),
    "RandomCropOrPad": lambda t, _: ops.RandomCropOrPad(size_of(t.size), fill_of(t), t.padding_mode),
    "MaybeToTensor": to_tensor,
    "MaybePILToTensor": pil_to_tensor,
}

ON_TENSORS: Rows = {
    "MaybeToTensor": unchanged,
    "MaybePILToTensor": unchanged,
}
