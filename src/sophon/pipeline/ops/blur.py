"""Gaussian blur with torchvision's bits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from PIL import Image

from sophon.errors import OpError
from sophon.pipeline import checks, portable
from sophon.pipeline.ops.picture import ImageOp
from sophon.pipeline.rng import Rng
from sophon.pipeline.spec import Spec

_Floats = np.ndarray[Any, np.dtype[np.float32]]
_MAX_KERNEL = 255  # pixels; the weight order below is proved up to here


@dataclass(frozen=True)
class GaussianBlur(ImageOp):
    """Blur a picture with a Gaussian of random width.

    Args:
        kernel_size: Odd number of pixels, or (across, down).
        sigma: Standard deviation in pixels, or (smallest, largest).
    """

    kernel_size: int | tuple[int, int]
    sigma: float | tuple[float, float] = (0.1, 2.0)

    def __post_init__(self) -> None:
        where = self._where("kernel_size")
        pair = (self.kernel_size,) * 2 if isinstance(self.kernel_size, int) else self.kernel_size
        pair = checks.sequence(where, pair, (1, 2))
        kernel = tuple(checks.integer(where, part, 1, _MAX_KERNEL) for part in (pair[0], pair[-1]))
        if any(part % 2 == 0 for part in kernel):
            raise checks.fail(where, self.kernel_size, "odd numbers of pixels")
        sigma = self.sigma if isinstance(self.sigma, list | tuple) else (self.sigma, self.sigma)
        self._set(kernel_size=kernel, sigma=checks.interval(self._where("sigma"), sigma, 1e-3, 1e6))

    def draw(self, rng: Rng, spec: Spec) -> float:  # noqa: ARG002 - part of the contract
        """Return the standard deviation in pixels."""
        assert isinstance(self.sigma, tuple)
        return rng.uniform(*self.sigma)

    def apply(self, value: Image.Image, params: float) -> Image.Image:
        """Return the blurred picture."""
        assert isinstance(self.kernel_size, tuple)
        across, down = self.kernel_size
        if across // 2 >= value.width or down // 2 >= value.height:
            raise OpError(
                f"a kernel of {across}×{down} needs a picture larger than half of it, "
                f"got {value.width}×{value.height}.",
                remedy="Resize first or use a smaller kernel.",
            )
        return Image.fromarray(convolve(np.asarray(value), np.outer(weights(down, params), weights(across, params))))


def weights(count: int, sigma: float) -> _Floats:
    """Return a Gaussian's weights in float32, which add up to one.

    exp is rounded correctly here; torch calls a library whose last bit depends on the machine (one in a few hundred
    values differs), so that torchvision's own blur is not the same everywhere. Ours is.
    """
    x = np.arange(count, dtype=np.float32) - np.float32((count - 1) * 0.5)
    ratio = x / np.float32(sigma)
    exponents = np.float32(-0.5) * (ratio * ratio)
    # exp() below e**-104 is zero in float32; portable.exp needs no more range than that.
    bell = np.array([portable.exp(max(float(e), -200.0)) for e in exponents], np.float32)
    return bell / _sum(bell)


def _sum(values: _Floats) -> np.float32:
    """Add floats in the order of torch's AVX2 kernel.

    Float addition is not associative, and a sum that differs in the last bit would change every weight. Eight lanes are
    added side by side, then the rest one by one, then the lanes; fewer than eight numbers are one lane.
    """
    lanes = 8 if len(values) >= 8 else 1
    rows = values[: len(values) // lanes * lanes].reshape(-1, lanes)
    columns = _add_rows(rows)
    if lanes == 1:
        return np.float32(columns[0])
    total = np.float32(0)
    for value in (*values[rows.size :], *columns):
        total += value
    return total


def _add_rows(rows: _Floats) -> _Floats:
    """Add rows into four accumulators in turn, what is left over into the first, then the accumulators."""
    turns = len(rows) // 4
    sums = np.zeros((4, rows.shape[1]), np.float32)
    for turn in rows[: turns * 4].reshape(turns, *sums.shape):
        sums += turn
    for row in rows[turns * 4 :]:
        sums[0] += row
    return np.asarray(((sums[0] + sums[1]) + sums[2]) + sums[3])


def convolve(pixels: np.ndarray[Any, np.dtype[np.uint8]], kernel: _Floats) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Return pixels convolved with a kernel, borders reflected, rounded half to even.

    The definition is a chain of fused multiply-adds in float32, kernel row by kernel row, which is what torch's
    convolution runs. It is computed as a float64 product (exact: 8 bits by 24) plus the accumulator, rounded to
    float32 at each step: basic operations, hence the same bits on every machine.
    """
    down, across = kernel.shape
    around = ((down // 2, down // 2), (across // 2, across // 2), (0, 0))[: pixels.ndim]
    padded = np.pad(pixels, around, mode="reflect").astype(np.float64)
    height, width = pixels.shape[:2]
    total = np.zeros(pixels.shape, np.float32)
    product = np.empty(pixels.shape, np.float64)
    for y in range(down):
        for x in range(across):
            np.multiply(padded[y : y + height, x : x + width], float(kernel[y, x]), out=product)
            np.add(product, total, out=product)
            total[...] = product
    return np.rint(total).astype(np.uint8)
