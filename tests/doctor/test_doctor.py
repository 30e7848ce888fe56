"""`sophon doctor` finds faults that are really there, names them and says what to do."""

import contextlib
import json
import os
import shutil
import subprocess
import sys

import pytest

from tests.support import planted
from tests.support.planted import Scene
from tests.support.python_process import PATHS, ROOT
from tests.support.servers import make_images, serve
from tests.support.waiting import HANG_S

# What is planted, what the doctor calls it, how bad that is, and words of its line.
QUICK = [
    (planted.port_closed, "port", "fault", "nothing is listening on port"),
    (planted.truncated_photo, "samples", "fault", "1 of 4 samples are damaged: sample 2"),
    (planted.no_pictures, "data", "fault", "texts"),
    (planted.old_pillow, "pillow", "fault", "pillow 11.0.0 is installed, but sophon needs 12.0 or newer"),
]
SLOW = [
    (planted.wrong_pillow, "bits", "fault", "not the same bits: RandomResizedCrop gives a different result there"),
    (planted.missing_package, "packages", "fault", "pyarrow"),
    (planted.missing_extension, "extensions", "advice", "the compiled extension _jpeg is missing"),
    (planted.node_without_extension, "codecs", "advice", "the node has no `window` codec"),
    (planted.no_token, "rights", "fault", "this node needs a token"),
    (planted.no_right, "rights", "fault", "this node does not know the token"),
    (planted.clock_off, "clock", "fault", "its clock is 66.7 min ahead of this machine's"),
    (planted.no_such_host, "host", "fault", "no-such-host.invalid cannot be resolved"),
    (planted.no_node, "answer", "fault", "does not answer"),
    (planted.other_name, "dataset", "fault", "no data set 'date' here; available: data"),
    (planted.other_data, "copy", "advice", "holds a different data set than"),
    (planted.blocking_step, "steps", "fault", "step 2 (Call(recipe.wait)) has not returned after 1 s"),
    (planted.blocked_offloading, "offload", "advice", "step 1, Call(recipe.negative), runs on the trainer only"),
    (planted.unseeded_step, "seed", "fault", "step 3 (Call(recipe.noise)): run twice on one value under one seed"),
    (planted.unreadable, "rights", "fault", "ermission denied"),
    (planted.nothing_there, "path", "fault", "there is nothing at"),
    (planted.cache_unwritable, "cache", "advice", "cannot be written to"),
    (planted.cache_full, "cache", "advice", "No space left on device"),
    (planted.cache_of_others, "cache", "advice", "other users can write to"),
    (planted.other_release, "release", "fault", "the node speaks protocol 99"),
    (planted.other_op, "ops", "advice", "RandomResizedCrop and the ops after it cannot run there"),
    (planted.wrong_authority, "tls", "fault", "certificate is not trusted"),
    (planted.tiny_link, "link", "advice", "the link carries"),
    (planted.few_files, "files", "fault", "a process may have 100 open files"),
    (planted.no_cores, "cores", "advice", "--cores 0"),
]


@contextlib.contextmanager
def _scene(folder, monkeypatch):
    with contextlib.ExitStack() as stack:
        yield Scene(folder, stack, monkeypatch.setenv)


def _doctor(scene: Scene):
    command = [*scene.wrapper, sys.executable, "-m", "sophon", "doctor", *scene.words, "--json"]
    environment = {**os.environ, "PYTHONPATH": PATHS, **scene.variables}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=HANG_S, check=False
    )
    assert "Traceback" not in done.stderr, done.stderr
    return done.returncode, json.loads(done.stdout)


def _find(plant, name, level, words, folder, monkeypatch):
    with _scene(folder, monkeypatch) as scene:
        plant(scene)
        code, told = _doctor(scene)
    named = [f for f in told["findings"] if f["name"] == name and f["level"] == level and words in f["text"]]
    assert named, told
    assert all(finding["remedy"] or words in ("", finding["text"]) for finding in named), named
    assert code == (1 if told["faults"] else 0)
    assert told["faults"] == len([f for f in told["findings"] if f["level"] == "fault"])
    assert (level == "fault") <= (code == 1)


@pytest.mark.parametrize(("plant", "name", "level", "words"), QUICK, ids=lambda value: getattr(value, "__name__", ""))
@pytest.mark.matrix(every=2)
def test_it_names_a_planted_fault(plant, name, level, words, tmp_path, monkeypatch):
    _find(plant, name, level, words, tmp_path, monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize(("plant", "name", "level", "words"), SLOW, ids=lambda value: getattr(value, "__name__", ""))
def test_it_names_each_planted_fault(plant, name, level, words, tmp_path, monkeypatch):
    if plant is planted.cache_full and (os.geteuid() != 0 or shutil.which("unshare") is None):
        pytest.skip("needs root, to mount a small disk")
    _find(plant, name, level, words, tmp_path, monkeypatch)


def test_where_nothing_is_wrong_it_says_so(tmp_path, monkeypatch):
    with _scene(tmp_path, monkeypatch) as scene, serve(make_images(tmp_path / "images", 6)) as node:
        scene.words += [node.url, "--seconds", "0.3", "--samples", "6"]
        code, told = _doctor(scene)
    assert code == 0, told
    assert told["faults"] == 0
    names = {finding["name"]: finding["text"] for finding in told["findings"] if finding["level"] == "fine"}
    assert {"python", "packages", "extensions", "port", "dataset", "clock", "samples", "bits"} <= set(names)
    assert "link" in {finding["name"] for finding in told["findings"]}, "which a busy machine makes slow"
    assert names["bits"].startswith("the same bits at ")
    assert "(0 results)" not in names["bits"]
