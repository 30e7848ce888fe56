"""How a server ends: whichever thread hears the signal, in peace if it can, at once if it is asked twice."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from pyarrow import flight

from sophon.codec import RAW
from sophon.codec.wire import Request
from tests.support.servers import RECIPE, make_images, serve

COUNT = 8
DEAF = ("--import", "tests.support.deaf_main_thread")
CRAWLING = ("--limit", "1kbit")  # so that a reply takes minutes
HEARING = (pytest.param((), id="hearing"), pytest.param(DEAF, id="deaf"))


@pytest.fixture(scope="module")
def images(tmp_path_factory) -> Path:
    return make_images(tmp_path_factory.mktemp("stop") / "train", COUNT)


@pytest.fixture(autouse=True)
def _plugins(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))


def begin(port: int) -> flight.FlightStreamReader:
    """Begin to read replies, which keeps the server busy."""
    client = flight.connect(f"grpc://127.0.0.1:{port}")
    request = Request("data", RECIPE.to_spec(), 0, 0, tuple(range(COUNT)), (RAW,) * COUNT)
    return client.do_get(flight.Ticket(request.to_bytes()))


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("options", HEARING)
def test_a_signal_is_heard_whichever_thread_takes_it(images, options, how):
    with serve(images, options=options) as server:
        process = server._process
        os.kill(server.pid, how)
        assert process.wait(15) == 0


@pytest.mark.parametrize("options", HEARING)
def test_what_is_under_way_is_waited_for_unless_asked_twice(images, options):
    with serve(images, options=(*options, *CRAWLING)) as server:
        process, reader = server._process, begin(server.port)
        os.kill(server.pid, signal.SIGTERM)
        time.sleep(1)
        assert process.poll() is None
        os.kill(server.pid, signal.SIGTERM)
        assert process.wait(15) == 1
        reader.cancel()


def test_new_requests_are_refused_while_others_end(images):
    with serve(images, options=CRAWLING) as server:
        reader = begin(server.port)
        os.kill(server.pid, signal.SIGTERM)
        time.sleep(0.5)
        with pytest.raises(flight.FlightUnavailableError):
            begin(server.port).read_chunk()
        reader.cancel()
        server.kill()


def test_a_drain_that_does_not_end_says_who_is_busy(images, tmp_path):
    script = f"""
from pathlib import Path
from sophon.server.process import ServerConfig, run_server
from sophon.store import open_store
store = open_store(Path({str(images)!r}), "data", cache_dir=Path({str(tmp_path)!r}))
config = ServerConfig(port=0, limit_bytes_per_s=100, drain_s=0.5)
run_server({{"data": store}}, config, lambda ready: print(ready.port, flush=True))
"""
    command = [sys.executable, "-c", script]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        port = int(process.stdout.readline())
        reader = begin(port)
        process.terminate()
        _, said = process.communicate(timeout=30)
        reader.cancel()
    assert process.returncode == 1
    assert said.startswith("sophon: requests are still under way after 0.5 s, and are broken off:\n")
    assert "limit.py" in said
