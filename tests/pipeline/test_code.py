"""Two recipes that differ in a setting have two fingerprints; one recipe has one, in every run."""

import contextlib
import functools
import gc
import io
import os
import random
import subprocess
import sys
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sophon.pipeline import Key, Pipeline
from sophon.pipeline.code import digest
from sophon.pipeline.probe import picture
from tests.support.torchvision_import import import_torchvision

import_torchvision()
import torch  # noqa: E402
from torchvision import transforms as T  # noqa: E402, N812
from torchvision.transforms import v2 as V2  # noqa: E402, N812


def scaled(picture: Any, factor: float = 1.0) -> Any:
    return picture if factor == 1.0 else None


class Own:
    def __init__(self, setting: Any) -> None:
        self.setting = setting

    def __call__(self, picture: Any) -> Any:
        return picture

    def method(self, picture: Any) -> Any:
        return picture


class Slotted:
    __slots__ = ("setting",)

    def __init__(self, setting: Any) -> None:
        self.setting = setting

    def __call__(self, picture: Any) -> Any:
        return picture


class Silent(Own):
    def __repr__(self) -> str:
        raise ValueError("no name")


class Module(torch.nn.Module):
    def __init__(self, setting: Any) -> None:
        super().__init__()
        self.setting = setting

    def forward(self, picture: Any) -> Any:
        return picture


def _closure(setting: Any) -> Any:
    return lambda picture: (picture, setting)[0]


def _on_tensors(step: Any) -> Any:
    return V2.Compose([V2.ToImage(), step])


MADE_WITH = {
    "partial": lambda x: functools.partial(scaled, factor=x),
    "object": Own,
    "slots": Slotted,
    "no repr": Silent,
    "bound method": lambda x: Own(x).method,
    "module": Module,
    "closure": _closure,
    "Lambda": lambda x: T.Lambda(_closure(x)),
    "array": lambda x: Own(np.full((300, 300), x)),
    "tensor": lambda x: Own(torch.tensor([x])),
    "parameter": lambda x: torch.nn.Sequential(Module(torch.nn.Parameter(torch.tensor([x])))),
    "inside": lambda x: T.RandomApply([Own(None)], x),
    "nested": lambda x: T.RandomApply([Own({"of": [Own((x,))]})]),
    "perspective": T.RandomPerspective,
    "perspective of v2": lambda x: V2.RandomPerspective(0.5, fill=x),
    "matrix": lambda x: _on_tensors(V2.LinearTransformation(torch.eye(3) * x, torch.zeros(3))),
}


@pytest.mark.parametrize("make", MADE_WITH.values(), ids=MADE_WITH)
def test_another_setting_is_another_fingerprint(make):
    one, same, other = (Pipeline.from_torchvision(make(setting)).fingerprint for setting in (0.25, 0.25, 0.75))
    assert one == same != other


def test_another_type_of_float_is_another_fingerprint():
    half, double = (
        Pipeline.from_torchvision(_on_tensors(V2.ToDtype(dtype))).fingerprint
        for dtype in (torch.float16, torch.float64)
    )
    assert half != double


def test_generators_and_cycles_are_passed_over():
    def made() -> str:
        own = Own([random.Random(), np.random.default_rng(), torch.Generator(), object()])
        own.setting.append(own)
        return Pipeline.from_torchvision(own).fingerprint

    assert made() == made()


def test_a_callable_that_counts_its_calls_keeps_its_fingerprint():
    own = Own(0)
    pipeline = Pipeline.from_torchvision(own)
    own.setting += 1
    assert Pipeline(pipeline.ops).fingerprint == pipeline.fingerprint


ROOT = Path(__file__).parents[2]
_PRINTED = """
from tests.pipeline.test_code import MADE_WITH, Own, Pipeline, T
made = [make(0.25) for make in MADE_WITH.values()]
made.append(Own({name: {name} for name in {"a", "b", "c", "d"}}))
try:
    import albumentations as A
    made.append(A.Compose([A.HorizontalFlip(p=0.5)]))
except ImportError:
    pass
print([Pipeline.from_torchvision(step).fingerprint for step in made])
"""


@pytest.mark.slow
def test_fingerprints_are_the_same_in_every_run():
    here = io.StringIO()
    with contextlib.redirect_stdout(here):
        exec(_PRINTED, {})
    command = [sys.executable, "-W", "ignore", "-c", _PRINTED]
    environment = {**os.environ, "PYTHONHASHSEED": "1"}  # another order of sets and dicts than here, where it is random
    there = subprocess.run(command, check=True, capture_output=True, text=True, env=environment, cwd=ROOT)
    assert there.stdout == here.getvalue()


def test_a_fingerprint_does_not_change_when_a_callable_is_used():
    A = pytest.importorskip("albumentations")  # noqa: N806 - its own habit
    for step in (A.Compose([A.RandomCrop(8, 8), A.GaussNoise(), A.CoarseDropout()]), T.RandomPerspective(), T.AugMix()):
        pipeline = Pipeline.from_torchvision(step)
        for sample in range(3):
            pipeline.run(picture(), Key(0, 0, sample))
        assert Pipeline.from_torchvision(step).fingerprint == pipeline.fingerprint


def test_a_function_is_not_kept_alive():
    """It may hold a data set, a loader and its connections."""

    class Large:
        pass

    def made():
        held = Large()
        return lambda data: (data, held), weakref.ref(held)

    step, held = made()
    digest(step)
    del step
    gc.collect()
    assert held() is None


def _typed(text):
    """Return what a text defines that lies in no file, as in a session or after `python -c`."""
    names = {"__name__": "__main__"}
    exec(text, names)
    return names["f"]


@pytest.mark.parametrize(
    "text",
    [
        "f = lambda x: x * {}",
        "def f(x):\n    return (lambda y: y * {})(x)",
        "class F:\n    def __call__(self, x):\n        return x * {}\nf = F()",
    ],
)
def test_what_was_typed_in_is_told_apart_without_a_source(text):
    one, again, other = (_typed(text.format(number)) for number in (1.5, 1.5, 2.5))
    assert digest(one) == digest(again) != digest(other)


def test_two_lambdas_on_one_line_differ():
    one, other, again = (lambda x: x + 1), (lambda x: x + 2), (lambda x: x + 1)
    assert digest(one) != digest(other)
    assert digest(one) == digest(again)
