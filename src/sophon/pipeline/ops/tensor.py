"""From picture to tensor: channels first, floats, normalised."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from PIL import Image

from sophon.errors import ConfigError, OpError
from sophon.pipeline import checks, pixels
from sophon.pipeline.op import Op, Params
from sophon.pipeline.ops.picture import not_a_picture
from sophon.pipeline.spec import MODES, OTHER_MODES, Kind, Spec, spec_of

Tensor = np.ndarray[Any, np.dtype[Any]]
_WHITE = np.float32(255)
_TO_UNIT = np.float32(1.0 / 255)


@dataclass(frozen=True)
class _FromImage(Op):
    takes: ClassVar[Kind] = Kind.IMAGE
    _dtype: ClassVar[str]

    def output(self, spec: Spec) -> Spec:
        """Return a tensor with the channels first."""
        self._check_kind(spec)
        height, width, channels = spec.shape or (None, None, None)
        # A picture in mode I;16 has 16-bit numbers, which only PILToTensor accepts, and keeps.
        dtype = spec.dtype if spec.mode and self._dtype == "uint8" else self._dtype
        return Spec(Kind.TENSOR, (channels, height, width), dtype)


@dataclass(frozen=True)
class PILToTensor(_FromImage):
    """Put the channels first; values (0 … 255, class ids or 16-bit numbers) do not change."""

    _dtype: ClassVar[str] = "uint8"
    modes: ClassVar[tuple[str, ...]] = OTHER_MODES

    def apply(self, value: Image.Image, params: Params = None) -> Tensor:  # noqa: ARG002 - part of the contract
        """Return a tensor of the picture's values."""
        return self.apply_into(value, None)

    def apply_into(self, value: Image.Image, out: Tensor | None) -> Tensor:
        """Return the tensor, written into `out` if that is given."""
        _, dtype = MODES.get(getattr(value, "mode", ""), (0, "uint8"))
        return planes(value, np.dtype(dtype).type, out)


@dataclass(frozen=True)
class ToTensor(_FromImage):
    """Put the channels first and divide by 255."""

    _dtype: ClassVar[str] = "float32"
    # No modes with more than 8 bits: torchvision does not divide their values, and large ones wrap around.
    modes: ClassVar[tuple[str, ...]] = tuple(mode for mode in OTHER_MODES if MODES[mode][1] == "uint8")

    def apply(self, value: Image.Image, params: Params = None) -> Tensor:  # noqa: ARG002 - part of the contract
        """Return a float32 tensor in 0 … 1."""
        return self.apply_into(value, None)

    def apply_into(self, value: Image.Image, out: Tensor | None) -> Tensor:
        """Return the tensor, written into `out` if that is given."""
        tensor = planes(value, np.float32, out)
        tensor /= _WHITE
        return tensor


def planes(picture: Image.Image, dtype: type[np.generic], out: Tensor | None = None) -> Tensor:
    """Return the picture's channels, one after the other."""
    if not isinstance(picture, Image.Image):
        raise not_a_picture("this op", picture)
    shape = (len(picture.getbands()), picture.height, picture.width)
    tensor = np.empty(shape, dtype) if out is None else out
    if tensor.shape != shape:
        raise ConfigError(f"expected an output array of shape {shape}, got {tensor.shape}")
    if dtype is np.uint8 and pixels.separate(picture, tensor):
        return tensor
    # Pillow separates channels faster than NumPy can gather every third byte.
    for plane, channel in zip(tensor, picture.split(), strict=True):
        plane[...] = np.asarray(channel)
    return tensor


def check_tensor(name: str, value: object, dtypes: tuple[str, ...] = ()) -> None:
    """Reject a value that is not a tensor of one of the given dtypes; if none is given, any dtype is accepted."""
    if not isinstance(value, np.ndarray) or (dtypes and value.dtype.name not in dtypes):
        wanted = f"a tensor of {' or '.join(dtypes)}" if dtypes else "a tensor"
        raise OpError(
            f"{name} takes {wanted}, got {spec_of(value)} ({type(value).__name__}).",
            remedy="Put it after the step that makes such a tensor.",
        )


@dataclass(frozen=True)
class ToFloat(Op):
    """Scale a uint8 tensor to 0 … 1 in float32.

    Args:
        by: "divide" by 255 as torchvision's v1 does, or "multiply" by 1/255 as its v2 does; the bits differ.
    """

    by: str = "divide"
    takes: ClassVar[Kind] = Kind.TENSOR

    def __post_init__(self) -> None:
        self._set(by=checks.choice(self._where("by"), self.by, ("divide", "multiply")))

    def output(self, spec: Spec) -> Spec:
        """Return a float32 tensor of the same shape."""
        self._check_kind(spec)
        if spec.kind is Kind.TENSOR and spec.dtype not in ("uint8", "float32"):
            raise ConfigError(f"{self.name()} takes uint8 or float32, but the op before it gives {spec}")
        return Spec(Kind.TENSOR, spec.shape or (None, None, None), "float32")

    def apply(self, value: Tensor, params: Params = None) -> Tensor:  # noqa: ARG002 - part of the contract
        """Return the tensor as floats; a float tensor is returned unchanged."""
        check_tensor(self.name(), value, ("uint8", "float32"))
        if value.dtype == np.float32:
            return value
        tensor = value.astype(np.float32)
        if self.by == "divide":
            tensor /= _WHITE
        else:
            tensor *= _TO_UNIT
        return tensor


@dataclass(frozen=True)
class Normalize(Op):
    """Subtract a mean and divide by a standard deviation, channel by channel.

    Args:
        mean: One number per channel.
        std: One number per channel, none of them 0.
    """

    mean: tuple[float, ...]
    std: tuple[float, ...]
    takes: ClassVar[Kind] = Kind.TENSOR

    def __post_init__(self) -> None:
        counts, most = range(1, 65), checks.FLOAT32_MAX
        mean = checks.sequence(self._where("mean"), self.mean, counts)
        std = checks.sequence(self._where("std"), self.std, counts)
        self._set(
            mean=tuple(checks.number(self._where("mean"), x, -most, most) for x in mean),
            std=tuple(checks.number(self._where("std"), x, -most, most) for x in std),
        )
        if len(mean) != len(std):
            raise ConfigError(
                f"Normalize: expected as many means as standard deviations, got {len(mean)} and {len(std)}"
            )
        if not np.all(np.asarray(self.std, np.float32)):
            raise checks.fail(self._where("std"), self.std, "numbers that are not 0 in float32")

    def output(self, spec: Spec) -> Spec:
        """Return a tensor of the same shape."""
        self._check_kind(spec)
        if spec.kind is Kind.OBJECT:
            return Spec(Kind.TENSOR, (None, None, None), "float32")
        if spec.dtype != "float32":
            raise ConfigError(
                f"Normalize takes float32, but the op before it gives {spec}; put ToTensor or ToFloat there"
            )
        if spec.channels is not None and len(self.mean) not in (1, spec.channels):
            raise ConfigError(f"Normalize has {len(self.mean)} means for {spec.channels} channel(s)")
        return spec

    def apply(self, value: Tensor, params: Params = None) -> Tensor:  # noqa: ARG002 - part of the contract
        """Return the normalised tensor."""
        # Pillow pictures and other dtypes would be silently broadcast and converted.
        check_tensor(self.name(), value, ("float32",))
        return self.finish(value - self._mean)

    def apply_to(self, tensor: Tensor) -> Tensor:
        """Normalise a tensor in place; the caller must hold the only reference."""
        tensor -= self._mean
        return self.finish(tensor)

    def finish(self, centred: Tensor) -> Tensor:
        """Divide the tensor in place."""
        centred /= self._column(self.std)
        return centred

    @property
    def _mean(self) -> Tensor:
        return self._column(self.mean)

    @staticmethod
    def _column(numbers: tuple[float, ...]) -> Tensor:
        return np.asarray(numbers, np.float32)[:, None, None]
