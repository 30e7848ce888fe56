"""`sophon probe` and `sophon profile`."""

import json

import pytest
from click.testing import CliRunner

from sophon.cli.main import cli
from sophon.profile.table import Profile
from tests.support.servers import RECIPE, make_images


@pytest.fixture
def images(tmp_path):
    return make_images(tmp_path / "images", 9)


@pytest.fixture
def pipeline(tmp_path):
    path = tmp_path / "pipeline.json"
    path.write_text(RECIPE.to_json())
    return path


def _run(*arguments):
    return CliRunner().invoke(cli, [str(argument) for argument in arguments])


def test_probe_says_which_part_binds(images, pipeline):
    found = _run("probe", images, "--pipeline", pipeline, "--batches", 2, "--batch-size", 4, "--consumer", "1/s")
    assert found.exit_code == 0, found.output
    assert "GPU-bound" in found.stdout


def test_probe_gives_json(images, pipeline):
    found = _run("probe", images, "--pipeline", pipeline, "--batches", 2, "--batch-size", 4, "--json")
    assert set(json.loads(found.stdout)) == {
        "gpu_per_s",
        "io_per_s",
        "cpu_per_s",
        "store_per_s",
        "storage_per_s",
        "io_stall",
        "cpu_stall",
        "verdict",
        "factor",
    }


def test_a_profile_is_what_plan_wants(images, pipeline, tmp_path):
    out = tmp_path / "profile.parquet"
    found = _run("profile", images, "--pipeline", pipeline, "--out", out)
    assert found.exit_code == 0, found.output
    assert "on the link" in found.stdout
    assert len(Profile.load(out)) == 9
    planned = _run("plan", out, "--link", "10mbit", "--storage-cores", 1, "--trainer-cores", 1, "--compare", "--json")
    assert planned.exit_code == 0, planned.output
    assert set(json.loads(planned.stdout)["policies"]) == {"none", "all", "resize", "fastflow", "sophon", "optimal"}


@pytest.mark.parametrize("text", ["", "{", '{"format": 9}', '{"format": 1, "ops": [{"op": "NoSuchOp", "version": 1}]}'])
def test_what_is_no_pipeline_is_refused(images, tmp_path, text):
    path = tmp_path / "pipeline.json"
    path.write_text(text)
    found = _run("probe", images, "--pipeline", path)
    assert found.exit_code != 0
    assert "pipeline" in str(found.exception) or "NoSuchOp" in str(found.exception) or "ops" in str(found.exception)
