"""The built-in ops, one file per family. `registry.OPS` is built from this list."""

from sophon.pipeline.ops.affine import RandomAffine, RandomRotation
from sophon.pipeline.ops.audio.crop import CenterTimeCrop, RandomTimeCrop, TimePad
from sophon.pipeline.ops.audio.decode import DecodeAudio
from sophon.pipeline.ops.audio.level import Gain, Mono, RandomGain
from sophon.pipeline.ops.audio.mask import FrequencyMask, TimeMask
from sophon.pipeline.ops.audio.resample import Resample
from sophon.pipeline.ops.audio.spectrum import MFCC, MelSpectrogram
from sophon.pipeline.ops.augment import RandAugment, TrivialAugmentWide
from sophon.pipeline.ops.autoaugment import AutoAugment
from sophon.pipeline.ops.blur import GaussianBlur
from sophon.pipeline.ops.color import RGB, ColorJitter, Grayscale, RandomGrayscale
from sophon.pipeline.ops.combined.choose import RandomApply, RandomChoice, RandomOrder
from sophon.pipeline.ops.combined.views import Views
from sophon.pipeline.ops.crop import CenterCrop, RandomCrop, RandomResizedCrop, RandomResizedCropAndInterpolation
from sophon.pipeline.ops.crop_or_pad import CenterCropOrPad, RandomCropOrPad
from sophon.pipeline.ops.decode import Decode
from sophon.pipeline.ops.detection import RandomIoUCrop, RandomZoomOut
from sophon.pipeline.ops.distort import RandomChannelPermutation, RandomPhotometricDistort
from sophon.pipeline.ops.erase import RandomErasing
from sophon.pipeline.ops.flip import RandomHorizontalFlip, RandomVerticalFlip
from sophon.pipeline.ops.on_tensor import OnTensor
from sophon.pipeline.ops.pad import Pad
from sophon.pipeline.ops.rescale import RandomResize, RandomShortestSize, ResizeKeepRatio, ScaleJitter
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
    "MFCC",
    "RGB",
    "AutoAugment",
    "CenterCrop",
    "CenterCropOrPad",
    "CenterTimeCrop",
    "ColorJitter",
    "Decode",
    "DecodeAudio",
    "FrequencyMask",
    "Gain",
    "GaussianBlur",
    "Grayscale",
    "MelSpectrogram",
    "Mono",
    "Normalize",
    "OnTensor",
    "PILToTensor",
    "Pad",
    "RandAugment",
    "RandomAdjustSharpness",
    "RandomAffine",
    "RandomApply",
    "RandomAutocontrast",
    "RandomChannelPermutation",
    "RandomChoice",
    "RandomCrop",
    "RandomCropOrPad",
    "RandomEqualize",
    "RandomErasing",
    "RandomGain",
    "RandomGrayscale",
    "RandomHorizontalFlip",
    "RandomInvert",
    "RandomIoUCrop",
    "RandomOrder",
    "RandomPhotometricDistort",
    "RandomPosterize",
    "RandomResize",
    "RandomResizedCrop",
    "RandomResizedCropAndInterpolation",
    "RandomRotation",
    "RandomShortestSize",
    "RandomSolarize",
    "RandomTimeCrop",
    "RandomVerticalFlip",
    "RandomZoomOut",
    "Resample",
    "Resize",
    "ResizeKeepRatio",
    "ScaleJitter",
    "TimeMask",
    "TimePad",
    "ToFloat",
    "ToTensor",
    "TrivialAugmentWide",
    "Views",
]
