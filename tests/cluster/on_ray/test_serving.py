"""Nodes on a Ray cluster with several raylets: real processes, killed."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.epochs import epochs_digest
from tests.support.servers import make_images

pytest.importorskip("ray")
ROOT = Path(__file__).parents[3]


def _facts(program, tmp_path):
    """Run a program that trains on Ray in a separate process, compare its tensors, and return what it reports."""
    images = make_images(tmp_path / "train", 40)
    command = [sys.executable, "-m", f"tests.support.{program}", str(tmp_path), str(images)]
    told = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=600)
    assert told.returncode == 0, told.stderr[-3000:]
    facts = json.loads(told.stdout.splitlines()[-1])
    assert facts["digest"] == epochs_digest(images, 5, 4)
    assert facts["left"] == []
    return facts


def test_nodes_outlive_their_actors_and_raylets_and_no_batch_notices(tmp_path):
    facts = _facts("ray_main", tmp_path)
    assert facts["samples"] == 80
    assert facts["names"] == ["sophon:registry", "sophon:storage:store-1", "sophon:storage:store-2"]
    before, after = facts["adopted"]
    assert before == after
    assert facts["orphan_runs"]
    assert facts["adopted_by_the_next_raylet"]


@pytest.mark.slow
def test_the_number_of_relays_follows_what_trainers_report(tmp_path):
    facts = _facts("ray_relays", tmp_path)
    assert facts["relays"] == ["sophon:relay:0", "sophon:relay:1"]
