import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

import sophon
from sophon.cli.main import cli
from tests.support.pictures import encode, scene


@pytest.fixture
def photos(tmp_path):
    folder = tmp_path / "photos"
    folder.mkdir()
    for i in range(3):
        (folder / f"{i}.jpg").write_bytes(encode(scene(300, 250, i), "jpeg 4:2:0"))
    return folder


def _run(*args):
    return CliRunner().invoke(cli, [str(a) for a in args], catch_exceptions=False)


def test_help_lists_every_command():
    result = _run("--help")
    assert result.exit_code == 0
    assert all(name in result.output for name in ("synth", "bench", "demo"))


def test_version():
    assert _run("--version").output == f"sophon, version {sophon.__version__}\n"


def test_bench_ops_prints_a_table_and_writes_json(photos, tmp_path):
    result = _run("bench", "ops", "--data", photos, "--seconds", 0.2, "--json", tmp_path / "out.json")
    assert result.exit_code == 0
    assert "RandomResizedCrop" in result.output
    assert "ImageNet recipe" in result.output
    written = json.loads((tmp_path / "out.json").read_text())
    assert set(written["recipe"]) == {"ours_ms", "torchvision_ms"}
    assert set(written["ops"]["Decode"]) == {"ours_ms", "torchvision_ms"}


def test_bench_cuts_ends_with_the_gain_and_the_verdict_on_the_bits(photos):
    result = _run("bench", "cuts", "--data", photos, "--count", 3)
    assert result.exit_code == 0
    assert "fewer bytes cross the link" in result.output
    assert result.output.rstrip().endswith("tensors are bit-equal to those of the uncut pipeline.")


def test_an_error_is_one_line_with_a_remedy_and_an_exit_code(tmp_path):
    command = [sys.executable, "-m", "sophon.cli.main", "bench", "cuts", "--data", str(tmp_path / "nowhere")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=Path(__file__).parent)
    assert done.returncode == 2
    assert "expected a folder of images" in done.stderr
    assert "Traceback" not in done.stderr
