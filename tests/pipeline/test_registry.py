"""What is too large is refused before anything else is done with it."""

import json
import time

import pytest

from sophon.errors import ConfigError
from sophon.pipeline import Pipeline, ops
from sophon.pipeline.registry import MOST_OPS, check_bounds
from tests.support.no_torch import RECIPE

FLIP = ops.RandomHorizontalFlip().to_spec()
MOST_S = 0.5  # of CPU; before there were bounds, one of these took 6.8 s


def _apply(spec, count=1):
    return {"op": "RandomApply", "version": 1, "ops": [spec] * count, "p": 0.5}


def _orders(depth, width):
    spec = FLIP
    for _ in range(depth):
        spec = {"op": "RandomOrder", "version": 1, "ops": [spec] * width}
    return spec


def _pipeline(*parts):
    return {"format": 1, "ops": [ops.Decode().to_spec(), *parts]}


HOSTILE = {
    "a name of a megabyte": _pipeline({"op": "Resiz" * 200_000, "version": 1}),
    "a parameter of a megabyte": _pipeline({**FLIP, "p": "x" * 1_000_000}),
    "a parameter name of a megabyte": _pipeline({**FLIP, "x" * 1_000_000: 1}),
    "a number of a million digits": _pipeline({**FLIP, "p": 1 << 3_000_000}),
    "an illegal op, then many nested ones": _pipeline({"op": "No"}, *[_apply(_apply(FLIP, 64), 4)] * 60),
    "many nested ones, then an illegal op": _pipeline(*[_apply(_apply(FLIP, 16), 16)] * 60, {"op": "No"}),
    "a long list": _pipeline({**FLIP, "p": [0] * 500_000}),
    "a deep list": _pipeline({**FLIP, "p": json.loads("[" * 900 + "]" * 900)}),
    "orders of orders": _pipeline(_orders(4, 3), _orders(4, 3)),
    "as many ops as are allowed": _pipeline(*[_orders(3, 4)] * (MOST_OPS // 85)),
    "a format of a megabyte": {**_pipeline(), "format": "1" * 1_000_000},
    "something else of a megabyte": {**_pipeline(), "note": ["x" * 1_000_000]},
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_spec_ends_soon(name):
    begin_s = time.thread_time()
    pipeline, problem = Pipeline.known_part(HOSTILE[name])
    assert time.thread_time() - begin_s < MOST_S
    assert problem is None or isinstance(problem, ConfigError)
    assert len(str(problem)) < 1000
    if name == "many nested ones, then an illegal op":
        assert pipeline is None
        assert "at most 256 ops" in str(problem)


def test_real_recipes_are_far_below_the_bounds():
    check_bounds(RECIPE.to_spec())
    largest = Pipeline([ops.Decode(), *[ops.RandomApply([ops.ColorJitter(0.4, 0.4, 0.4, 0.1)], 0.8)] * 60])
    check_bounds(largest.to_spec())
    assert Pipeline.from_spec(largest.to_spec()) == largest


def test_the_longest_part_that_is_known_is_found_in_one_pass():
    good = [op.to_spec() for op in RECIPE.ops]
    for stop in range(len(good)):
        pipeline, problem = Pipeline.known_part({"format": 1, "ops": [*good[:stop], {"op": "No"}, *good[stop:]]})
        assert (None if pipeline is None else pipeline.ops) == (RECIPE.ops[:stop] or None)
        assert f"op {stop}: " in str(problem)
    assert Pipeline.known_part(RECIPE.to_spec()) == (RECIPE, None)
