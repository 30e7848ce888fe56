"""Do two machines give the same bits? Each runs the pipeline on a built-in picture, and they compare digests.

Versions alone do not tell: a patched Pillow, another libjpeg or another processor may round otherwise. What counts is
what the ops of this very pipeline, with its own parameters, make of a real picture.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from functools import cache
from importlib import resources

import numpy as np
from PIL import Image, features
from PIL import __version__ as pillow_version

from sophon.errors import OpError
from sophon.pipeline.pipeline import Pipeline
from sophon.pipeline.rng import Key
from sophon.pipeline.spec import Value
from sophon.version import __version__

_PASSES = 4  # random ops are applied in some passes and not in others


@cache
def picture() -> bytes:
    """Return the built-in picture: edges, gradients, noise and pure colours; 320×240, baseline JPEG, 4:2:0 chroma."""
    return resources.files("sophon.pipeline").joinpath("probe.jpg").read_bytes()


def digests(pipeline: Pipeline) -> list[str]:
    """Return, for every op that can run elsewhere, a digest of what it and those before it make of the picture.

    An op that fails on this picture (a crop larger than it, say) ends the list: nothing is known of it and the rest.
    """
    return list(each_digest(pipeline))


def each_digest(pipeline: Pipeline) -> Iterator[str]:
    """Yield the same one by one, for who wants to know those before an op that takes the whole process down."""
    values: list[Value] = [picture()] * _PASSES
    for k in range(pipeline.max_cut):
        hasher = hashlib.sha256()
        try:
            values = [pipeline.run(value, Key(0, epoch, 0), k, k + 1) for epoch, value in enumerate(values)]
        except OpError:
            return
        for value in values:
            hasher.update(_bits(value))
        yield hasher.hexdigest()[:16]


def _bits(value: Value) -> bytes:
    if isinstance(value, Image.Image):
        return f"{value.mode}{value.size}".encode() + value.tobytes()
    array = np.ascontiguousarray(value)
    return f"{array.dtype}{array.shape}".encode() + array.tobytes()


def versions() -> dict[str, str]:
    """Return the versions of what decides about bits, for people and for ops that could not be probed."""
    jpeg = features.version("libjpeg_turbo") or features.version("jpg") or "none"
    return {"sophon": __version__, "pillow": pillow_version, "libjpeg": jpeg, "numpy": np.__version__}
