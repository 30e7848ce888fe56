"""The ops that sophon brings along, one file per family. This list is the table that `registry.OPS` is made of."""

from sophon.pipeline.ops.affine import RandomAffine, RandomRotation
from sophon.pipeline.ops.augment import RandAugment, TrivialAugmentWide
from sophon.pipeline.ops.blur import GaussianBlur
from sophon.pipeline.ops.choose import RandomApply, RandomChoice
from sophon.pipeline.ops.color import ColorJitter, Grayscale, RandomGrayscale
from sophon.pipeline.ops.crop import CenterCrop, RandomCrop, RandomResizedCrop
from sophon.pipeline.ops.decode import Decode
from sophon.pipeline.ops.erase import RandomErasing
from sophon.pipeline.ops.flip import RandomHorizontalFlip, RandomVerticalFlip
from sophon.pipeline.ops.pad import Pad
from sophon.pipeline.ops.resize import Resize
from sophon.pipeline.ops.tensor import Normalize, PILToTensor, ToFloat, ToTensor
from sophon.pipeline.ops.tone import (
    RandomAdjustSharpness,
    RandomAutocontrast,
    RandomEqualize,
    RandomInvert,
    RandomPosterize,
    RandomSolarize,
)

__all__ = [
    "CenterCrop",
    "ColorJitter",
    "Decode",
    "GaussianBlur",
    "Grayscale",
    "Normalize",
    "PILToTensor",
    "Pad",
    "RandAugment",
    "RandomAdjustSharpness",
    "RandomAffine",
    "RandomApply",
    "RandomAutocontrast",
    "RandomChoice",
    "RandomCrop",
    "RandomEqualize",
    "RandomErasing",
    "RandomGrayscale",
    "RandomHorizontalFlip",
    "RandomInvert",
    "RandomPosterize",
    "RandomResizedCrop",
    "RandomRotation",
    "RandomSolarize",
    "RandomVerticalFlip",
    "Resize",
    "ToFloat",
    "ToTensor",
    "TrivialAugmentWide",
]
