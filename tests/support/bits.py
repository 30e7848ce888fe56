"""What tests of ops against another library share: pictures, parameters and a comparison of bits."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
from PIL import Image

from sophon.pipeline import Key, Op, Rng, spec_of
from tests.support.pictures import photos, scene

SIZES = [(1, 1), (3, 2), (17, 31), (64, 48), (225, 224), (333, 500)]


def pictures(mode: str = "RGB") -> list[Image.Image]:
    """Return pictures of all sizes, made-up and real, in one mode."""
    made = [scene(*size, seed=i) for i, size in enumerate(SIZES)]
    real = [Image.open(io.BytesIO(data)).convert("RGB") for data in photos()[:4]]
    return [picture.convert(mode) for picture in made + real]


def drawn(op: Op, value: Any, count: int = 6) -> list[Any]:
    """Return a few parameters as the op itself draws them for this value."""
    return [op.draw(Rng(Key(5, epoch, 0), 1), spec_of(value)) for epoch in range(count)]


def same(ours: object, theirs: Any) -> None:
    """Assert that a result has the bits of another library's picture or tensor."""
    if isinstance(theirs, Image.Image):
        assert isinstance(ours, Image.Image)
        assert (ours.mode, ours.size) == (theirs.mode, theirs.size)
        assert ours.tobytes() == theirs.tobytes()
    else:
        assert isinstance(ours, np.ndarray)
        theirs = np.asarray(theirs)
        assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape)
        assert ours.tobytes() == theirs.tobytes()
