"""A whole evaluation in small: few samples, one repeat; its JSON is what others draw from."""

import json
import os
from pathlib import Path

import pytest
from click.testing import CliRunner

from sophon.bench.paper.bench import bench_paper
from sophon.bench.paper.race import BitsError, _require_equal
from sophon.bench.paper.scenario import FIGURE_NAMES, POLICY_NAMES, Scenario
from sophon.bench.rig.namespaces import can_shape
from sophon.cli.main import cli
from sophon.errors import ConfigError
from tests.support.servers import make_images

TOP = {"data", "link_bytes_per_s", "storage_cores", "policies", "shaped_by", "goodput_bytes_per_s", "figures", "paper"}
POLICY = {
    *("link_bytes", "interface_bytes", "epoch_s", "epoch_s_all", "predicted_s", "bottleneck", "storage_cpu_s"),
    *("trainer_cpu_s", "idle_share", "sha256", "reported_storage_cpu_s", "finish_cpu_s", "predicted", "cuts", "reason"),
}
_TINY = ["--count", "8", "--repeats", "1", "--link", "400mbit"]


@pytest.mark.slow
def test_a_tiny_evaluation_ends_in_a_table_and_json(tmp_path):
    file = tmp_path / "result.json"
    said = CliRunner().invoke(
        cli, ["bench", "paper", *_TINY, "--figures", "1a", "--keep", str(tmp_path / "kept"), "--json", str(file)]
    )
    assert said.exit_code == 0, said.output
    assert "the same bits" in said.output
    result = json.loads(file.read_text())
    assert set(result) >= TOP
    assert list(result["policies"]) == list(POLICY_NAMES)
    for row in result["policies"].values():
        assert set(row) >= POLICY
        assert row["link_bytes"] > 0
        assert row["interface_bytes"] > row["link_bytes"]
        assert row["epoch_s"] > 0
        assert sum(row["cuts"].values()) == 8
        assert len(row["epoch_s_all"]) == 1
    assert len({row["sha256"] for row in result["policies"].values()}) == 1
    assert result["gains"]["all"]["traffic"] < 1
    assert result["shaped_by"] == ("tbf" if can_shape() else "server")
    samples = result["figures"]["1a"]["samples"]
    assert all(150_528 <= sample["bytes"][2] < 151_000 for sample in samples)
    kept = {path.name for path in (tmp_path / "kept").iterdir()}
    assert "openimages.profile.parquet" in kept
    assert any(name.endswith("optimal.plan.parquet") for name in kept)


@pytest.mark.slow
def test_ones_own_files_on_loopback_more_often_than_there_are(tmp_path):
    images = make_images(tmp_path / "train", 6)
    steps = []
    scenario = Scenario(
        data=images, count=8, link_bytes_per_s=50e6, repeats=1, shape="server", policies=("none", "optimal")
    )
    result = bench_paper(scenario, lambda *step: steps.append(step))
    assert result["shaped_by"] == "server"
    assert result["goodput_bytes_per_s"] == result["link_bytes_per_s"] == 50e6
    assert result["samples"] == 8
    assert "6 of 6 images" in result["data"]
    assert not result["made_up"]
    assert all(number <= count for _, number, count in steps)


def test_policies_that_disagree_about_a_bit_are_an_error():
    _require_equal({"none": "ab", "optimal": "ab"})
    with pytest.raises(BitsError, match="optimal"):
        _require_equal({"none": "ab", "optimal": "cd"})


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"figures": ("2",)}, "1a"),
        ({"policies": ("optimal",)}, "none"),
        ({"storage_cores": 2.0}, "0 … 1"),
        ({"repeats": 0}, "1 or more"),
        ({"like": "cifar"}, "openimages"),
    ],
)
def test_a_scenario_that_cannot_be_run_is_refused(arguments, words):
    with pytest.raises(ConfigError, match=words):
        Scenario(**arguments)


@pytest.mark.slow
@pytest.mark.skipif(not can_shape(), reason="needs root and iproute2")
@pytest.mark.parametrize(("like", "traffic", "seconds"), [("imagenet", 2.3, 2.1), ("openimages", 4.5, 3.8)])
def test_on_real_photos_the_default_policy_gains_what_it_must(like, traffic, seconds):
    data = Path(os.environ.get("SOPHON_DATA", ""), like)
    if not os.environ.get("SOPHON_DATA") or not data.is_dir():
        pytest.skip("SOPHON_DATA names no folder with imagenet/ and openimages/")
    result = bench_paper(Scenario(data=data, like=like, policies=("none", "resize", "sophon", "optimal")))
    assert result["gains"]["optimal"]["traffic"] >= traffic
    assert result["gains"]["optimal"]["time"] >= seconds
    for row in result["policies"].values():
        assert row["epoch_s"] == pytest.approx(row["predicted_s"], rel=0.10)


@pytest.mark.slow
@pytest.mark.skipif(not can_shape(), reason="needs root and iproute2")
def test_all_figures_of_the_paper_are_made():
    result = bench_paper(Scenario(count=48, repeats=1, figures=FIGURE_NAMES))
    assert list(result["figures"]) == list(FIGURE_NAMES)
    figure = result["figures"]["4"]
    seconds = {name: [point["epoch_s"] for point in points] for name, points in figure["policies"].items()}
    assert seconds["resize"][1] > 1.2 * seconds["none"][1], "with a tenth of a core resize falls behind"
    for number, _ in enumerate(figure["storage_cores"]):
        assert seconds["optimal"][number] <= 1.15 * min(row[number] for row in seconds.values())
    light = result["figures"]["1d"]["models"][-1]["policies"]
    assert light["none"]["utilisation"] < light["optimal"]["utilisation"]
