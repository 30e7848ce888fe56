"""Checks whether two machines give the same bits: each runs the pipeline on a built-in file, and digests are compared.

Versions alone are not enough: a patched Pillow, a different libjpeg or a different processor may round differently.
Only the output of this pipeline's own ops and parameters for a real picture, or a file of another kind, is proof.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache

import numpy as np
from PIL import Image, features
from PIL import __version__ as pillow_version

from sophon.errors import OpError
from sophon.pipeline.op import Decoder
from sophon.pipeline.ops.decode import Decode, built_in, open_picture
from sophon.pipeline.ops.picture import INTERPOLATIONS
from sophon.pipeline.part import Signal
from sophon.pipeline.pipeline import Pipeline
from sophon.pipeline.rng import Key
from sophon.pipeline.spec import Spec, Value, ViewSet, image
from sophon.version import __version__

_SHAPES = ((0, 0, 90, 61), (40, 20, 101, 110), (60, 10, 93, 190), (100, 100, 128, 118))
_TARGET = (31, 23)
_PASSES = 4  # random ops are applied in some passes and not in others


def picture() -> bytes:
    """Return the built-in picture."""
    return built_in()


def digests(pipeline: Pipeline) -> list[str]:
    """Return a digest of the built-in picture after each op that can run elsewhere (and all ops before it).

    An op that fails on this picture (a crop larger than it, say) ends the list: nothing is known about it or the ops
    after it.
    """
    return list(each_digest(pipeline))


def each_digest(pipeline: Pipeline) -> Iterator[str]:
    """Yield the same digests one by one, so that if an op crashes the process, those before it are known."""
    first = pipeline.ops[0]
    values: list[Value] = [first.specimen() if isinstance(first, Decoder) else picture()] * _PASSES
    sight = _sight() if pipeline.looks else None
    for k in range(pipeline.portable):
        hasher = hashlib.sha256()
        try:
            values = [pipeline.run(value, Key(0, epoch, 0, sight), k, k + 1) for epoch, value in enumerate(values)]
        except OpError:
            return
        for value in values:
            hasher.update(bits_of(value))
        if k > 0 and isinstance(first, Decode):
            hasher.update(_resampling())
        yield hasher.hexdigest()[:16]


def _sight() -> Spec:
    """Return the size of the built-in picture, with some objects in it."""
    return image(240, 320, 3).with_objects(np.array([[10.0, 20.0, 90.5, 200.0], [100.0, 60.0, 300.0, 180.25]]))


@cache
def _resampling() -> bytes:
    """Return a digest that shows how this machine's Pillow resizes pictures of various shapes.

    Pillow 13 resizes the height of tall pictures first, and earlier releases never do. Some boxes then get different
    bits, which the few boxes that a pipeline draws from one picture may not reveal.
    """
    hasher = hashlib.sha256()
    with open_picture(picture()) as decoded:
        for box in _SHAPES:
            piece = decoded.crop(box)
            for method in INTERPOLATIONS.values():
                hasher.update(piece.resize(_TARGET, method).tobytes())
    return hasher.digest()


def bits_of(value: Value) -> bytes:
    """Return all bits of a picture, array, signal or set of views, with its mode or dtype and its shape."""
    if isinstance(value, Image.Image):
        return f"{value.mode}{value.size}".encode() + value.tobytes()
    if isinstance(value, ViewSet):
        parts = [bits_of(view) for view in value.values]
        return b"".join(len(part).to_bytes(8, "little") + part for part in parts)
    scale = ""
    if isinstance(value, Signal):
        if value.label is not None:
            parts = [bits_of(replace(value, label=None)), bits_of(value.label)]
            return b"".join(len(part).to_bytes(8, "little") + part for part in parts)
        value, scale = value.array, str(value.scale)
    array = np.ascontiguousarray(value)
    return f"{array.dtype}{array.shape}{scale}".encode() + array.tobytes()


def digest_of(found: Mapping[str, str]) -> str:
    """Return a digest of versions, as 32 hex digits."""
    return hashlib.sha256(json.dumps(dict(found), sort_keys=True).encode()).hexdigest()[:32]


def versions() -> dict[str, str]:
    """Return the versions of the libraries that determine bits, for display and for ops that could not be probed."""
    jpeg = features.version("libjpeg_turbo") or features.version("jpg") or "none"
    return {"sophon": __version__, "pillow": pillow_version, "libjpeg": jpeg, "numpy": np.__version__}
