"""No thread, process, file or shared-memory segment is left behind, however an epoch ends."""

import json
import threading

import pytest

import sophon
from tests.support.leak_main import HOWS
from tests.support.marks import slow
from tests.support.python_process import run_python
from tests.support.servers import RECIPE, make_images, serve


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    return make_images(tmp_path_factory.mktemp("data") / "train", 41)


@pytest.fixture(scope="module")
def server(images):
    with serve(images) as running:
        yield running


@pytest.mark.parametrize(
    ("where", "kind"),
    [
        ("server", "processes"),
        *slow(
            ("server", "threads"),
            ("local", "persistent"),
            ("server", "none"),
            ("local", "threads"),
            ("local", "processes"),
            ("local", "none"),
        ),
    ],
)
def test_nothing_is_left_behind(server, images, where, kind):
    url = server.url if where == "server" else str(images)
    # With no workers there is nobody to wait for.
    hows = [how for how in HOWS if kind != "none" or how != "ctrl-c-waiting"]
    done = run_python("-m", "tests.support.leak_main", url, kind, *hows)
    assert done.returncode == 0, done.stderr[-2000:]
    assert json.loads(done.stdout.splitlines()[-1]) == {}


def test_an_epoch_for_which_there_are_not_enough_threads_leaves_none(images, monkeypatch):
    start, started = threading.Thread.start, []

    def few(thread):
        if len(started) == 3:
            raise RuntimeError("can't start new thread")
        started.append(thread)
        start(thread)

    loader = sophon.DataLoader(images, RECIPE, batch_size=4, num_workers=2)
    monkeypatch.setattr(threading.Thread, "start", few)
    with pytest.raises(RuntimeError, match="can't start new thread"):
        next(iter(loader))
    assert not any(thread.is_alive() for thread in started)
