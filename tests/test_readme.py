"""The README's Python and commands do what it says, and those of the pages; links lead somewhere."""

import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from sophon.cli.main import cli
from tests.support.servers import make_images, serve
from tests.support.torchvision_import import import_torchvision

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").glob("*.md"))]
COMMANDS = {name for page in PAGES for name in re.findall(r"`(sophon [a-z]+(?: [a-z]+)?)", page.read_text())}


def test_the_python_of_the_readme_runs_as_written(tmp_path):
    import_torchvision()
    (code,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    with serve(make_images(tmp_path / "train", 8), name="train") as server:
        code = code.replace("grpc://storage:7077/train", server.url).replace("range(90)", "range(2)")
        names: dict[str, object] = {}
        exec(compile(code, "README.md", "exec"), names)
        assert names["images"].shape == (8, 3, 224, 224)


def test_the_readme_has_two_screens():
    assert len(README.split()) <= 900


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_link_to_a_file_leads_to_one(page):
    links = re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text())
    files = [link for link in links if "://" not in link]
    assert [link for link in files if not (page.parent / link).exists()] == []


def test_every_page_is_linked_from_the_readme():
    named = set(re.findall(r"\]\(docs/([\w-]+)\.md", README))
    assert named == {page.stem for page in PAGES if page.parent == ROOT / "docs"}


@pytest.mark.parametrize("command", sorted(COMMANDS))
def test_every_command_that_is_named_exists(command):
    words = [word for word in command.split() if word not in ("sophon",)]
    words = words if words[0] in ("bench",) else words[:1]
    done = CliRunner().invoke(cli, [*words, "--help"])
    assert done.exit_code == 0, done.output
