"""How a server ends: whichever thread hears the signal, in peace if it can, at once if it is asked twice."""

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from pyarrow import flight

from sophon.codec import RAW, Cut
from sophon.errors import ConfigError
from sophon.link.wire import Request
from sophon.pipeline import Pipeline, ops
from sophon.server.metrics import Metrics, serve_metrics
from sophon.server.process import Ready, _write
from sophon.server.service import HEARTBEAT_S
from tests.support.misbehave import BEGUN, NODE, Misbehave
from tests.support.python_process import PATHS
from tests.support.servers import RECIPE, make_images, serve
from tests.support.waiting import HANG_S, wait_until

COUNT = 8
DEAF = ("--import", "tests.support.deaf_main_thread")
CRAWLING = ("--limit", "1kbit")  # so that a reply takes minutes
HEARING = (pytest.param((), id="hearing"), pytest.param(DEAF, id="deaf"))


@pytest.fixture(scope="module")
def images(tmp_path_factory) -> Path:
    return make_images(tmp_path_factory.mktemp("stop") / "train", COUNT)


@pytest.fixture(autouse=True)
def _plugins(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", PATHS)


def begin(port: int) -> flight.FlightStreamReader:
    """Begin to read replies, which keeps the server busy."""
    client = flight.connect(f"grpc://127.0.0.1:{port}")
    request = Request("data", RECIPE.to_spec(), 0, 0, tuple(range(COUNT)), (RAW,) * COUNT)
    return client.do_get(flight.Ticket(request.to_bytes()))


def _drains(metrics_port: int) -> None:
    """Wait until a server has heard a signal, and takes no more requests."""

    def is_draining() -> bool:
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{metrics_port}/health", timeout=HANG_S).close()
        except urllib.error.HTTPError as error:
            return error.code == 503
        return False

    wait_until(is_draining)


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("options", HEARING)
def test_a_signal_is_heard_whichever_thread_takes_it(images, options, how):
    with serve(images, options=options) as server:
        process = server._process
        os.kill(server.pid, how)
        assert process.wait(HANG_S) == (130 if how == signal.SIGINT else 0)


@pytest.mark.parametrize("options", HEARING)
def test_what_is_under_way_is_waited_for_unless_asked_twice(images, options):
    with serve(images, options=(*options, *CRAWLING, "--metrics-port", "0")) as server:
        process, reader = server._process, begin(server.port)
        os.kill(server.pid, signal.SIGTERM)
        _drains(server.metrics_port)
        assert process.poll() is None
        os.kill(server.pid, signal.SIGTERM)
        assert process.wait(HANG_S) == 1
        reader.cancel()


def test_new_requests_are_refused_while_others_end(images):
    with serve(images, options=(*CRAWLING, "--metrics-port", "0")) as server:
        reader = begin(server.port)
        os.kill(server.pid, signal.SIGTERM)
        _drains(server.metrics_port)
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
        _, said = process.communicate(timeout=HANG_S)
        reader.cancel()
    assert process.returncode == 1
    assert said.startswith("sophon: requests are still running after 0.5 s and are aborted:\n")
    assert "limit.py" in said


def test_what_a_cancelled_request_has_begun_holds_up_the_end_no_longer_than_requests_do(images, tmp_path):
    script = f"""
from pathlib import Path
from sophon.server.process import ServerConfig, run_server
from sophon.store import open_store
store = open_store(Path({str(images)!r}), "data", cache_dir=Path({str(tmp_path)!r}))
config = ServerConfig(port=0, drain_s=2, modules=("tests.support.plugin_ops",))
run_server({{"data": store}}, config, lambda ready: print(ready.port, flush=True))
"""
    sleepy = Pipeline([ops.Decode(), Misbehave("sleep")])
    begun = tmp_path / "begun"
    environment = {**os.environ, NODE: "1", BEGUN: str(begun)}
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, env=environment) as process:
        client = flight.connect(f"grpc://127.0.0.1:{int(process.stdout.readline())}")
        request = Request("data", sleepy.to_spec(), 0, 0, (0,), (Cut(2),))
        reader = client.do_get(flight.Ticket(request.to_bytes()))
        wait_until(begun.exists)
        reader.cancel()
        time.sleep(1.5 * HEARTBEAT_S)  # so that the server has noticed, as it may
        process.terminate()
        try:
            assert process.wait(HANG_S) == 1
        finally:
            process.kill()


def test_a_ready_file_is_written_through_nobodys_link(images, tmp_path):
    precious, ready = tmp_path / "precious", tmp_path / "ready.json"
    precious.write_text("precious")
    for name in (ready.name, ready.name + ".partial"):
        (tmp_path / name).symlink_to(precious)
    _write(ready, Ready("grpc://127.0.0.1:7077", 7077, None, 1))
    assert precious.read_text() == "precious"
    assert not ready.is_symlink()
    with pytest.raises(ConfigError, match="--ready-file"):
        _write(images, Ready("grpc://127.0.0.1:7077", 7077, None, 1))  # a folder


def test_who_says_nothing_on_the_metrics_port_is_not_waited_for(images, monkeypatch):
    monkeypatch.setattr("sophon.server.metrics._IDLE_S", 0.5)
    http = serve_metrics(Metrics(), "127.0.0.1", 0, lambda: True)
    with socket.create_connection(http.server_address) as silent:
        silent.sendall(b"GET /health HTTP/1.1\r\nX: ")
        silent.settimeout(HANG_S)
        assert silent.recv(1) == b""
    http.shutdown()
    http.server_close()
