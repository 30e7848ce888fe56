"""Recipes as people write them, by name: presets of torchvision and timm."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sophon.bench.torchvision_import import import_torchvision
from sophon.errors import ConfigError

_MEAN, _STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def _pil() -> Any:
    """Return torchvision's training preset on pictures, as its references have it."""
    from torchvision import transforms as T  # noqa: N812 - torchvision's own habit

    return T.Compose(
        [
            T.RandomResizedCrop(224),
            T.RandomHorizontalFlip(),
            T.ToTensor(),
            T.Normalize(_MEAN, _STD),
            T.RandomErasing(0.1),
        ]
    )


def _tensor() -> Any:
    """Return the same on tensors, as torchvision's documentation recommends it."""
    import torch
    from torchvision.transforms import v2

    return v2.Compose(
        [
            v2.ToImage(),
            v2.RandomResizedCrop(224, antialias=True),
            v2.RandomHorizontalFlip(),
            v2.ToDtype(torch.float32, scale=True),
            v2.Normalize(_MEAN, _STD),
            v2.ToPureTensor(),
        ]
    )


def _tensor_augmented() -> Any:
    """Return the same with steps that have no op."""
    import torch
    from torchvision.transforms import v2

    return v2.Compose(
        [
            v2.PILToTensor(),
            v2.RandomResizedCrop(176, antialias=True),
            v2.RandomHorizontalFlip(),
            v2.TrivialAugmentWide(),
            v2.ToDtype(torch.float32, scale=True),
            v2.Normalize(_MEAN, _STD),
            v2.RandomErasing(0.1),
            v2.ToPureTensor(),
        ]
    )


def _evaluation() -> Any:
    """Return torchvision's evaluation preset."""
    from torchvision import transforms as T  # noqa: N812 - torchvision's own habit

    return T.Compose([T.Resize(256), T.CenterCrop(224), T.ToTensor(), T.Normalize(_MEAN, _STD)])


def _tensor_evaluation() -> Any:
    """Return the same on tensors."""
    import torch
    from torchvision.transforms import v2

    return v2.Compose(
        [
            v2.PILToTensor(),
            v2.Resize(256, antialias=True),
            v2.CenterCrop(224),
            v2.ToDtype(torch.float32, scale=True),
            v2.Normalize(_MEAN, _STD),
        ]
    )


def _timm() -> Any:
    """Return timm's training recipe."""
    from timm.data.transforms_factory import create_transform

    return create_transform(224, is_training=True, auto_augment="rand-m9-mstd0.5", re_prob=0.25)


def _timm_evaluation() -> Any:
    """Return timm's evaluation recipe."""
    from timm.data.transforms_factory import create_transform

    return create_transform(224, is_training=False, crop_pct=0.875)


RECIPES: dict[str, Callable[[], Any]] = {
    "pil": _pil,
    "tensor": _tensor,
    "tensor-augmented": _tensor_augmented,
    "timm": _timm,
    "evaluation": _evaluation,
    "tensor-evaluation": _tensor_evaluation,
    "timm-evaluation": _timm_evaluation,
}


def recipe_named(name: str) -> Any:
    """Return a recipe; its library must be installed."""
    if name not in RECIPES:
        raise ConfigError(f"no recipe {name!r}; there is {', '.join(RECIPES)}")
    if import_torchvision() is None:
        raise ConfigError("these recipes need torchvision; pip install torchvision")
    try:
        return RECIPES[name]()
    except ModuleNotFoundError as missing:
        raise ConfigError(f"recipe {name} needs {missing.name}; pip install {missing.name}") from missing
