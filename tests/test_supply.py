"""What the tests run with is pinned, hashed and complete."""

import re
import tomllib
from pathlib import Path

import pytest

from sophon.version import __version__

REPOSITORY = Path(__file__).parents[1]
PIN = re.compile(r"([A-Za-z0-9_.-]+)==([0-9][A-Za-z0-9.]*)")
LEFT_OUT = {"torch"}  # requirements/hash.py says why


def _name(text):
    return re.sub(r"[-_.]+", "-", re.match(r"[A-Za-z0-9_.-]+", text)[0]).lower()


def _pins(more=""):
    lines = (REPOSITORY / "requirements" / f"pins{more}.txt").read_text().splitlines()
    return {_name(match[1]): match[2] for line in lines if (match := PIN.fullmatch(line))}


def _hashed(more=""):
    text = (REPOSITORY / "requirements" / f"hashed{more}.txt").read_text().replace("\\\n", " ")
    found = {}
    for line in text.splitlines():
        if not line.startswith("#"):
            pin, *hashes = line.split()
            assert hashes, line
            assert all(re.fullmatch(r"--hash=sha256:[0-9a-f]{64}", value) for value in hashes), line
            found[_name(pin)] = PIN.fullmatch(pin)[2]
    return found


@pytest.mark.parametrize("more", ["", "-datasets", "-docs", "-ray", "-wheel"])
def test_every_pin_is_hashed(more):
    pins = {name: version for name, version in _pins(more).items() if name not in LEFT_OUT}
    assert _hashed(more) == pins, "pins.txt has changed: run python requirements/hash.py INDEX_URL"


def test_all_that_the_project_asks_for_is_pinned():
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())
    extras = project["project"]["optional-dependencies"]
    wanted = [*project["build-system"]["requires"], *project["project"]["dependencies"], *extras["test"]]
    assert {_name(text) for text in wanted} <= set(_pins())


def test_the_version_is_said_in_one_place_and_cited():
    cited = (REPOSITORY / "CITATION.cff").read_text()
    assert re.search(r"^version: (.+)$", cited, re.MULTILINE)[1] == __version__
    changes = (REPOSITORY / "CHANGELOG.md").read_text()
    assert re.search(r"^## (?!Unreleased)(\S+)", changes, re.MULTILINE)[1] == __version__
