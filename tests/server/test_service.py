"""The real process, spoken to by a plain Arrow Flight client that is not ours."""

import json
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from pyarrow import flight

import sophon
from sophon.codec.wire import Request
from sophon.errors import TransportError
from sophon.loader.cuts import OffloadWarning
from sophon.pipeline import Pipeline, ops
from sophon.server.service import HEARTBEAT_S
from tests.support.misbehave import DOZE_S, NODE, Misbehave
from tests.support.servers import RECIPE, digest, make_images, serve


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = make_images(tmp_path_factory.mktemp("data") / "train", 12)
    with serve(folder, options=("--metrics-port", "0")) as running:
        yield running


@pytest.fixture
def client(server):
    with flight.connect(f"grpc://127.0.0.1:{server.port}") as plain:
        yield plain


def _read(client, ticket):
    return client.do_get(flight.Ticket(ticket)).read_all()


def test_any_flight_client_can_list_and_describe_data_sets(client):
    assert {action.type for action in client.list_actions()} == {"open", "list"}
    (names,) = client.do_action(flight.Action("list", b""))
    assert json.loads(names.body.to_pybytes()) == {"datasets": ["data"]}
    (answer,) = client.do_action(flight.Action("open", b'{"dataset": "data"}'))
    assert json.loads(answer.body.to_pybytes())["samples"] == 12


@pytest.mark.parametrize(
    "ticket",
    [
        b"",
        b"\x00\xff" * 50,
        b"{}",
        b"[" * 50_000,
        json.dumps({"protocol": 99}).encode(),
        Request("nowhere", RECIPE.to_spec(), 0, 0, (0,), (sophon.Cut(0),)).to_bytes(),
        Request("data", RECIPE.to_spec(), 0, 0, (12,), (sophon.Cut(0),)).to_bytes(),
        Request("data", {"ops": [{}] * 1000}, 0, 0, (0,), (sophon.Cut(0),)).to_bytes(),
    ],
)
def test_malformed_requests_are_refused_and_the_server_lives_on(client, ticket):
    with pytest.raises(flight.FlightError):
        _read(client, ticket)
    good = Request("data", RECIPE.to_spec(), 0, 0, (0, 1), (sophon.Cut(0),) * 2)
    assert _read(client, good.to_bytes()).num_rows == 2


@pytest.mark.parametrize("action", ["nothing", "open"])
def test_malformed_actions_are_refused(client, action):
    with pytest.raises(flight.FlightError):
        list(client.do_action(flight.Action(action, b"\xff")))


def test_a_stream_begins_at_once_and_is_never_silent_while_the_node_works(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2]))
    monkeypatch.setenv(NODE, "1")
    monkeypatch.setenv(DOZE_S, "2.5")
    recipe = Pipeline([ops.Decode(), Misbehave("doze", 77), *RECIPE.ops[1:]])  # every fifth picture is so wide
    request = Request("data", recipe.to_spec(), 0, 0, tuple(range(5)), (sophon.Cut(3, "webp"),) * 5)
    folder = make_images(tmp_path / "train", 5)
    options = ("--import", "tests.support.plugin_ops")
    with serve(folder, options=options) as server, flight.connect(f"grpc://127.0.0.1:{server.port}") as client:
        start_s = time.monotonic()
        reader = client.do_get(flight.Ticket(request.to_bytes()))
        assert time.monotonic() - start_s < 0.5, "before any sample is ready"
        rows, computing_s = [], 0.0
        for chunk in reader:
            assert time.monotonic() - start_s < HEARTBEAT_S + 1.4
            start_s = time.monotonic()
            before_s, computing_s = computing_s, json.loads(chunk.app_metadata.to_pybytes())["computing_s"]
            assert computing_s >= before_s
            rows.append(chunk.data.num_rows)
    assert sum(rows) == 5
    assert 0 in rows
    assert computing_s > 2


def test_a_large_sample_under_a_low_limit_does_not_make_its_stream_silent(tmp_path):
    (tmp_path / "train" / "class").mkdir(parents=True)
    (tmp_path / "train" / "class" / "large.png").write_bytes(bytes(1 << 20))
    request = Request("data", {"ops": []}, 0, 0, (0,), (sophon.Cut(0),))
    limited = serve(tmp_path / "train", options=("--limit", "3mbit"))
    with limited as server, flight.connect(f"grpc://127.0.0.1:{server.port}") as client:
        rows = [chunk.data.num_rows for chunk in client.do_get(flight.Ticket(request.to_bytes()))]
    assert rows[-1] == 1
    assert 1 <= len(rows) - 1 <= 3
    assert not any(rows[:-1])


def test_health_and_metrics_over_http(server):
    base = f"http://127.0.0.1:{server.metrics_port}"
    list(sophon.DataLoader(server.url, RECIPE, batch_size=4, policy="2:webp"))
    with urllib.request.urlopen(f"{base}/health") as answer:
        assert answer.read() == b"ok\n"
    with urllib.request.urlopen(f"{base}/metrics") as answer:
        text = answer.read().decode()
    assert 'sophon_samples_total{cut="2:webp",dataset="data"} 12.0' in text
    assert "sophon_payload_bytes_total" in text
    assert "sophon_op_cpu_seconds_total" in text
    with pytest.raises(urllib.error.HTTPError):
        urllib.request.urlopen(f"{base}/secrets")


def test_the_storage_process_never_loads_torch(server):
    list(sophon.DataLoader(server.url, RECIPE, batch_size=4, policy="all"))
    maps = Path(f"/proc/{server.pid}/maps").read_text()
    assert "libarrow_flight" in maps
    assert "torch" not in maps


def test_a_rate_limit_is_kept_to(tmp_path):
    folder = make_images(tmp_path / "train", 12)
    size_bytes = sum(path.stat().st_size for path in folder.rglob("*.*"))
    with serve(folder, options=("--limit", f"{8 * size_bytes}bit/s")) as server:
        loader = sophon.DataLoader(server.url, RECIPE, batch_size=12)
        start_s = time.monotonic()
        list(loader)
        assert 0.85 < time.monotonic() - start_s < 2.0


def test_several_data_sets_at_once(tmp_path):
    one, two = make_images(tmp_path / "one", 3), make_images(tmp_path / "two", 5)
    ready = tmp_path / "ready.json"
    command = [sys.executable, "-m", "sophon.cli.main", "serve", f"first={one}", str(two), "--port", "0"]
    command += ["--cache-dir", str(tmp_path / "cache"), "--ready-file", str(ready)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        lines = [process.stdout.readline() for _ in range(3)]
        port = json.loads(ready.read_text())["port"]
        assert len(sophon.RemoteDataset(f"grpc://127.0.0.1:{port}/first", RECIPE)) == 3
        assert len(sophon.RemoteDataset(f"grpc://127.0.0.1:{port}/two", RECIPE)) == 5
        process.terminate()
        assert process.wait(15) == 0
    assert lines[0] == f"sophon: serving 3 samples at grpc://127.0.0.1:{port}/first\n"
    assert lines[2].startswith("sophon: ready")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere"], "nowhere"),
        ([".", "--limit", "fast"], "is not a bandwidth"),
        ([".", "--host", "256.1.1.1"], "cannot listen on"),
        ([".", "--ready-file", "/nowhere/ready"], "there is no folder /nowhere"),
        (["a=.", "a=.", "--name", "x"], "--name goes with one PATH"),
    ],
)
def test_a_server_that_cannot_start_says_why(tmp_path, arguments, message):
    make_images(tmp_path, 2)
    command = [sys.executable, "-m", "sophon.cli.main", "serve", *arguments, "--port", "0"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path, timeout=60)
    assert done.returncode != 0
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_local_server_says_why_it_could_not_start(tmp_path):
    with pytest.raises(TransportError, match=r"sophon serve ended at once.*nowhere"):
        sophon.LocalServer(tmp_path / "nowhere").start()


def test_where_bits_would_differ_ops_stay_on_the_trainer_with_a_warning(server, monkeypatch):
    expected = digest(sophon.DataLoader(server.url, RECIPE, batch_size=4))
    from sophon.loader import cuts

    real = cuts.digests

    def other(pipeline):
        found = real(pipeline)
        found[1] = "another libjpeg"
        return found

    monkeypatch.setattr(cuts, "digests", other)
    with pytest.warns(OffloadWarning, match="RandomResizedCrop and what follows it stay on the trainer"):
        loader = sophon.DataLoader(server.url, RECIPE, batch_size=4, policy="all")
    assert digest(loader) == expected
    assert loader.stats.cuts == {"0:raw": 12}
    with pytest.warns(OffloadWarning):
        loader = sophon.DataLoader(server.url, RECIPE, batch_size=4, plan=["1:webp"] * 6 + ["2:raw"] * 6)
    assert digest(loader) == expected
    assert loader.stats.cuts == {"1:webp": 6, "0:raw": 6}
