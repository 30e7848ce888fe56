"""`sophon cache list` and `clear`."""

import json
import os

import pytest
from click.testing import CliRunner

from sophon.cli.main import cli


@pytest.fixture
def kept(tmp_path):
    for kind, name, size, age_s in (("manifests", "a.arrow", 1000, 10), ("profiles", "b.parquet", 2000, 10 * 86_400)):
        (tmp_path / kind).mkdir()
        path = tmp_path / kind / name
        path.write_bytes(bytes(size))
        (tmp_path / kind / f"{name}.about").write_text(f"what {name} is of")
        os.utime(path, (0, path.stat().st_mtime - age_s))
    (tmp_path / "manifests" / ".sophon.1.ab.partial").write_bytes(b"half")
    return tmp_path


def _run(*arguments):
    done = CliRunner().invoke(cli, ["cache", *map(str, arguments)], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


def test_what_is_kept_is_listed_with_sizes_and_ages(kept):
    told = json.loads(_run("list", "--cache-dir", kept, "--json"))
    assert [(entry["about"], entry["bytes"]) for entry in told["entries"]] == [
        ("what a.arrow is of", 1000),
        ("what b.parquet is of", 2000),
    ]
    shown = _run("list", "--cache-dir", kept)
    assert "measured costs" in shown
    assert "2 entries" in shown


def test_kinds_and_ages_can_be_chosen_and_leftovers_go_in_any_event(kept):
    assert "removed 0 entries" in _run("clear", "manifests", "--older-than", 5, "--cache-dir", kept)
    told = json.loads(_run("clear", "--older-than", 5, "--cache-dir", kept, "--json"))
    assert (told["removed"], told["removed_bytes"], told["in_use"]) == (1, 2000, 0)
    _run("clear", "--cache-dir", kept)
    assert not [path for path in kept.rglob("*") if path.is_file()]


def test_the_users_own_folder_is_meant_where_none_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    told = json.loads(_run("list", "--json"))
    assert told == {"folder": str(tmp_path / "sophon"), "most_bytes": 20 * 10**9, "entries": []}
