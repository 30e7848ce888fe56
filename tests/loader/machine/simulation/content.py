"""What samples hold, so that a wrong, repeated or wrongly finished one is seen.

`Numbers` is fast and has the algebra of a pipeline: ops that do not commute and draw from (seed, epoch, sample,
position), and codecs that have to be undone. `Pictures` are a real pipeline on real files.
"""

import io
from functools import lru_cache
from typing import Any, Protocol

import numpy as np
from PIL import Image

from sophon.codec.cut import RAW, Cut, finish_payload, legal_cuts, make_payload
from sophon.codec.route import Route, can_follow, pass_on
from sophon.pipeline import Key, Pipeline, ops

_MASK = (1 << 61) - 1
_FACTORS = (0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9, 0x27D4EB2F165667C5)
_CODECS = {"raw": 0, "zstd": 0x5DEECE66D, "webp": 0x2545F4914F6CDD1D}


class Content(Protocol):
    """Samples, and both sides' part of the work on them."""

    cuts: tuple[Cut, ...]

    def make(self, key: Key, cut: Cut) -> Any:
        """Do the storage node's part."""

    def can_follow(self, first: Cut, cut: Cut) -> bool:
        """Return whether a relay can make one cut from another."""

    def pass_on(self, key: Key, route: Route, payload: Any) -> Any:
        """Do a relay's part."""

    def finish(self, key: Key, cut: Cut, payload: Any) -> Any:
        """Do the trainer's part; the result can be compared."""

    def whole(self, key: Key) -> Any:
        """Return what the uncut run gives."""


class Numbers:
    """Integers; an op is a multiplication and an addition, and a codec an exclusive or."""

    cuts = (RAW, Cut(1, "zstd"), Cut(2), Cut(2, "webp"), Cut(4, "zstd"))

    def make(self, key: Key, cut: Cut) -> int:
        return self._run(hash((key.sample, 77)) & _MASK, key, 0, cut.k) ^ _CODECS[cut.codec]

    def can_follow(self, first: Cut, cut: Cut) -> bool:
        return first.k <= cut.k

    def pass_on(self, key: Key, route: Route, payload: int) -> int:
        first, cut = route.cuts
        return self._run(payload ^ _CODECS[first.codec], key, first.k, cut.k) ^ _CODECS[cut.codec]

    def finish(self, key: Key, cut: Cut, payload: int) -> int:
        return self._run(payload ^ _CODECS[cut.codec], key, cut.k, len(_FACTORS))

    def whole(self, key: Key) -> int:
        return self.finish(key, RAW, self.make(key, RAW))

    @staticmethod
    def _run(value: int, key: Key, start: int, stop: int) -> int:
        for position in range(start, stop):
            drawn = hash((key.seed, key.epoch, key.sample, position))  # of integers: the same in every process
            value = (value * _FACTORS[position] + drawn) & _MASK
        return value


class Pictures:
    """Tiny pictures through a real pipeline, cut by real codecs."""

    def __init__(self) -> None:
        self._pipeline = Pipeline([ops.Decode(), ops.RandomResizedCrop(8), ops.RandomHorizontalFlip(), ops.ToTensor()])
        self.cuts = tuple(legal_cuts(self._pipeline))

    def make(self, key: Key, cut: Cut) -> bytes:
        return make_payload(self._pipeline, _file(int(key.sample)), key, cut)

    def can_follow(self, first: Cut, cut: Cut) -> bool:
        return can_follow(self._pipeline, first, cut)

    def pass_on(self, key: Key, route: Route, payload: bytes) -> bytes:
        return pass_on(self._pipeline, payload, key, route)

    def finish(self, key: Key, cut: Cut, payload: bytes) -> bytes:
        return np.asarray(finish_payload(self._pipeline, payload, key, cut)).tobytes()

    def whole(self, key: Key) -> bytes:
        return np.asarray(self._pipeline.run(_file(int(key.sample)), key)).tobytes()


@lru_cache(maxsize=1024)
def _file(sample: int) -> bytes:
    pixels = np.random.Generator(np.random.Philox(sample)).integers(0, 256, (13, 17, 3), np.uint8)
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, "JPEG")
    return out.getvalue()
