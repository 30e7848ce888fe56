"""Recipes as users write them, by name: torchvision and timm presets, views, and pictures with targets."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import sophon
from sophon.bench.torchvision_import import import_torchvision
from sophon.errors import ConfigError
from sophon.pipeline import Pipeline, ops
from sophon.pipeline.ops import Views

_MEAN, _STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def _pil() -> Any:
    """Return torchvision's training preset on pictures, as in its reference scripts."""
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
    """Return torchvision's training preset on tensors, as its documentation recommends."""
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
    """Return the training preset on tensors, including steps for which there is no op."""
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
    """Return torchvision's evaluation preset on tensors."""
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


def _view(size: int, scale: tuple[float, float], jitter: Sequence[float], blur: float, solarize: float = 0.0) -> Any:
    """Return a view for SimCLR or DINO; the two differ only in their parameters."""
    from torchvision import transforms as T  # noqa: N812 - torchvision's own habit

    steps = [
        T.RandomResizedCrop(size, scale=scale, interpolation=T.InterpolationMode.BICUBIC),
        T.RandomHorizontalFlip(),
        T.RandomApply([T.ColorJitter(*jitter)], p=0.8),
        T.RandomGrayscale(p=0.2),
        T.RandomApply([T.GaussianBlur(size // 20 * 2 + 1, (0.1, 2.0))], p=blur),
        T.RandomSolarize(128, p=solarize),
        T.ToTensor(),
        T.Normalize(_MEAN, _STD),
    ]
    return T.Compose(steps)


def _simclr() -> Any:
    """Return SimCLR's two views."""
    return Views([_view(224, (0.08, 1.0), (0.8, 0.8, 0.8, 0.2), blur=0.5)] * 2)


def _dino() -> Any:
    """Return DINO's two global and eight local views."""
    large, small, jitter = (0.4, 1.0), (0.05, 0.4), (0.4, 0.4, 0.2, 0.1)
    first, second = _view(224, large, jitter, blur=1.0), _view(224, large, jitter, blur=0.1, solarize=0.2)
    return Views([first, second] + [_view(96, small, jitter, blur=0.5)] * 8)


def _segmentation() -> Any:
    """Return torchvision's reference recipe for segmentation, with a crop of 512 pixels."""
    import torch
    from torchvision import tv_tensors
    from torchvision.transforms import v2

    fill: dict[Any, Any] = {tv_tensors.Mask: 255, "others": 0}
    dtypes: dict[Any, Any] = {tv_tensors.Image: torch.float32, tv_tensors.Mask: torch.int64, "others": None}
    steps = [
        v2.RandomResize(256, 1024),
        v2.RandomHorizontalFlip(),
        v2.RandomCrop(512, pad_if_needed=True, fill=fill),
        v2.ToImage(),
        v2.ToDtype(dtypes, scale=True),
        v2.Normalize(_MEAN, _STD),
        v2.ToPureTensor(),
    ]
    return sophon.Joint(v2.Compose(steps), ("image", "mask"))


def _detection() -> Any:
    """Return torchvision's reference recipe for detection with large-scale jitter, at 640 pixels."""
    import torch
    from torchvision.transforms import v2

    steps = [
        v2.ScaleJitter((640, 640)),
        v2.RandomCrop(640, pad_if_needed=True),
        v2.RandomHorizontalFlip(),
        v2.ToImage(),
        v2.ToDtype(torch.float32, scale=True),
        v2.ClampBoundingBoxes(),
        v2.SanitizeBoundingBoxes(),
        v2.ToPureTensor(),
    ]
    return sophon.Joint(v2.Compose(steps), ("image", {"boxes": "boxes", "labels": "labels"}))


def _ssd(*, is_lite: bool = False) -> Any:
    """Return torchvision's reference recipe for SSD or SSDlite, with crops that keep objects."""
    import torch
    from torchvision.transforms import v2

    before = [] if is_lite else [v2.RandomPhotometricDistort(), v2.RandomZoomOut(fill=(123, 117, 104))]
    steps = [
        *before,
        v2.RandomIoUCrop(),
        v2.RandomHorizontalFlip(),
        v2.ToImage(),
        v2.ToDtype(torch.float32, scale=True),
        v2.ConvertBoundingBoxFormat("XYXY"),
        v2.SanitizeBoundingBoxes(),
        v2.ToPureTensor(),
    ]
    return sophon.Joint(v2.Compose(steps), ("image", {"boxes": "boxes", "labels": "labels"}))


def _audio() -> Any:
    """Return a recipe for one second of sound, as used by waveform classifiers."""
    return sophon.Pipeline(
        [sophon.ops.DecodeAudio(), sophon.ops.Mono(), sophon.ops.RandomTimeCrop(44_100, pad_if_needed=True)]
    )


JOINTS: dict[str, Callable[[], Any]] = {
    "segmentation": _segmentation,
    "detection": _detection,
    "ssd": _ssd,
    "ssdlite": partial(_ssd, is_lite=True),
}
"""Recipes for pictures with masks, and with boxes and labels."""

RECIPES: dict[str, Callable[[], Any]] = {
    "pil": _pil,
    "tensor": _tensor,
    "tensor-augmented": _tensor_augmented,
    "timm": _timm,
    "evaluation": _evaluation,
    "tensor-evaluation": _tensor_evaluation,
    "timm-evaluation": _timm_evaluation,
    "simclr": _simclr,
    "dino": _dino,
}

SOUNDS: dict[str, Callable[[], Any]] = {"audio": _audio}
"""Recipes for sounds."""


def _nifti() -> Any:
    return Pipeline(
        [ops.DecodeVolume(), ops.RandomBalancedCrop((18, 25, 18)), ops.RandomFlipVolume(), ops.CastVolume()]
    )


def _chunked() -> Any:
    return Pipeline(
        [
            ops.DecodeVolume(label="label", foreground="foreground"),
            ops.NormalizeVolume(),
            ops.RandomBalancedCrop((96, 96, 96)),
            ops.RandomFlipVolume(),
            ops.CastVolume(),
            ops.RandomBrightnessVolume(),
            ops.RandomNoiseVolume(),
        ]
    )


VOLUMES: dict[str, Callable[[], Any]] = {"nifti": _nifti, "chunked": _chunked}
"""Recipes for volumes: an eighth of a small scan, and MLPerf's recipe on scans that already have its spacing."""


def recipe_named(name: str) -> Any:
    """Return a recipe by name; its library must be installed."""
    if name in VOLUMES:
        return VOLUMES[name]()
    known = RECIPES | JOINTS | SOUNDS
    if name not in known:
        raise ConfigError(f"there is no recipe {name!r}; choose from {', '.join(known)}")
    if import_torchvision() is None:
        raise ConfigError("these recipes need torchvision; pip install torchvision")
    try:
        return known[name]()
    except ModuleNotFoundError as missing:
        raise ConfigError(f"recipe {name} needs {missing.name}; pip install {missing.name}") from missing
