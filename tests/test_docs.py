"""The Python of every page of docs/ runs as written, from top to bottom; its commands are real; the site is made."""

import importlib.util
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import click
import pytest

from sophon.bench.rig.object_server import environment_of, program_of
from sophon.cli.main import cli
from tests.support.torchvision_import import import_torchvision

ROOT = Path(__file__).parents[1]
PAGES = sorted((ROOT / "docs").glob("*.md"))
_BLOCK = re.compile(r"^```(?:\w*)\n(.*?)^```", re.DOTALL | re.MULTILINE)


def _command_lines() -> list[tuple[str, str]]:
    """Return the lines of code blocks that call the command, each with its page."""
    found = []
    for page in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *PAGES]:
        for block in _BLOCK.findall(page.read_text()):
            lines = block.replace("\\\n", " ").splitlines()
            found += [(page.stem, line.partition(" #")[0]) for line in lines if line.startswith("sophon ")]
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_python_of_a_page_runs(page, monkeypatch):
    import_torchvision()
    text = page.read_text()
    if "import albumentations" in text:
        pytest.importorskip("albumentations")
    if "object_server" in text:
        pytest.importorskip("obstore")
        if program_of("seaweedfs") is None:
            pytest.skip("seaweedfs is not installed here")
        for name in environment_of(""):
            monkeypatch.setenv(name, "")  # set back after the page has changed it
    names: dict[str, object] = {}
    for code in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
        exec(compile(code, page.name, "exec"), names)


@pytest.mark.parametrize(("page", "line"), _command_lines())
def test_every_command_line_is_one_that_the_command_takes(page, line):
    """Its options exist and have values that can be read; nothing is run, and files need not be there."""
    words = [word for word in shlex.split(line) if word not in ("&", "…")][1:]
    command: click.Command = cli
    context = click.Context(cli, info_name="sophon")
    while isinstance(command, click.Group):
        found = command.get_command(context, words[0]) if words else None
        assert found is not None, f"{page}: {line}"
        command, context = found, click.Context(found, parent=context, info_name=words.pop(0))
    given, _, _ = command.make_parser(context).parse_args(words)
    for option in command.params:
        if option.name in given and not isinstance(option.type, click.Path):
            option.process_value(context, given[option.name])


def _draw():
    spec = importlib.util.spec_from_file_location("figures_draw", ROOT / "docs" / "figures" / "draw.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["figures_draw"] = module  # dataclasses look for it
    spec.loader.exec_module(module)
    return module


def test_the_figures_are_what_their_script_draws():
    for name, draw in _draw().FIGURES.items():
        assert (ROOT / "docs" / "figures" / f"{name}.svg").read_text() == draw().svg(), "run docs/figures/draw.py"


@pytest.mark.slow
def test_the_site_is_made_without_a_warning(tmp_path):
    packages = ROOT / ".venv" / "docs"
    if not (packages / "sphinx").is_dir():
        pytest.skip("`make docs` installs what makes the site")
    command = [sys.executable, "-m", "sphinx", "--fail-on-warning", "--quiet", "-b", "html", "-d", tmp_path / "trees"]
    environment = {**os.environ, "PYTHONPATH": str(packages), "http_proxy": "http://127.0.0.1:9", "NO_PROXY": ""}
    done = subprocess.run(
        [*command, ROOT / "docs", tmp_path / "site"], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    api = (tmp_path / "site" / "reference" / "api.html").read_text()
    assert all(f'id="sophon.{name}"' in api for name in ("DataLoader", "RemoteDataset", "Pipeline", "Faults"))
    assert "sophon-serve" in (tmp_path / "site" / "reference" / "cli.html").read_text()
    assert 'id="sophon.ops.RandomResizedCrop"' in (tmp_path / "site" / "reference" / "ops.html").read_text()
