"""Examines a pipeline: whether each step returns, whether it depends only on the seed, and what could be offloaded.

Concurrency: steps run in a separate thread, which is abandoned if one of them never returns.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from sophon.codec.cut import RAW, Cut, legal_cuts, make_payload
from sophon.codec.table import offered
from sophon.codec.window.refusal import NotWindowable
from sophon.doctor.finding import ADVICE, FAULT, FINE, Finding
from sophon.errors import ConfigError, Error
from sophon.pipeline import Call, Key, Pipeline, ops
from sophon.pipeline.pipeline import in_words, title
from sophon.units import format_bytes

ABOUT: Final = "pipeline"
_MEAN, _STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
_FILES: Final = 8  # samples on which cuts are compared
_GAIN_S: Final = 5.0  # time limit for comparing cuts


def default_recipe() -> Pipeline:
    """Return the most common recipe: torchvision's for ImageNet."""
    crop, flip = ops.RandomResizedCrop(224), ops.RandomHorizontalFlip()
    return Pipeline([ops.Decode(), crop, flip, ops.ToTensor(), ops.Normalize(_MEAN, _STD)])


def load_recipe(text: str) -> Pipeline:
    """Return the pipeline that a string names.

    Args:
        text: The path of a JSON file, or the location of a recipe in code: ``train.py:transform``,
            ``package.module:name``.

    Raises:
        ConfigError: The text does not name a recipe.
    """
    from sophon.loader.objects import as_pipeline  # takes a moment, and is only needed for code

    place, colon, name = text.rpartition(":")
    if not colon:
        try:
            return Pipeline.from_json(Path(text).read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"{text} cannot be read as a pipeline: {error}; give JSON, or FILE.py:NAME") from error
    try:
        module = _from_file(Path(place)) if place.endswith(".py") else importlib.import_module(place)
        found = getattr(module, name)
    except Exception as error:  # user code may raise anything
        raise ConfigError(f"{text}: {type(error).__name__}: {error}; give FILE.py:NAME of a recipe") from error
    return _on_pictures(as_pipeline(found))


def _on_pictures(pipeline: Pipeline) -> Pipeline:
    """Return the steps that take only a picture; steps that take whole samples are tried when a loader opens."""
    joint = (place for place, op in enumerate(pipeline.ops) if isinstance(op, Call) and op.is_joint)
    return pipeline.prefix(next(joint, len(pipeline)))


def _from_file(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise ConfigError(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules.setdefault(path.stem, module)  # parts of the recipe may be looked up by module name
    spec.loader.exec_module(module)
    return module


def examine_recipe(pipeline: Pipeline, files: dict[int, bytes], patience_s: float) -> Iterator[Finding]:
    """Try a pipeline on some files.

    Args:
        pipeline: The pipeline to try.
        files: Bytes of samples, by their index; may be empty.
        patience_s: How long a step may take.
    """
    from sophon.loader.opening.blocked import why_blocked  # the loader takes a moment to import

    yield Finding(ABOUT, "steps", FINE, in_words(pipeline))
    blocked = why_blocked(pipeline)
    if blocked is not None:
        yield Finding(ABOUT, "offload", ADVICE, *blocked)
    if not files:
        return
    broken = _try_steps(pipeline, files, patience_s)
    if broken is not None:
        yield broken
        return
    yield from _try_seeds(pipeline, next(iter(files.values())))
    if blocked is None:
        yield _gain(pipeline, list(files.items())[:_FILES])


def _try_steps(pipeline: Pipeline, files: dict[int, bytes], patience_s: float) -> Finding | None:
    """Return what is wrong with a step that does not return or fails on every file."""
    errors: list[Error] = []
    for sample, data in files.items():
        run = _Run(pipeline, data, Key(0, 0, sample))
        position = run.wait(patience_s)
        if position is not None:
            text = f"step {position} ({title(pipeline.ops[position])}) has not returned after {patience_s:g} s"
            remedy = "It blocks: is it waiting for a lock, a download, input or another process? Make it return."
            return Finding(ABOUT, "steps", FAULT, text, remedy)
        if run.error is None:
            return None
        errors.append(run.error)
        if len(errors) >= _FILES:
            break
    text = f"the pipeline fails on each of {len(errors)} samples; on the first: {errors[0]}"
    return Finding(ABOUT, "steps", FAULT, text, "Try it manually on one picture.")


class _Run:
    """One run of a pipeline on a file, step by step, in a thread."""

    def __init__(self, pipeline: Pipeline, data: bytes, key: Key) -> None:
        self.position = 0
        self.error: Error | None = None
        self._since_s = time.monotonic()
        self._job = (pipeline, data, key)
        self._thread = threading.Thread(target=self._work, name="doctor-steps", daemon=True)
        self._thread.start()

    def _work(self) -> None:
        pipeline, value, key = self._job
        try:
            for position in range(len(pipeline)):
                self._since_s, self.position = time.monotonic(), position
                value = pipeline.run(value, key, position, position + 1)
        except Error as error:
            self.error = error

    def wait(self, patience_s: float) -> int | None:
        """Return the position of a step that takes longer than `patience_s`; None if all steps have ended."""
        while self._thread.is_alive():
            self._thread.join(0.05)
            if self._thread.is_alive() and time.monotonic() - self._since_s > patience_s:
                return self.position
        return None


def _try_seeds(pipeline: Pipeline, data: bytes) -> Iterator[Finding]:
    from sophon.loader.opening.trial import try_calls
    from sophon.loader.sources.assignment import SeedWarning

    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        try:
            try_calls(pipeline, 0, lambda: data)
        except ConfigError as error:
            yield Finding(ABOUT, "steps", FAULT, str(error), "")
            return
    for warning in (warning for warning in told if issubclass(warning.category, SeedWarning)):
        yield Finding(ABOUT, "seed", FAULT, str(warning.message), "Until then no run is repeatable.")


def _gain(pipeline: Pipeline, files: list[tuple[int, bytes]]) -> Finding:
    """Compare the bytes of samples at all exact cuts."""
    cuts = legal_cuts(pipeline, offered())
    raw_bytes = least_bytes = count = 0
    chosen: dict[Cut, int] = {}
    end_s = time.monotonic() + _GAIN_S
    for sample, data in files:
        if count and time.monotonic() > end_s:
            break
        sizes = {RAW: len(data)}
        for cut in cuts:
            try:
                sizes[cut] = len(make_payload(pipeline, data, Key(0, 0, sample), cut))
            except (Error, NotWindowable):
                continue
        best = min(sizes, key=lambda cut: sizes[cut])
        chosen[best] = chosen.get(best, 0) + 1
        raw_bytes, least_bytes, count = raw_bytes + len(data), least_bytes + sizes[best], count + 1
    used = ", ".join(f"{cut} for {number}" for cut, number in sorted(chosen.items(), key=lambda item: -item[1]))
    gain = raw_bytes / max(least_bytes, 1)
    text = (
        f"what could be offloaded: {format_bytes(least_bytes / count)} a sample instead of "
        f"{format_bytes(raw_bytes / count)}, {gain:.1f}× less ({used} of {count} samples)"
    )
    if gain < 1.1:
        remedy = "Raw files are already close to the best: sophon will not save much on these samples."
        return Finding(ABOUT, "offload", ADVICE, text, remedy)
    return Finding(ABOUT, "offload", FINE, text)
