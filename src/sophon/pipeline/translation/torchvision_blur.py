"""GaussianBlur becomes an op where our weights equal those of the installed torch.

The weights come from torch's exp, which differs between machines. So some of our weights are first compared with
torch's: if a single bit differs, the blur stays on the trainer.
"""

from __future__ import annotations

import sys
from functools import lru_cache
from typing import Any

import numpy as np

from sophon.pipeline import ops
from sophon.pipeline.op import Op
from sophon.pipeline.rng import Key, Rng
from sophon.pipeline.spec import image
from sophon.pipeline.translation.met import Met, NoOp

_ASKED = 24  # standard deviations for which weights are compared


def gaussian_blur(t: Any, _: Met) -> Op:
    """Translate `GaussianBlur`."""
    is_v2 = type(t).__module__.startswith("torchvision.transforms.v2")
    candidates = ({"api": "v2", "lanes": 16}, {"api": "v2", "lanes": 8}) if is_v2 else ({"api": "v1"},)
    for told in candidates:
        op = ops.GaussianBlur(tuple(t.kernel_size), tuple(t.sigma), **told)
        if _has_torchs_bits(op):
            return op
    raise NoOp("torch's exp gives different weights on this machine")


@lru_cache(maxsize=64)
def _has_torchs_bits(op: ops.GaussianBlur) -> bool:
    """Let torchvision blur a single white pixel: the result shows torchvision's weights."""
    assert isinstance(op.kernel_size, tuple)
    assert isinstance(op.sigma, tuple)
    torch: Any = sys.modules["torch"]
    module = "torchvision.transforms.v2.functional" if op.api == "v2" else "torchvision.transforms.functional"
    across, down = op.kernel_size
    pixel = torch.zeros(1, 2 * down - 1, 2 * across - 1)
    pixel[0, down - 1, across - 1] = 1.0
    spec = image(2 * down - 1, 2 * across - 1, 1)
    for number in range(1 if op.sigma[0] == op.sigma[1] else _ASKED):
        sigma = op.draw(Rng(Key(0, 0, number), 0), spec)
        blurred = sys.modules[module].gaussian_blur(pixel, list(op.kernel_size), [sigma, sigma])[0].numpy()
        around = blurred[down // 2 : down // 2 + down, across // 2 : across // 2 + across]
        if not (op.is_sure(sigma) and np.array_equal(around, op.kernel(sigma))):
            return False
    return True
