"""Tries the callables of a pipeline when a loader opens: whether they work, and depend only on the seed.

A callable with its own generator gives different tensors in every run, which would go unnoticed. So each callable is
run twice under each of a few keys, on the value that reaches it; if two results differ, the user is warned. A transform
from torchvision, timm or another library that fails under every key and on every picture is rejected here, before an
epoch starts; an error in user code is ignored until an epoch runs into it, since it may depend on the sample.

Limits: a few keys on one sample do not show everything: a step that is rarely random may look deterministic. Values
that cannot be copied or compared are silently skipped, as is everything left after a few seconds.
"""

from __future__ import annotations

import copy
import io
import sys
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable
from functools import cache
from typing import Any

from PIL import Image

from sophon.errors import ConfigError, Error, OpError
from sophon.loader.opening.caller import levels_to_user
from sophon.loader.opening.same_bits import same_bits
from sophon.loader.sources.assignment import SeedWarning
from sophon.pipeline import Call, Key, Pipeline, Value
from sophon.pipeline.code import LIBRARIES
from sophon.pipeline.op import Decoder
from sophon.pipeline.ops.decode import Decode, open_picture
from sophon.pipeline.pipeline import title
from sophon.pipeline.probe import picture

KEYS = 8
TRIAL_S = 5.0  # in total; how long a loader may take to open without seeming stuck
_LEAST_KEYS = 2
_LARGE = 8  # factor by which the built-in picture is enlarged: 2560 × 1920, so that few crops are too large for it
_SEED = (
    "Draw from the global generators of random, numpy or torch, which are seeded for each sample; or give the object "
    "a set_random_seed(seed) method, which is called before each call. Do not keep your own generator, such as "
    "np.random.default_rng() or torch.Generator(). Pass albumentations transforms directly: inside your own function "
    "they are not seeded."
)
_FAILS = (
    "Check its arguments and the results of the steps before it. Call transform(PIL.Image.open(path).convert('RGB')) "
    "by hand to see whether it fails there too."
)
_NO_PICTURE = (
    "A list starts with the bytes of a file: put sophon.ops.Decode() first, or wrap the transforms in Compose."
)


def try_calls(pipeline: Pipeline, seed: int, first_file: Callable[[], bytes | None]) -> None:
    """Try the callables of a pipeline; warn about those that depend on more than the seed.

    Args:
        pipeline: If it has no callables, nothing is done.
        seed: Seed of the loader.
        first_file: Returns the bytes of the first sample, or None if it is not available now.

    Raises:
        ConfigError: A library transform fails on every input.
    """
    if pipeline.first_call == len(pipeline):
        return
    data = first_file()
    end_s = time.monotonic() + TRIAL_S
    trial = None if data is None else Trial(pipeline, seed, data, end_s)
    if trial is None or not trial.reached:
        # Nothing is known about the data set: no reason to refuse anything.
        trial = Trial(pipeline, seed, _specimens(pipeline)[0], end_s)
    elif (position := trial.always_fails()) is not None:
        _refuse(pipeline, seed, position, trial.errors[position], end_s)
    if trial.differing:
        _warn(pipeline, sorted(trial.differing))


def try_samples(pipeline: Pipeline, seed: int, make: Callable[[Key], Value]) -> None:
    """Try a recipe over whole samples: warn if it gives different results under one key.

    Args:
        pipeline: If it has no callables, nothing is done.
        seed: Seed of the loader.
        make: Finishes the first sample; it may raise whatever its steps raise.
    """
    if pipeline.first_call == len(pipeline):
        return
    end_s = time.monotonic() + TRIAL_S
    for epoch in range(KEYS):
        if epoch >= _LEAST_KEYS and time.monotonic() > end_s:
            return
        try:
            one, other = (_fresh(make(Key(seed, epoch, 0))) for _ in range(2))
        except Exception:  # noqa: BLE001 - ignored until an epoch runs into it: it may be this sample's fault
            return
        if same_bits(one, other) is False:
            _warn(pipeline, [at for at, op in enumerate(pipeline.ops) if isinstance(op, Call)])
            return


class Trial:
    """Some runs of a pipeline on one file.

    Args:
        pipeline: A pipeline with callables.
        seed: Seed of the loader.
        data: The bytes of the file.
        end_s: When to stop trying further keys, by the monotonic clock.

    Attributes:
        reached: Number of keys under which the first callable got a value.
        differing: Positions of callables that gave two results for one value and key.
        errors: By position, the first error of a step.
    """

    def __init__(self, pipeline: Pipeline, seed: int, data: bytes, end_s: float) -> None:
        self._pipeline = pipeline
        self._keys = 0
        self._failures: Counter[int] = Counter()
        self.reached = 0
        self.differing: set[int] = set()
        self.errors: dict[int, OpError] = {}
        steady = self._steady
        try:
            # Results that are the same under all keys are computed once; ops never change their input.
            value = pipeline.run(data, Key(seed, 0, 0), 0, steady)
        except Error:
            return
        for epoch in range(KEYS):
            if epoch >= _LEAST_KEYS and time.monotonic() > end_s:
                return
            self._keys += 1
            self._try_key(Key(seed, epoch, 0), steady, value)

    @property
    def _steady(self) -> int:
        """The number of ops before the first one that is random or a callable."""
        for position, op in enumerate(self._pipeline.ops):
            if op.random or op.is_own:
                return position
        return len(self._pipeline)

    def _try_key(self, key: Key, start: int, value: Value) -> None:
        pipeline, first = self._pipeline, self._pipeline.first_call
        try:
            value = _fresh(pipeline.run(value, key, start, first))  # a copy: all keys may start from this value
        except (Error, _NoCopy):
            return
        self.reached += 1
        for position in range(first, len(pipeline)):
            try:
                if pipeline.ops[position].is_own:
                    value = self._try_call(key, position, value)
                else:
                    value = pipeline.run(value, key, position, position + 1)
            except OpError as error:
                self._failures[position] += 1
                self.errors.setdefault(position, error)
                return
            except (Error, _NoCopy):
                return

    def _try_call(self, key: Key, position: int, value: Value) -> Value:
        """Run a callable twice on a value that nothing else refers to, and return its first result."""
        # Copies, since the callable may change its input or return the same buffer each time.
        one = _fresh(self._pipeline.run(_fresh(value), key, position, position + 1))
        try:
            other = self._pipeline.run(value, key, position, position + 1)
        except OpError:
            self.differing.add(position)
            return one
        if same_bits(one, other) is False:
            self.differing.add(position)
        return one

    def always_fails(self) -> int | None:
        """Return the position of a library's step that failed under every key, if there is one."""
        for position, failures in self._failures.items():
            op, error = self._pipeline.ops[position], self.errors[position]
            if failures == self._keys and isinstance(op, Call) and op.is_of_library and not _is_of_user(error):
                return position
        return None


def _refuse(pipeline: Pipeline, seed: int, position: int, error: OpError, end_s: float) -> None:
    """Raise if a step that fails on a sample also fails on other pictures."""
    for data in _specimens(pipeline):
        if Trial(pipeline, seed, data, end_s).always_fails() != position:
            return
    remedy = error.remedy or (_FAILS if position > 0 else _NO_PICTURE)
    raise ConfigError(
        f"step {position} ({title(pipeline.ops[position])}) fails on the first sample and on every other picture "
        f"tried: {error.problem} {remedy}"
    ) from error


def _warn(pipeline: Pipeline, positions: list[int]) -> None:
    steps = ", ".join(f"step {position} ({title(pipeline.ops[position])})" for position in positions)
    them = "it" if len(positions) == 1 else "one of them" if pipeline.fields else "each of them"
    warnings.warn(
        f"{steps}: run twice on one value under one seed, {them} gave two results, so the tensors differ from run to "
        f"run and with the number of workers. {_SEED}",
        SeedWarning,
        stacklevel=levels_to_user(),
    )


class _NoCopy(Exception):  # noqa: N818 - not an error: there is nothing to try then
    """A value that cannot be copied."""


def _fresh(value: Value) -> Value:
    """Return a copy that shares nothing with the value."""
    if isinstance(value, Image.Image):
        return value.copy()
    try:
        return copy.deepcopy(value)
    except Exception as error:
        raise _NoCopy from error


# Modules whose code is not the user's: libraries, what they are built on, and ours.
_NOT_THE_USERS = frozenset((*LIBRARIES, "PIL", "numpy", "scipy", "cv2", "albucore", "sophon", *sys.stdlib_module_names))


def _is_of_user(error: OpError) -> bool:
    """Return whether user code was involved in an error: a library's transform may call it."""
    cause: Any = error.__cause__
    if cause is None:
        return False
    modules = (str(frame.f_globals.get("__name__")) for frame, _ in traceback.walk_tb(cause.__traceback__))
    return any(module.partition(".")[0] not in _NOT_THE_USERS for module in modules)


def _specimens(pipeline: Pipeline) -> tuple[bytes, ...]:
    """Return synthetic files of the kind that a pipeline takes."""
    first = pipeline.ops[0]
    if isinstance(first, Decoder) and first.data != Decode.data:
        return (first.specimen(),)
    return picture(), _large_picture()


@cache
def _large_picture() -> bytes:
    with open_picture(picture()) as small:
        large = small.resize((small.width * _LARGE, small.height * _LARGE))
    file = io.BytesIO()
    large.save(file, "JPEG")
    return file.getvalue()
