"""RandomErasing: hide a random rectangle of a tensor."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, TypeAlias

from sophon.errors import ConfigError
from sophon.pipeline import checks
from sophon.pipeline.op import Op
from sophon.pipeline.ops.tensor import Tensor, check_tensor
from sophon.pipeline.rng import Rng
from sophon.pipeline.spec import Kind, Spec

Patch: TypeAlias = tuple[
    int, int, int, int, Tensor | None
]  # top, left, height, width, noise or None for the fixed value

_TRIES = 10  # torchvision's number of attempts at a rectangle that fits


@dataclass(frozen=True)
class RandomErasing(Op):
    """Overwrite a random rectangle with probability p.

    Args:
        p: Probability.
        scale: Smallest and largest share of the area.
        ratio: Smallest and largest height / width.
        value: One number, one per channel, or "random" for normal noise.
    """

    p: float = 0.5
    scale: tuple[float, float] = (0.02, 0.33)
    ratio: tuple[float, float] = (0.3, 3.3)
    value: float | tuple[float, ...] | str = 0.0
    takes: ClassVar[Kind] = Kind.TENSOR

    def __post_init__(self) -> None:
        where, value = self._where("value"), self.value
        if isinstance(value, list | tuple):
            value = tuple(checks.number(where, x) for x in checks.sequence(where, value, range(1, 65)))
        elif isinstance(value, str):
            value = checks.choice(where, value, ("random",))
        else:
            value = checks.number(where, value)
        if isinstance(value, tuple) and len(value) == 1:
            value = value[0]
        self._set(
            p=checks.probability(self._where("p"), self.p),
            scale=checks.interval(self._where("scale"), self.scale, 0.0, 1.0),
            ratio=checks.interval(self._where("ratio"), self.ratio, 1e-6, 1e6),
            value=value,
        )

    def output(self, spec: Spec) -> Spec:
        """Return a tensor of the same shape."""
        self._check_kind(spec)
        if spec.kind is Kind.OBJECT:
            return Spec(Kind.TENSOR, (None, None, None), "float32")
        if self.value == "random" and spec.dtype != "float32":
            raise ConfigError(f"RandomErasing(value='random') takes float32, but the op before it gives {spec}")
        if isinstance(self.value, tuple) and spec.channels is not None and len(self.value) != spec.channels:
            raise ConfigError(f"RandomErasing has {len(self.value)} values for {spec.channels} channel(s)")
        return spec

    def draw(self, rng: Rng, spec: Spec) -> Patch | None:
        """Return the rectangle and its noise, or None to leave the tensor as it is."""
        if not rng.chance(self.p):
            return None
        height, width = spec.height, spec.width
        for _ in range(_TRIES):
            area = height * width * rng.uniform(*self.scale)
            ratio = rng.log_uniform(*self.ratio)
            h, w = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
            if h < height and w < width:
                top, left = rng.below(height - h + 1), rng.below(width - w + 1)
                noise = rng.normals((spec.channels or 0, h, w)) if self.value == "random" else None
                return top, left, h, w, noise
        return None

    def apply(self, value: Tensor, params: Patch | None) -> Tensor:
        """Return the tensor with the rectangle overwritten."""
        check_tensor(self.name(), value)
        if params is None:
            return value
        top, left, height, width, noise = params
        result = value.copy()
        hole = result[:, top : top + height, left : left + width]
        if noise is not None:
            hole[...] = noise
        elif isinstance(self.value, tuple):
            for channel, number in zip(hole, self.value, strict=True):
                channel[...] = number
        else:
            hole[...] = self.value
        return result
