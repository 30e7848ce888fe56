"""Gaussian blur with torchvision's bits; `bell` computes the weights.

The convolution runs in the optional extension `_blur` if the extension was built and has reproduced NumPy's bits on a
few synthetic pictures in this process; otherwise it runs in NumPy.

Concurrency: pure functions; the check runs once per process, possibly in two threads at once, with the same outcome.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from PIL import Image

from sophon.errors import OpError
from sophon.pipeline import bell, checks
from sophon.pipeline.ops.picture import ImageOp
from sophon.pipeline.rng import Rng
from sophon.pipeline.spec import Spec

if TYPE_CHECKING:
    from sophon.pipeline import _blur as compiled
else:
    try:
        from sophon.pipeline import _blur as compiled
    except ImportError:  # built without a compiler
        compiled = None

Bytes = np.ndarray[Any, np.dtype[np.uint8]]

_MAX_KERNEL = 255  # pixels; the order in which `bell` adds is proven up to here
_TRIES = 256  # attempts to draw an unambiguous standard deviation: one in two is with 9 pixels, one in twenty with 33


@dataclass(frozen=True)
class GaussianBlur(ImageOp):
    """Blur a picture with a Gaussian of random width.

    Args:
        kernel_size: Odd number of pixels, or (across, down).
        sigma: Standard deviation in pixels, or (smallest, largest).
        api: Which bits to reproduce: torchvision's "v1" or "v2" transform.
        lanes: How many numbers a vector of the trainer's torch holds, 8 or 16; for v2.
    """

    version: ClassVar[int] = 3
    still: ClassVar[bool] = True
    kernel_size: int | tuple[int, int]
    sigma: float | tuple[float, float] = (0.1, 2.0)
    api: str = "v1"
    lanes: int = 16

    def __post_init__(self) -> None:
        where = self._where("kernel_size")
        pair = (self.kernel_size,) * 2 if isinstance(self.kernel_size, int) else self.kernel_size
        pair = checks.sequence(where, pair, (1, 2))
        kernel = tuple(checks.integer(where, part, 1, _MAX_KERNEL) for part in (pair[0], pair[-1]))
        if any(part % 2 == 0 for part in kernel):
            raise checks.fail(where, self.kernel_size, "odd numbers of pixels")
        sigma = self.sigma if isinstance(self.sigma, list | tuple) else (self.sigma, self.sigma)
        self._set(
            kernel_size=kernel,
            sigma=checks.interval(self._where("sigma"), sigma, 1e-3, 1e6),
            api=checks.choice(self._where("api"), self.api, ("v1", "v2")),
        )
        if self.lanes not in (8, 16):
            raise checks.fail(self._where("lanes"), self.lanes, "8 or 16")

    def draw(self, rng: Rng, spec: Spec) -> float:  # noqa: ARG002 - part of the contract
        """Return a standard deviation in pixels for which torch's weights are the same on all machines."""
        assert isinstance(self.sigma, tuple)
        sigma = rng.uniform32(*self.sigma)
        for _ in range(_TRIES if self.api == "v1" and self.sigma[0] < self.sigma[1] else 0):
            if self.is_sure(sigma):
                break
            sigma = rng.uniform32(*self.sigma)
        return sigma

    def is_sure(self, sigma: float) -> bool:
        """Return whether the weights do not depend on how a machine rounds exp."""
        assert isinstance(self.kernel_size, tuple)
        return self.api == "v2" or all(bell.is_sure(count, sigma) for count in set(self.kernel_size))

    def kernel(self, sigma: float) -> bell.Floats:
        """Return the weights of all pixels."""
        assert isinstance(self.kernel_size, tuple)
        across, down = (bell.weights(count, sigma, self.api, self.lanes) for count in self.kernel_size)
        return np.outer(down, across)

    def apply(self, value: Image.Image, params: float) -> Image.Image:
        """Return the blurred picture."""
        assert isinstance(self.kernel_size, tuple)
        across, down = self.kernel_size
        value = self._picture(value)
        if across // 2 >= value.width or down // 2 >= value.height:
            raise OpError(
                f"a kernel of {across}×{down} needs a picture larger than half of it, "
                f"got {value.width}×{value.height}.",
                remedy="Resize first or use a smaller kernel.",
            )
        return Image.fromarray(convolve(np.asarray(value), self.kernel(params)))


def convolve(pixels: Bytes, kernel: bell.Floats) -> Bytes:
    """Return pixels convolved with a kernel, borders reflected, rounded half to even."""
    return _convolve_compiled(pixels, kernel) if _has_numpys_bits() else convolve_by_numpy(pixels, kernel)


def _convolve_compiled(pixels: Bytes, kernel: bell.Floats) -> Bytes:
    source = np.ascontiguousarray(pixels)
    target = np.empty_like(source)
    solid = (*source.shape, 1)[:3]  # a gray picture has no channel axis
    compiled.convolve(source.reshape(solid), np.ascontiguousarray(kernel), target.reshape(solid))
    return target


@lru_cache(maxsize=1)
def _has_numpys_bits() -> bool:
    """Return whether the extension exists and matches NumPy: wide and narrow kernels, colour and gray."""
    if compiled is None:
        return False
    noise = np.random.Generator(np.random.Philox(1))
    for shape, kernel_size, sigma in (
        ((37, 41, 3), (9, 9), 1.7),
        ((24, 29, 3), (5, 3), 0.4),
        ((9, 6), (11, 3), 5.0),
        ((8, 70, 3), (1, 7), 0.1),
    ):
        pixels = noise.integers(0, 256, shape, np.uint8)
        kernel = np.outer(*(bell.weights(count, sigma) for count in kernel_size))
        if not np.array_equal(_convolve_compiled(pixels, kernel), convolve_by_numpy(pixels, kernel)):
            return False
    return True


def convolve_by_numpy(pixels: Bytes, kernel: bell.Floats) -> Bytes:
    """Return the result of `convolve`, computed by its definition.

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
