"""The recipes that people train with, small: torchvision's references, timm, SimCLR, BYOL, DINO, albumentations.

Each is what a user hands to ``sophon.DataLoader(data, transform)``. Sizes are a seventh of the usual ones.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageFilter

from tests.support.torchvision_import import import_torchvision

import_torchvision()
from torchvision import transforms as v1  # noqa: E402
from torchvision.transforms import v2  # noqa: E402

CROP, RESIZE, SMALL_CROP = 32, 36, 14
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
AUGMENTATIONS = ("none", "imagenet", "ra", "ta_wide", "augmix")


@dataclass(frozen=True)
class Recipe:
    """What a user's training script has.

    Args:
        build: Makes the transform.
        window: Whether a JPEG can be cut down to what the recipe needs, before anything is decoded.
    """

    build: Callable[[], Any]
    window: bool = False


def torchvision_train(library: str, backend: str, augmentation: str, erase: float, interpolation: str) -> Any:
    """Return the training transform of torchvision's classification references."""
    t = v1 if library == "v1" else v2
    mode = v1.InterpolationMode(interpolation)
    steps = [t.PILToTensor()] if backend == "tensor" else []
    steps += [t.RandomResizedCrop(CROP, interpolation=mode, antialias=True), t.RandomHorizontalFlip(0.5)]
    if augmentation == "ra":
        steps.append(t.RandAugment(magnitude=9, interpolation=mode))
    elif augmentation == "ta_wide":
        steps.append(t.TrivialAugmentWide(interpolation=mode))
    elif augmentation == "augmix":
        steps.append(t.AugMix(severity=3, interpolation=mode))
    elif augmentation != "none":
        steps.append(t.AutoAugment(v1.AutoAugmentPolicy(augmentation), interpolation=mode))
    if backend == "pil":
        steps.append(t.PILToTensor())
    steps += _to_floats(library)
    if erase > 0:
        steps.append(t.RandomErasing(erase))
    if library == "v2":
        steps.append(v2.ToPureTensor())
    return t.Compose(steps)


def torchvision_eval(library: str, backend: str, interpolation: str) -> Any:
    """Return the evaluation transform of torchvision's classification references."""
    t = v1 if library == "v1" else v2
    to_tensor = [t.PILToTensor()]
    resize = t.Resize(RESIZE, interpolation=v1.InterpolationMode(interpolation), antialias=True)
    steps = [resize, t.CenterCrop(CROP)]
    steps = [*to_tensor, *steps] if backend == "tensor" else [*steps, *to_tensor]
    return t.Compose([*steps, *_to_floats(library), *([v2.ToPureTensor()] if library == "v2" else [])])


def _to_floats(library: str) -> list[Any]:
    if library == "v1":
        return [v1.ConvertImageDtype(torch.float32), v1.Normalize(MEAN, STD)]
    return [v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD)]


def timm_train(auto_augment: str | None, erase: float, interpolation: str) -> Any:
    """Return timm's training transform."""
    from timm.data import create_transform

    return create_transform(
        CROP,
        is_training=True,
        auto_augment=auto_augment,
        re_prob=erase,
        re_mode="pixel",
        interpolation=interpolation,
        color_jitter=None if auto_augment else 0.4,
    )


def timm_eval(crop_mode: str) -> Any:
    """Return timm's evaluation transform."""
    from timm.data import create_transform

    return create_transform(CROP, is_training=False, crop_mode=crop_mode, crop_pct=0.875, interpolation="bicubic")


class Views:
    """Several transforms of one picture.

    Args:
        transforms: One per view.
    """

    def __init__(self, *transforms: Any) -> None:
        self.transforms = transforms

    def __call__(self, picture: Image.Image) -> list[Any]:
        """Return the views."""
        return [transform(picture) for transform in self.transforms]


def _contrastive(size: int, scale: tuple[float, float], blur: float, solarize: float, strength: float = 1.0) -> Any:
    jitter = v1.ColorJitter(0.4 * strength, 0.4 * strength, 0.2 * strength, 0.1 * strength)
    return v1.Compose(
        [
            v1.RandomResizedCrop(size, scale=scale, interpolation=v1.InterpolationMode.BICUBIC),
            v1.RandomHorizontalFlip(),
            v1.RandomApply([jitter], p=0.8),
            v1.RandomGrayscale(p=0.2),
            v1.RandomApply([v1.GaussianBlur(5, (0.1, 2.0))], p=blur),
            v1.RandomSolarize(128, p=solarize),
            v1.ToTensor(),
            v1.Normalize(MEAN, STD),
        ]
    )


def simclr_view() -> Any:
    """Return one view of SimCLR, as it is used where the loader itself makes two passes."""
    return _contrastive(CROP, (0.08, 1.0), blur=0.5, solarize=0.0, strength=2.0)


def simclr() -> Any:
    """Return SimCLR's two views."""
    return Views(simclr_view(), simclr_view())


def byol() -> Any:
    """Return BYOL's two views, which differ."""
    return Views(
        _contrastive(CROP, (0.08, 1.0), blur=1.0, solarize=0.0),
        _contrastive(CROP, (0.08, 1.0), blur=0.1, solarize=0.2),
    )


def dino() -> Any:
    """Return DINO's views: two large ones and four small ones."""
    large = (0.4, 1.0)
    return Views(
        _contrastive(CROP, large, blur=1.0, solarize=0.0),
        _contrastive(CROP, large, blur=0.1, solarize=0.2),
        *(_contrastive(SMALL_CROP, (0.05, 0.4), blur=0.5, solarize=0.0) for _ in range(4)),
    )


class OwnBlur:
    """The blur of DINO's own code, which no library has.

    Args:
        p: Probability.
    """

    def __init__(self, p: float) -> None:
        self.p = p

    def __call__(self, picture: Image.Image) -> Image.Image:
        """Return the picture, blurred or not."""
        if random.random() > self.p:
            return picture
        return picture.filter(ImageFilter.GaussianBlur(radius=random.uniform(0.1, 2.0)))


def dino_with_own_blur() -> Any:
    """Return DINO's views with its own blur in the middle."""

    def view(size: int, scale: tuple[float, float], blur: float) -> Any:
        crop = v1.RandomResizedCrop(size, scale=scale, interpolation=v1.InterpolationMode.BICUBIC)
        jitter = v1.RandomApply([v1.ColorJitter(0.4, 0.4, 0.2, 0.1)], p=0.8)
        return v1.Compose([crop, jitter, OwnBlur(blur), v1.ToTensor(), v1.Normalize(MEAN, STD)])

    return Views(view(CROP, (0.4, 1.0), 1.0), *(view(SMALL_CROP, (0.05, 0.4), 0.5) for _ in range(3)))


def views_on_tensors() -> Any:
    """Return two views of v2, of which one makes a tensor of the picture first."""
    first = v2.Compose([v2.ToImage(), v2.RandomResizedCrop(CROP, antialias=True), *_to_floats("v2")])
    other = v2.Compose([v2.ToImage(), v2.RandomCrop(SMALL_CROP), v2.ColorJitter(0.4), *_to_floats("v2")])
    return Views(first, other)


class Albumented:
    """What people write around albumentations, whose transforms take arrays by name.

    Its generators are its own, so it is seeded from torch's at every call.

    Args:
        compose: An `albumentations.Compose`.
    """

    def __init__(self, compose: Any) -> None:
        self.compose = compose

    def __call__(self, picture: Image.Image) -> Any:
        """Return the tensor."""
        self.compose.set_random_seed(int(torch.randint(2**31, ())))
        return self.compose(image=np.asarray(picture))["image"]


def albumentations_train() -> Any:
    """Return a usual recipe of albumentations."""
    import albumentations as A  # noqa: N812
    from albumentations.pytorch import ToTensorV2

    steps = [
        A.RandomResizedCrop((CROP, CROP)),
        A.HorizontalFlip(p=0.5),
        A.ColorJitter(p=0.8),
        A.GaussianBlur(p=0.3),
        A.Normalize(),
        ToTensorV2(),
    ]
    return A.Compose(steps)


def albumentations_eval() -> Any:
    """Return a recipe without chance."""
    import albumentations as A  # noqa: N812
    from albumentations.pytorch import ToTensorV2

    return A.Compose([A.SmallestMaxSize(RESIZE), A.CenterCrop(CROP, CROP), A.Normalize(), ToTensorV2()])


def _recipes() -> dict[str, Recipe]:
    found = {}
    for setting in product(("v1", "v2"), ("pil", "tensor"), AUGMENTATIONS, (0.0, 0.1), ("bilinear", "bicubic")):
        _, backend, augmentation, _, interpolation = setting
        # torchvision turns and shears tensors with two interpolations only, and AugMix makes a tensor of a picture.
        on_tensors = augmentation == "augmix" or (backend == "tensor" and augmentation != "none")
        if on_tensors and interpolation == "bicubic":
            continue
        title = "torchvision train " + " ".join(map(str, setting))
        found[title] = Recipe(lambda s=setting: torchvision_train(*s), window=True)
    for setting in product(("v1", "v2"), ("pil", "tensor"), ("bilinear", "bicubic")):
        title = "torchvision eval " + " ".join(setting)
        found[title] = Recipe(lambda s=setting: torchvision_eval(*s), window=True)
    for setting in product(("rand-m9-mstd0.5-inc1", None), (0.25, 0.0), ("random", "bicubic")):
        found["timm train " + " ".join(map(str, setting))] = Recipe(lambda s=setting: timm_train(*s))
    for crop_mode in ("center", "squash", "border"):
        found[f"timm eval {crop_mode}"] = Recipe(lambda c=crop_mode: timm_eval(c))
    found["simclr view"] = Recipe(simclr_view, window=True)
    found["simclr"] = Recipe(simclr, window=True)
    found["byol"] = Recipe(byol, window=True)
    found["dino"] = Recipe(dino, window=True)
    found["dino with a blur of its own"] = Recipe(dino_with_own_blur, window=True)
    found["views on tensors"] = Recipe(views_on_tensors, window=True)
    found["albumentations train"] = Recipe(albumentations_train)
    found["albumentations train in a class"] = Recipe(lambda: Albumented(albumentations_train()))
    found["albumentations eval"] = Recipe(albumentations_eval)
    return found


RECIPES = _recipes()
