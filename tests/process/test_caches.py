"""The cache folder: what lies in it, how it is bounded, and what killed processes leave."""

import os
import signal
import subprocess
import sys
import time

import pytest

from sophon import Cache, ConfigError, DataLoader
from sophon.process import caches
from sophon.process.caches import entries, hold, most_bytes, remove, shrink, sweep, tidy, used
from sophon.store import open_store
from tests.support.servers import RECIPE, make_images
from tests.support.waiting import HANG_S, wait_until

WRITER = """
import sys, time
from pathlib import Path
from sophon.artifact import replacing
with replacing(Path(sys.argv[1], "file")) as file:
    file.write(b"half"); file.flush()
    print(flush=True)
    time.sleep(1000)
"""


def _entry(base, kind, name, size_bytes, days=0.0):
    (base / kind).mkdir(parents=True, exist_ok=True)
    path = base / kind / name
    path.write_bytes(bytes(size_bytes))
    used(path, f"about {name}")
    os.utime(path, (0, time.time() - days * 86_400))
    return path


def test_entries_are_listed_with_what_they_are_of_the_latest_used_first(tmp_path):
    _entry(tmp_path, "profiles", "old.parquet", 10, days=2)
    _entry(tmp_path, "manifests", "new.arrow", 20)
    (tmp_path / "manifests" / ".sophon.1.ab.partial").write_bytes(b"half")
    (tmp_path / "foreign").mkdir()
    found = entries(tmp_path)
    assert [(entry.kind, entry.about, entry.size_bytes) for entry in found] == [
        ("manifests", "about new.arrow", 20),
        ("profiles", "about old.parquet", 10),
    ]
    assert all(map(remove, found))
    assert sorted(path.name for path in tmp_path.rglob("*")) == [
        ".sophon.1.ab.partial",
        "foreign",
        "manifests",
        "profiles",
    ]


def test_what_was_not_used_for_the_longest_time_goes_until_the_rest_fits(tmp_path):
    for day in range(5):
        _entry(tmp_path, "manifests", f"{day}.arrow", 100, days=day)
    assert [entry.path.name for entry in shrink(tmp_path, 250)] == ["4.arrow", "3.arrow", "2.arrow"]
    assert [entry.path.name for entry in entries(tmp_path)] == ["0.arrow", "1.arrow"]


def test_only_the_users_own_folder_is_bounded_and_looked_at_once(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("SOPHON_CACHE_BYTES", "150B")
    monkeypatch.setattr(caches, "_tidied", set())
    own, named = tmp_path / "sophon", tmp_path / "named"
    for base in (own, named):
        for day in range(3):
            _entry(base, "manifests", f"{day}.arrow", 100, days=day)
        tidy(base)
    assert (len(entries(own)), len(entries(named))) == (1, 3)
    _entry(own, "manifests", "more.arrow", 100)
    tidy(own)
    assert len(entries(own)) == 2


def test_the_bound_is_what_the_variable_says(monkeypatch):
    monkeypatch.delenv("SOPHON_CACHE_BYTES", raising=False)
    assert most_bytes() == 20 * 10**9
    monkeypatch.setenv("SOPHON_CACHE_BYTES", "3GB")
    assert most_bytes() == 3 * 10**9
    monkeypatch.setenv("SOPHON_CACHE_BYTES", "much")
    with pytest.raises(ConfigError, match="SOPHON_CACHE_BYTES: "):
        most_bytes()


def test_what_is_in_use_stays(tmp_path):
    folder = tmp_path / "prefixes" / "abc"
    folder.mkdir(parents=True)
    (folder / "bytes").write_bytes((300).to_bytes(8, "little"))
    held = hold(folder)
    assert shrink(tmp_path, 0) == []
    del held
    assert [entry.size_bytes for entry in shrink(tmp_path, 0)] == [300]
    assert not folder.exists()


def test_what_a_killed_process_has_left_is_removed_and_what_a_running_one_writes_is_not(tmp_path):
    (tmp_path / "manifests").mkdir()
    command = [sys.executable, "-c", WRITER, str(tmp_path / "manifests")]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        process.stdout.readline()
        assert sweep(tmp_path) == 0
        process.send_signal(signal.SIGKILL)
        process.wait(HANG_S)
    assert len(list((tmp_path / "manifests").iterdir())) == 1
    assert sweep(tmp_path) == 1
    assert not list((tmp_path / "manifests").iterdir())


def test_everything_that_is_kept_says_what_it_is_of(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    images = make_images(tmp_path / "images", 4)
    os.utime(images / "class_0", (0, 0))
    for folder in images.iterdir():
        os.utime(folder, (0, 0))
    os.utime(images, (0, 0))
    open_store(images).close()
    loader = DataLoader(images, RECIPE, cache=Cache("1:raw"))
    assert len(list(loader)) == 4
    found = {entry.kind: entry for entry in entries(tmp_path / "home" / "sophon")}
    assert found["manifests"].about == str(images)
    assert found["prefixes"].about == "images: Decode, as raw"
    assert found["prefixes"].size_bytes > 4 * 3000
    assert not remove(found["prefixes"])  # the loader has it
    del loader
    wait_until(lambda: remove(found["prefixes"]))
