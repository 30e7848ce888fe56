"""`sophon bench window`: the cost of JPEG windows on either side of the link, and the bytes they save.

Times are of the recipe's first two ops, Decode and RandomResizedCrop. ``decode_crop`` times Pillow's own code, as
torchvision calls it: a reference that does not change when our ops get faster. All others are the code that a node and
a trainer run. Bytes are counted for every cut of every sample over several epochs, since each epoch draws a different
box. The more CPU time a node may spend on a sample, the fewer bytes it can send: the budgets trace that curve.

Progressive files are timed separately, since they have no index. If a data set has none, its photos are re-saved.
"""

from __future__ import annotations

import io
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
from PIL import Image

from sophon.bench.cuts import cuts_to_measure
from sophon.bench.harness import OnStep, nothing, race_ms
from sophon.bench.ops import RECIPE
from sophon.bench.pictures.samples import Samples
from sophon.codec import RAW, Cut, codec_named, make_payload
from sophon.codec.codec import AheadCodec
from sophon.codec.window import available, parse
from sophon.codec.window.codec import JpegWindow
from sophon.codec.window.indexes import Indexes
from sophon.codec.window.refusal import NotWindowable
from sophon.errors import ConfigError, OpError
from sophon.pipeline import Box, Key, needed_box
from sophon.profile.columns import cuts_to_profile

EPOCHS = 5
BUDGETS_MS = (0.5, 1, 2, 3, 5, 8)  # CPU time of a node per sample
_SEED = 0
_CROPPED = 2  # number of ops: Decode and RandomResizedCrop
_RUN = 16  # samples that a contestant takes in a row: a node cuts one window after another, with warm caches
_SIZE = (224, 224)  # what the recipe resizes to
_NS_PER_MS = 1e6
Bytes = np.ndarray[tuple[int, int], np.dtype[np.float64]]


@dataclass(frozen=True)
class _Pass:
    """One sample in one epoch, with the window that it needs."""

    data: bytes
    key: Key
    box: Box
    payload: bytes
    index_bytes: int = 0


@dataclass(frozen=True)
class WindowResult:
    """The measurements.

    Args:
        data: Description of the files.
        files: Number of files.
        windowable: Number of files from which a window can be cut; times refer to these.
        file_bytes: Mean size of these files.
        ms: CPU milliseconds per sample, by contestant.
        index_share: Bytes of the indexes divided by bytes of the files.
        gain: Factor by which fewer bytes cross the link than with whole files.
        budget: The gain of the best exact plan by the CPU milliseconds that a node may spend per sample.
        progressive_ms: CPU milliseconds per progressive file, by contestant.
        progressive_made: Whether these files were made for this measurement.
    """

    data: str
    files: int
    windowable: int
    file_bytes: float
    ms: dict[str, float]
    index_share: float
    gain: dict[str, float]
    budget: dict[float, float]
    progressive_ms: dict[str, float]
    progressive_made: bool

    def ns_per_byte(self, name: str) -> float:
        """Return a contestant's CPU nanoseconds for each byte of the file."""
        return self.ms[name] * _NS_PER_MS / self.file_bytes

    def to_json(self) -> dict[str, Any]:
        """Return the figures under the names that scripts read."""
        return {
            **{f"{name}_ms": ms for name, ms in self.ms.items()},
            "index_share": self.index_share,
            "gain": self.gain,
            "budget": {f"{ms:g}_ms": gain for ms, gain in self.budget.items()},
            "progressive": {f"{name}_ms": ms for name, ms in self.progressive_ms.items()},
        }


def bench_window(samples: Samples, seconds: float, on_step: OnStep | None = None) -> WindowResult:
    """Measure windows on some files.

    Args:
        samples: The files.
        seconds: Duration of the timing; at least three rounds. Counting bytes is not bounded.
        on_step: Called with the name, number and count of the next step.

    Raises:
        ConfigError: The extension is missing, or no window can be cut from any file.
    """
    if not available():
        raise ConfigError("the window extension was not built here; install a C compiler, then reinstall sophon")
    report = on_step or nothing
    indexes = Indexes(max_bytes=1 << 40)
    walking, indexed = JpegWindow(Indexes(max_bytes=0)), JpegWindow(indexes)
    passes: list[_Pass] = []
    progressive: list[_Pass] = []
    for sample, data in enumerate(samples.files):
        report("indexes", sample, len(samples.files))
        made = _pass(sample, data, indexed, indexes)
        if made is not None:
            (passes if made.index_bytes else progressive).append(made)
    if not passes and not progressive:
        raise ConfigError(f"no window can be cut from any of {samples.name}; expected JPEG files")
    report("progressive files", 0, 1)
    again = not progressive
    if again:
        made_again = [_pass(i, _saved_again(p.data), indexed, indexes) for i, p in enumerate(passes)]
        progressive = [made for made in made_again if made is not None]
    report("CPU time", 0, 1)
    contestants: dict[str, Callable[[_Pass], object]] = {
        "decode_crop": lambda p: _by_pillow(p.data, p.box),
        "window": lambda p: walking.encode_ahead(p.data, RECIPE, p.key),
        "trainer_whole": lambda p: RECIPE.run(p.data, p.key, 0, _CROPPED),
        "trainer_window": lambda p: RECIPE.run(indexed.decode_ahead(p.payload, RECIPE), p.key, 1, _CROPPED),
    }
    progressive_ms = _race(contestants, progressive, seconds / 4)
    contestants["window_indexed"] = lambda p: indexed.encode_ahead(p.data, RECIPE, p.key)
    timed = passes or progressive
    file_bytes = sum(len(p.data) for p in timed)
    gain, budget = _gains(samples, report)
    return WindowResult(
        data=samples.name,
        files=len(samples.files),
        windowable=len(passes) + (0 if again else len(progressive)),
        file_bytes=file_bytes / len(timed),
        ms=_race(contestants, timed, seconds * 3 / 4),
        index_share=sum(p.index_bytes for p in timed) / file_bytes,
        gain=gain,
        budget=budget,
        progressive_ms=progressive_ms,
        progressive_made=again,
    )


def _pass(sample: int, data: bytes, codec: JpegWindow, indexes: Indexes) -> _Pass | None:
    """Return a sample with its window, or None if no window can be cut."""
    try:
        header = parse(data)
        index = None if header.scans else indexes.build(data, header)
        key = Key(_SEED, sample % EPOCHS, sample)
        box = needed_box(RECIPE, key, header.height, header.width)
        assert box is not None  # the recipe crops
        payload = codec.encode_ahead(data, RECIPE, key)
    except (NotWindowable, OpError):
        return None
    return _Pass(data, key, box, payload, 0 if index is None else len(index.to_bytes()))


def _saved_again(data: bytes) -> bytes:
    """Return a picture as a progressive file with the same quality."""
    out = io.BytesIO()
    with Image.open(io.BytesIO(data)) as picture:
        picture.save(out, "JPEG", quality="keep", progressive=True)
    return out.getvalue()


def _race(contestants: dict[str, Callable[[_Pass], object]], passes: list[_Pass], seconds: float) -> dict[str, float]:
    """Return each contestant's CPU milliseconds per pass."""
    runs = [passes[start : start + _RUN] for start in range(0, len(passes), _RUN)]
    per_run_ms = race_ms({name: _in_a_row(work) for name, work in contestants.items()}, runs, seconds)
    return {name: value * len(runs) / len(passes) for name, value in per_run_ms.items()}


def _in_a_row(work: Callable[[_Pass], object]) -> Callable[[list[_Pass]], None]:
    def run(passes: list[_Pass]) -> None:
        for item in passes:
            work(item)

    return run


def _by_pillow(data: bytes, box: Box) -> Image.Image:
    """Decode, crop and resize as torchvision does."""
    top, left, height, width = box
    picture = Image.open(io.BytesIO(data)).convert("RGB")
    return picture.crop((left, top, left + width, top + height)).resize(_SIZE, Image.Resampling.BILINEAR)


def _gains(samples: Samples, report: OnStep) -> tuple[dict[str, float], dict[float, float]]:
    """Return the gain of each way to choose cuts, and of the best exact plan for each CPU budget of a node."""
    cuts = cuts_to_measure(allow_lossy=True)
    timed = [cut for cut in cuts_to_profile(RECIPE) if cut.k in (0, _CROPPED)]
    rows, costs_ms = [], []
    for sample, data in enumerate(samples.files):
        report("bytes of every cut", sample, len(samples.files))
        rows += payload_bytes(data, sample, cuts)
        costs_ms += node_ms(data, sample, timed)
    sizes = np.array(rows)
    column = {cut: number for number, cut in enumerate(cuts)}
    raw = sizes[:, column[RAW]].mean()

    def gain(chosen: list[Cut]) -> float:
        return float(raw / sizes[:, [column[cut] for cut in chosen]].min(axis=1).mean())

    ways = {
        "sophon": [RAW, Cut(_CROPPED)],
        "window": [RAW, Cut(0, "window")],
        "exact_best": [cut for cut in cuts if codec_named(cut.codec).exact],
        "lossy_best": cuts,
    }
    if jxl := [cut for cut in cuts if cut.codec.startswith("jxl")]:
        ways["jxl"] = [RAW, Cut(0, "window"), *jxl]
    timed_sizes = sizes[:, [column[cut] for cut in timed]]
    budget = {ms: float(raw / within(timed_sizes, np.array(costs_ms), ms)) for ms in BUDGETS_MS}
    return {name: gain(chosen) for name, chosen in ways.items()}, budget


def within(sizes: Bytes, costs_ms: Bytes, budget_ms: float) -> float:
    """Return the fewest mean bytes whose mean cost is within a budget.

    With a price on time, each sample can be decided separately. The best price is found by bisection; it leaves less
    than one sample's share of the budget unused.

    Args:
        sizes: Bytes of each sample at each cut.
        costs_ms: Milliseconds of each sample at each cut; some cut of each sample must fit the budget.
        budget_ms: The budget.
    """
    each = np.arange(len(sizes))

    def chosen(price: float) -> tuple[float, float]:
        cut = (sizes + price * costs_ms).argmin(axis=1)
        return float(sizes[each, cut].mean()), float(costs_ms[each, cut].mean())

    low, high = 0.0, float(sizes.max()) * 1e6
    if chosen(low)[1] <= budget_ms:
        return chosen(low)[0]
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (low, middle) if chosen(middle)[1] <= budget_ms else (middle, high)
    return chosen(high)[0]


def node_ms(data: bytes, sample: int, cuts: list[Cut]) -> list[list[float]]:
    """Return, for each epoch, the CPU milliseconds that a node spends on a sample at each cut.

    The node has seen the sample before and has its index, if there is one.
    """
    with suppress(OpError):
        make_payload(RECIPE, data, Key(_SEED, 0, sample), Cut(0, "window"))
    rows = []
    for epoch in range(EPOCHS):
        row = []
        for cut in cuts:
            start_s = time.thread_time()
            with suppress(OpError):  # if refused, finding that out is the cost, and the file is sent
                make_payload(RECIPE, data, Key(_SEED, epoch, sample), cut)
            row.append((time.thread_time() - start_s) * 1e3)
        rows.append(row)
    return rows


def payload_bytes(data: bytes, sample: int, cuts: list[Cut]) -> list[list[int]]:
    """Return, for each epoch, the bytes of a sample's payload at each cut; if a cut is impossible, those of the file.

    The ops run once for all cuts; those before the first random op run once for all epochs.
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
                    if isinstance(codec, AheadCodec):
                        size = len(codec.encode_ahead(data, RECIPE, key))
                    else:
                        size = len(codec.encode(values[cut.k]))
                except OpError:
                    size = len(data)
                if not isinstance(codec, AheadCodec) and cut.k <= first_random:
                    fixed[cut] = size
            row.append(size)
        rows.append(row)
    return rows
