"""Other loaders beside ours: how their epochs are counted, and what is said where one is not installed."""

import json
import subprocess
import sys

import pytest

from sophon.bench.cluster.peers import systems
from sophon.bench.cluster.peers.bench import bench_peers, check_peers
from sophon.bench.cluster.peers.counting import count_epoch
from sophon.bench.rig.namespaces import can_shape
from sophon.errors import ConfigError
from tests.support.servers import make_images

HALTING = """
import threading
from sophon.bench.cluster.peers.counting import count_epoch

def batches():
    yield [0, 1]
    threading.Event().wait()

count_epoch(batches(), 4, 0.1)
"""


def test_samples_that_never_came_and_those_that_came_twice_are_counted(capsys):
    row = count_epoch([[0, 1], [1, 3]], samples=5, patience_s=60)
    assert (row["samples"], row["lost"], row["repeated"], row["error"]) == (4, 2, 1, "")
    told = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert told == [{"progress": [2, 5]}, {"progress": [4, 5]}]


def test_an_epoch_that_fails_is_a_result(capsys):
    def batches():
        yield [0]
        raise ValueError("a worker is gone\nand more")

    row = count_epoch(batches(), samples=2, patience_s=60)
    assert (row["lost"], row["error"]) == (1, "ValueError: a worker is gone")


def test_an_epoch_that_comes_to_a_halt_is_reported():
    told = subprocess.run([sys.executable, "-c", HALTING], capture_output=True, text=True, check=False, timeout=60)
    row = json.loads(told.stdout.splitlines()[-1])["result"]
    assert told.returncode == 1
    assert (row["lost"], row["error"]) == (2, "nothing came for 0.1 s")


def test_what_is_not_installed_is_named_with_the_way_to_install_it(monkeypatch, tmp_path):
    monkeypatch.setattr(systems, "_FOLDER", tmp_path)
    monkeypatch.setattr(sys, "path", [])
    lacking = systems.missing()
    assert f"pip install --target {tmp_path} tensorflow-cpu" in lacking["tf_data_service"]
    assert "ray[data]" in lacking["ray_data"]
    with pytest.raises(ConfigError, match=r"tensorflow-cpu|iproute2"):
        check_peers()


@pytest.mark.slow
@pytest.mark.skipif(not can_shape(), reason="needs root and iproute2")
@pytest.mark.skipif(len(systems.missing()) == 2, reason="needs Ray Data or TensorFlow, which the tests do not install")
def test_each_loader_delivers_every_sample_once_and_ours_even_if_a_node_is_killed(tmp_path):
    result = bench_peers(make_images(tmp_path / "train", 24), link_bytes_per_s=10e6)
    assert set(result["systems"]) == set(systems.SYSTEMS) - set(systems.missing())
    for ways in result["systems"].values():
        for row in ways.values():
            assert row["per_s"] > 0
            assert row["link_bytes_per_sample"] > 0
    ours = result["killed"]["sophon"]
    assert (ours["lost"], ours["repeated"], ours["error"]) == (0, 0, "")
