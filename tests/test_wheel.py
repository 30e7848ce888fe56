"""What `make wheel` has built: installs without a compiler, holds its extensions, and runs the demo."""

import os
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

import sophon

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
SOURCE = ROOT / "src" / "sophon"
EXTENSIONS = {path.relative_to(SOURCE).with_suffix("").as_posix() for path in SOURCE.rglob("*.pyx")}


def _built(ending: str) -> Path:
    found = sorted((ROOT / "dist").glob(f"sophon_loader-{sophon.__version__}{ending}"))
    if not found:
        pytest.skip("`make check-wheel` builds what is tested here")
    return found[0]


def test_the_classifiers_name_no_other_python_than_the_tests_run_on():
    named = {match[1] for text in PROJECT["classifiers"] if (match := re.match(r".* :: (3\.\d+)$", text))}
    assert named == {f"{sys.version_info.major}.{sys.version_info.minor}"}


def test_what_an_extra_needs_is_not_needed_without_it():
    extras = PROJECT["optional-dependencies"]
    names = {re.split(r"[<>=\[ ]", text)[0] for extra in ("torch", "report", "jxl", "s3") for text in extras[extra]}
    assert names == {"torch", "matplotlib", "imagecodecs", "obstore"}
    assert not names & {re.split(r"[<>=\[ ]", text)[0] for text in PROJECT["dependencies"]}


@pytest.mark.slow
def test_a_wheel_is_for_many_linuxes_and_has_all_extensions():
    wheel = _built("*.whl")
    assert "manylinux" in wheel.name
    with zipfile.ZipFile(wheel) as file:
        names = file.namelist()
    found = {name.removeprefix("sophon/").split(".")[0] for name in names if name.endswith(".so")}
    assert found == EXTENSIONS
    assert "sophon/pipeline/probe.jpg" in names
    assert not [name for name in names if name.startswith(("tests/", "docs/"))]


@pytest.mark.slow
def test_an_sdist_has_what_extensions_are_built_from():
    with tarfile.open(_built(".tar.gz")) as file:
        names = {name.partition("/src/sophon/")[2] for name in file.getnames()}
    assert {f"{name}.pyx" for name in EXTENSIONS} <= names
    assert {"codec/window/_bits.pxd", "server/bounded_threads.c"} <= names


@pytest.mark.slow
def test_it_installs_without_a_compiler_and_runs_the_demo(tmp_path):
    wheel, home = _built("*.whl"), tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", home], check=True)
    bare = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    bare |= {"PATH": str(home / "bin"), "CC": "/bin/false", "CXX": "/bin/false"}

    def run(*words: object) -> str:
        done = subprocess.run(
            [str(word) for word in words], env=bare, cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    pip = (home / "bin" / "python", "-m", "pip", "install", "--quiet", "--only-binary", ":all:")
    run(*pip, "--constraint", ROOT / "requirements" / "pins.txt", f"{wheel}[torch,report]")
    command = home / "bin" / "sophon"
    assert sophon.__version__ in run(command, "--version")
    assert f"all {len(EXTENSIONS)} compiled extensions are present" in run(command, "doctor")
    assert "all policies fed the model identical bits" in run(command, "demo", "--count", 32, "--epochs", 1)
    assert (tmp_path / "sophon-demo" / "report.html").exists()
