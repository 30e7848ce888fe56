import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from sophon.cli.report import report
from sophon.errors import ArtifactError
from sophon.plan.plan import make_plan
from sophon.plan.resources import Resources
from tests.support.instances import random_profile
from tests.support.marks import slow
from tests.support.results import full_result, minimal_result


@pytest.fixture
def folder(tmp_path):
    profile = random_profile(np.random.default_rng(0), 60)
    profile.save(tmp_path / "profile.parquet")
    make_plan(profile, Resources(5e6, 1, 2)).save(tmp_path / "plan.parquet")
    (tmp_path / "result.json").write_text(json.dumps(minimal_result()))
    return tmp_path


def run(*arguments):
    return CliRunner().invoke(report, list(map(str, arguments)), catch_exceptions=True)


@pytest.mark.parametrize("name", ["result.json", *slow("profile.parquet", "plan.parquet")])
def test_files_are_recognised_by_their_content(folder, name):
    plain = (folder / name).rename(folder / "file")
    done = run(plain, "--out", folder / "out")
    assert done.exit_code == 0, done.output
    assert "training waits for" in done.stdout
    assert "report.html: the report, with" in done.stdout.replace("\n", "")
    assert (folder / "out" / "report.html").exists()


@pytest.mark.slow
def test_a_plan_with_its_profile_says_more(folder):
    alone = json.loads(run(folder / "plan.parquet", "--out", folder / "a", "--json").stdout)
    both = json.loads(
        run(folder / "plan.parquet", "--profile", folder / "profile.parquet", "--out", folder / "b", "--json").stdout
    )
    assert len(both["sections"]) > len(alone["sections"])


@pytest.mark.slow
def test_resources_of_ones_own_are_used(folder):
    given = ["--link", "1gbit", "--storage-cores", "3", "--trainer-cores", "4", "--consumer", "500/s"]
    data = json.loads(run(folder / "profile.parquet", "--out", folder / "out", "--json", *given).stdout)
    words = "a link of 1 Gbit/s, 3 storage cores, 4 trainer cores, a consumer of 500/s"
    assert f"Predicted for {words}." in data["remarks"]


@pytest.mark.slow
@pytest.mark.parametrize("result", [minimal_result, *slow(full_result)])
def test_the_same_file_gives_the_same_bytes_in_any_process(folder, result):
    (folder / "result.json").write_text(json.dumps(result()))
    # Whatever the order of sets, the working directory and the reader's own settings of matplotlib.
    (folder / "matplotlibrc").write_text("lines.linewidth: 9\nfont.size: 20\nsvg.fonttype: path\n")
    for seed, place in (("1", folder), ("2", folder / "elsewhere")):
        place.mkdir(exist_ok=True)
        command = [
            sys.executable,
            "-m",
            "sophon.cli.main",
            "report",
            str(folder / "result.json"),
            "--out",
            f"out{seed}",
        ]
        # Paths of the package stay valid from elsewhere.
        paths = os.pathsep.join(str(Path(path).resolve()) for path in sys.path if path)
        env = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": paths}
        subprocess.run(command, cwd=place, check=True, env=env, capture_output=True)
    one, two = folder / "out1", folder / "elsewhere" / "out2"
    names = sorted(path.name for path in one.iterdir())
    assert names == sorted(path.name for path in two.iterdir())
    assert all((one / name).read_bytes() == (two / name).read_bytes() for name in names)


def test_the_page_goes_beside_where_one_stands(folder, monkeypatch):
    monkeypatch.chdir(folder)
    (folder / "short.json").write_text(json.dumps(minimal_result()))
    assert run("short.json").exit_code == 0
    assert (folder / "short-report" / "report.html").exists()


@pytest.mark.parametrize("content", [b"", b"{}", b"[1]", b"PAR1", b"no", b'{"policies": 3}', b"[" * 100_000])
def test_anything_else_is_refused_with_words(folder, content):
    (folder / "odd").write_bytes(content)
    assert isinstance(run(folder / "odd", "--out", folder / "out").exception, ArtifactError)
    assert not (folder / "out").exists()


def test_without_matplotlib_there_is_a_remedy_and_nothing_else_breaks(folder):
    code = (
        "import sys; sys.modules['matplotlib'] = None\n"
        "from sophon.cli.main import main\n"
        f"sys.argv = ['sophon', 'report', {str(folder / 'result.json')!r}, '--out', {str(folder / 'out')!r}]\n"
        "main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert '[report]"' in done.stderr
    assert "Traceback" not in done.stderr
