"""No thread, process, file or shared-memory segment is left behind, however an epoch ends."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.servers import make_images, serve

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    return make_images(tmp_path_factory.mktemp("data") / "train", 41)


@pytest.fixture(scope="module")
def server(images):
    with serve(images) as running:
        yield running


@pytest.mark.parametrize("how", ["exception", "dropped", "ctrl-c"])
@pytest.mark.parametrize("kind", ["threads", "processes"])
@pytest.mark.parametrize("where", ["server", pytest.param("local", marks=pytest.mark.slow)])
def test_nothing_is_left_behind(server, images, where, kind, how):
    url = server.url if where == "server" else str(images)
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.leak_main", url, kind, how],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"},
        capture_output=True,
        text=True,
        timeout=60,
        start_new_session=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert json.loads(done.stdout.splitlines()[-1]) == {}
