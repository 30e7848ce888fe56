"""Specs, answers and record batches that were changed at random: refused with a typed error, soon and in few bytes."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.mutate import KINDS, attempt

REPOSITORY = Path(__file__).parents[2]
MOST_S, MOST_MEGABYTES = 0.05, 64


def check(found, count):
    assert found["strange"] == {}
    assert 0.2 * count < found["refused"] < count, "most are wrong, and some are right"
    assert found["megabytes"] < MOST_MEGABYTES


@pytest.mark.parametrize("kind", KINDS)
def test_mutations_are_refused(kind):
    check(attempt(kind, 300, seed=1), 300)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("kind", KINDS)
def test_many_mutations_are_refused(kind, seed):
    command = [sys.executable, "-m", "tests.support.mutate", kind, "8500", str(seed)]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=600, check=True)
    found = json.loads(done.stdout)
    check(found, 8500)
    assert found["slowest_s"] < MOST_S
