"""`sophon bench window`: what windows of JPEG files cost on either side of the link, and how many bytes they save.

Times are of the recipe's first two ops, Decode and RandomResizedCrop. ``decode_crop`` is Pillow's own, as torchvision
runs it: a yardstick that does not move when our ops get faster. All others are the code that a node and a trainer run.
Bytes are those of every cut of every sample over several epochs, since each epoch draws another box.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from PIL import Image

from sophon.bench.harness import OnStep, nothing, race_ms
from sophon.bench.ops import RECIPE
from sophon.bench.pictures.samples import Samples
from sophon.codec import RAW, Cut, codec_named, legal_cuts
from sophon.codec.codec import AheadCodec
from sophon.codec.window import available, parse
from sophon.codec.window.codec import WindowCodec
from sophon.codec.window.indexes import Indexes
from sophon.codec.window.refusal import NotWindowable
from sophon.errors import ConfigError, OpError
from sophon.pipeline import Key, needed_box

EPOCHS = 5
_SEED = 0
_CROPPED = 2  # ops: Decode and RandomResizedCrop
_RUN = 16  # samples that a contestant takes in a row: a node cuts one window after the other, with its caches warm
_SIZE = (224, 224)  # what the recipe resizes to
_NS_PER_MS = 1e6
Bytes = np.ndarray[tuple[int, int], np.dtype[np.float64]]


@dataclass(frozen=True)
class _Pass:
    """One sample in one epoch, with the window that it needs."""

    data: bytes
    key: Key
    box: tuple[int, int, int, int]
    payload: bytes
    index_bytes: int


@dataclass(frozen=True)
class WindowResult:
    """What was measured.

    Args:
        data: What the files are.
        files: How many.
        windowable: How many of them a window can be cut from; times are of these.
        file_bytes: Mean size of those.
        ms: CPU milliseconds per sample, by contestant.
        index_share: Bytes of the indexes by bytes of the files.
        gain: How many times fewer bytes cross the link than those of the files.
    """

    data: str
    files: int
    windowable: int
    file_bytes: float
    ms: dict[str, float]
    index_share: float
    gain: dict[str, float]

    def ns_per_byte(self, name: str) -> float:
        """Return a contestant's CPU nanoseconds for each byte of the file."""
        return self.ms[name] * _NS_PER_MS / self.file_bytes

    def to_json(self) -> dict[str, Any]:
        """Return the figures under the names that scripts read."""
        return {
            **{f"{name}_ms": ms for name, ms in self.ms.items()},
            "index_share": self.index_share,
            "gain": self.gain,
        }


def bench_window(samples: Samples, seconds: float, on_step: OnStep | None = None) -> WindowResult:
    """Measure windows on some files.

    Args:
        samples: The files.
        seconds: For the times; at least three rounds. Counting bytes takes as long as it takes.
        on_step: Called with the name of what runs next, its number and how many there are.

    Raises:
        ConfigError: There is nothing to measure: no extension, or no file that a window can be cut from.
    """
    if not available():
        raise ConfigError("the window extension was not built here; install a C compiler and sophon again")
    report = on_step or nothing
    indexes = Indexes(max_bytes=1 << 40)
    walking, indexed = WindowCodec(Indexes(max_bytes=0)), WindowCodec(indexes)
    passes = []
    for sample, data in enumerate(samples.files):
        report("indexes", sample, len(samples.files))
        try:
            header = parse(data)
            index = indexes.build(data, header)
        except NotWindowable:
            continue
        key = Key(_SEED, sample % EPOCHS, sample)
        box = needed_box(RECIPE, key, header.height, header.width)
        assert index is not None  # there is room for all of them
        assert box is not None  # the recipe crops
        payload = indexed.encode_ahead(data, RECIPE, key)
        passes.append(_Pass(data, key, box, payload, len(index.to_bytes())))
    if not passes:
        raise ConfigError(f"no window can be cut from any of {samples.name}; expected baseline JPEG files")
    report("CPU time", 0, 1)
    runs = [passes[start : start + _RUN] for start in range(0, len(passes), _RUN)]
    contestants: dict[str, Callable[[_Pass], object]] = {
        "decode_crop": lambda p: _by_pillow(p.data, p.box),
        "window": lambda p: walking.encode_ahead(p.data, RECIPE, p.key),
        "window_indexed": lambda p: indexed.encode_ahead(p.data, RECIPE, p.key),
        "trainer_whole": lambda p: RECIPE.run(p.data, p.key, 0, _CROPPED),
        "trainer_window": lambda p: RECIPE.run(indexed.decode_ahead(p.payload, RECIPE), p.key, 1, _CROPPED),
    }
    per_run_ms = race_ms({name: _in_a_row(work) for name, work in contestants.items()}, runs, seconds)
    ms = {name: value * len(runs) / len(passes) for name, value in per_run_ms.items()}
    file_bytes = sum(len(p.data) for p in passes)
    return WindowResult(
        data=samples.name,
        files=len(samples.files),
        windowable=len(passes),
        file_bytes=file_bytes / len(passes),
        ms=ms,
        index_share=sum(p.index_bytes for p in passes) / file_bytes,
        gain=_gains(samples, indexed, report),
    )


def _in_a_row(work: Callable[[_Pass], object]) -> Callable[[list[_Pass]], None]:
    def run(passes: list[_Pass]) -> None:
        for item in passes:
            work(item)

    return run


def _by_pillow(data: bytes, box: tuple[int, int, int, int]) -> Image.Image:
    """Decode, crop and resize as torchvision does."""
    top, left, height, width = box
    picture = Image.open(io.BytesIO(data)).convert("RGB")
    return picture.crop((left, top, left + width, top + height)).resize(_SIZE, Image.Resampling.BILINEAR)


def _gains(samples: Samples, window: WindowCodec, report: OnStep) -> dict[str, float]:
    """Return the gain of each way to choose cuts."""
    cuts = legal_cuts(RECIPE, allow_lossy=True)
    rows = []
    for sample, data in enumerate(samples.files):
        report("bytes of every cut", sample, len(samples.files))
        rows += payload_bytes(data, sample, cuts, window)
    sizes = np.array(rows)
    column = {cut: number for number, cut in enumerate(cuts)}
    raw = sizes[:, column[RAW]].mean()

    def gain(chosen: list[Cut]) -> float:
        return float(raw / sizes[:, [column[cut] for cut in chosen]].min(axis=1).mean())

    return {
        "sophon": gain([RAW, Cut(_CROPPED)]),
        "window": gain([RAW, Cut(0, "window")]),
        "exact_best": gain([cut for cut in cuts if codec_named(cut.codec).exact]),
        "lossy_best": gain(cuts),
    }


def payload_bytes(data: bytes, sample: int, cuts: list[Cut], window: WindowCodec) -> list[list[int]]:
    """Return, for each epoch, the bytes of a sample's payload at each cut; where a cut is refused, those of the file.

    The ops run once for all cuts, and what comes before the first random one once for all epochs.
    """
    codecs = [codec_named(cut.codec) for cut in cuts]
    first_random = next(k for k, op in enumerate(RECIPE.ops) if op.random)
    values = [data]
    fixed: dict[Cut, int] = {}
    rows = []
    for epoch in range(EPOCHS):
        key = Key(_SEED, epoch, sample)
        del values[first_random + 1 :]
        for k in range(len(values) - 1, RECIPE.max_cut):
            values.append(RECIPE.run(values[k], key, k, k + 1))
        row = []
        for cut, codec in zip(cuts, codecs, strict=True):
            size = fixed.get(cut)
            if size is None:
                try:
                    ahead = isinstance(codec, AheadCodec)
                    size = len(window.encode_ahead(data, RECIPE, key) if ahead else codec.encode(values[cut.k]))
                except OpError:
                    size = len(data)
                if not ahead and cut.k <= first_random:
                    fixed[cut] = size
            row.append(size)
        rows.append(row)
    return rows
