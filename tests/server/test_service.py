"""The real process, spoken to by a plain Arrow Flight client that is not ours."""

import json
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from pyarrow import flight

import sophon
from sophon.errors import RetryableError, TransportError
from sophon.link.listing import received
from sophon.link.wire import Request, sizes_from_bytes
from sophon.loader.sources.assignment import OffloadWarning
from sophon.pipeline import Pipeline, ops
from sophon.server.budget import CpuBudget
from sophon.server.executor import Executor
from sophon.server.limits import Limits
from sophon.server.maker import Threads
from sophon.server.metrics import Metrics
from sophon.server.seats import Seats
from sophon.server.service import HEARTBEAT_S, Service, _seated
from sophon.store import open_store
from tests.support.command import refusal
from tests.support.misbehave import GO, NODE, Misbehave
from tests.support.servers import RECIPE, digest, make_images, serve
from tests.support.waiting import HANG_S


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
    assert {action.type for action in client.list_actions()} == {"open", "list", "sizes", "listing"}
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


def test_the_sizes_of_all_files_are_told(client):
    answer = client.do_action(flight.Action("sizes", b'{"dataset": "data"}'))
    sizes = sizes_from_bytes((part.body.to_pybytes() for part in answer), 12)
    request = Request("data", RECIPE.to_spec(), 0, 0, tuple(range(12)), (sophon.Cut(0),) * 12)
    rows = _read(client, request.to_bytes())
    found = dict(zip(rows["position"].to_pylist(), map(len, rows["payload"].to_pylist()), strict=True))
    assert sizes.tolist() == [found[position] for position in range(12)]


def test_the_samples_are_told_to_whoever_knows_the_data_set(client):
    (answer,) = client.do_action(flight.Action("open", b'{"dataset": "data"}'))
    fingerprint = json.loads(answer.body.to_pybytes())["fingerprint"]

    def ask(start):
        body = json.dumps({"dataset": "data", "fingerprint": fingerprint, "start": start}).encode()
        return [part.body.to_pybytes() for part in client.do_action(flight.Action("listing", body))]

    assert len(received(ask, 12, fingerprint)) == 12
    for wrong in ({"fingerprint": "another"}, {"start": 13}, {"start": -1}, {"start": True}, {"start": "0"}):
        body = {"dataset": "data", "fingerprint": fingerprint, "start": 0, **wrong}
        with pytest.raises(flight.FlightError):
            list(client.do_action(flight.Action("listing", json.dumps(body).encode())))


def test_random_ops_depend_on_the_index_in_the_whole_data_set(client):
    cuts = (sophon.Cut(2),) * 2
    plain = Request("data", RECIPE.to_spec(), 0, 0, (3, 4), cuts)
    found = []
    for request in (plain, replace(plain, keys=(3, 4)), replace(plain, keys=(103, 4))):
        rows = _read(client, request.to_bytes())
        found.append(dict(zip(rows["position"].to_pylist(), rows["payload"].to_pylist(), strict=True)))
    assert found[0] == found[1]
    assert (found[2][0] != found[0][0], found[2][1] == found[0][1]) == (True, True)


@pytest.mark.parametrize("action", ["nothing", "open", "sizes", "listing"])
def test_malformed_actions_are_refused(client, action):
    with pytest.raises(flight.FlightError):
        list(client.do_action(flight.Action(action, b"\xff")))


def test_a_stream_is_never_silent_while_the_node_works(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2]))
    monkeypatch.setenv(NODE, "1")
    monkeypatch.setenv(GO, str(tmp_path / "go"))
    recipe = Pipeline([ops.Decode(), Misbehave("wait"), *RECIPE.ops[1:]])
    request = Request("data", recipe.to_spec(), 0, 0, tuple(range(5)), (sophon.Cut(3, "webp"),) * 5)
    folder = make_images(tmp_path / "train", 5)
    options = ("--import", "tests.support.plugin_ops")
    with serve(folder, options=options) as server, flight.connect(f"grpc://127.0.0.1:{server.port}") as client:
        start_s = time.monotonic()
        reader = client.do_get(flight.Ticket(request.to_bytes()), flight.FlightCallOptions(timeout=HANG_S))
        rows, computing_s = [], 0.0  # it has begun, and no sample can be ready
        for chunk in reader:
            before_s, computing_s = computing_s, json.loads(chunk.app_metadata.to_pybytes())["computing_s"]
            assert computing_s >= before_s
            rows.append(chunk.data.num_rows)
            if rows == [0, 0]:
                assert time.monotonic() - start_s > 2 * HEARTBEAT_S, "now and then, not all the time"
                (tmp_path / "go").touch()
    assert rows[:2] == [0, 0]
    assert sum(rows) == 5
    assert computing_s > 2 * HEARTBEAT_S


class OneByOne(Threads):
    """Begins with a sample when the one before it has been received."""

    def __init__(self, count, begun=0):
        self.received = [threading.Event() for _ in range(count)]
        self._begun = begun

    def make(self, slot, pipeline, data, key, cut, trace=None, *claim):
        self._begun += 1
        if self._begun > 1 and not self.received[self._begun - 2].wait(HANG_S):
            raise AssertionError("the sample before is still held back")
        return super().make(slot, pipeline, data, key, cut, trace, *claim)


@pytest.mark.parametrize("in_order", [True, False])
def test_a_finished_sample_waits_neither_for_the_next_one_nor_for_a_heartbeat(tmp_path, monkeypatch, in_order):
    for module in ("gathering", "service"):
        monkeypatch.setattr(f"sophon.server.{module}.HEARTBEAT_S", 3600.0)
    store, maker = open_store(make_images(tmp_path / "train", 3), "data"), OneByOne(3)
    cuts = (sophon.Cut(2, "webp"),) * 3
    request = Request("data", RECIPE.to_spec(), 0, 0, (0, 1, 2), cuts, in_order=in_order, patience_s=1000.0)
    with closing(CpuBudget(1)) as budget:
        service = Service("grpc://127.0.0.1:0", Executor({"data": store}, budget, maker=maker), Metrics())
        with service, flight.connect(f"grpc://127.0.0.1:{service.port}") as client:
            for chunk in client.do_get(flight.Ticket(request.to_bytes()), flight.FlightCallOptions(timeout=3 * HANG_S)):
                assert chunk.data["cut"].to_pylist() == ["2:webp"], "0:raw: it was given up"
                next(event for event in maker.received if not event.is_set()).set()
    assert all(event.is_set() for event in maker.received)


def test_a_stream_begins_before_any_sample_is_ready_and_goes_on_without_one(tmp_path, monkeypatch):
    monkeypatch.setattr("sophon.server.gathering.HEARTBEAT_S", 0.01)
    store, maker = open_store(make_images(tmp_path / "train", 2), "data"), OneByOne(2, begun=1)
    request = Request("data", RECIPE.to_spec(), 0, 0, (1,), (sophon.Cut(2, "webp"),), patience_s=1000.0)
    with closing(CpuBudget(1)) as budget:
        service = Service("grpc://127.0.0.1:0", Executor({"data": store}, budget, maker=maker), Metrics())
        with service, flight.connect(f"grpc://127.0.0.1:{service.port}") as client:
            reader = client.do_get(flight.Ticket(request.to_bytes()), flight.FlightCallOptions(timeout=HANG_S))
            assert [reader.read_chunk().data.num_rows for _ in range(5)] == [0] * 5
            maker.received[0].set()
            assert reader.read_all().num_rows == 1


def test_a_large_sample_under_a_low_limit_does_not_make_its_stream_silent(tmp_path):
    (tmp_path / "train" / "class").mkdir(parents=True)
    (tmp_path / "train" / "class" / "large.png").write_bytes(bytes(1 << 20))
    request = Request("data", {"ops": []}, 0, 0, (0,), (sophon.Cut(0),))
    limited = serve(tmp_path / "train", options=("--limit", "3mbit"))
    with limited as server, flight.connect(f"grpc://127.0.0.1:{server.port}") as client:
        start_s = time.monotonic()
        rows = [chunk.data.num_rows for chunk in client.do_get(flight.Ticket(request.to_bytes()))]
        passed_s = time.monotonic() - start_s
    assert rows[-1] == 1
    assert 1 <= len(rows) - 1 <= passed_s / HEARTBEAT_S
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
        assert time.monotonic() - start_s > 0.85  # and no longer than it must: see test_limit


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
        assert process.wait(HANG_S) == 0
    assert lines[0] == f"sophon: serving 3 samples of 3 classes at grpc://127.0.0.1:{port}/first\n"
    assert lines[2].startswith("sophon: ready")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere"], "nowhere"),
        ([".", "--limit", "fast"], "is not a bandwidth"),
        ([".", "--host", "256.1.1.1"], "cannot listen on"),
        ([".", "--ready-file", "/nowhere/ready"], "there is no folder /nowhere"),
        (["a=.", "a=.", "--name", "x"], "--name is for a single PATH"),
    ],
)
def test_a_server_that_cannot_start_says_why(tmp_path, monkeypatch, arguments, message):
    make_images(tmp_path, 2)
    monkeypatch.chdir(tmp_path)
    assert message in refusal("serve", *arguments, "--port", "0")


def test_local_server_says_why_it_could_not_start(tmp_path):
    with pytest.raises(TransportError, match=r"sophon serve ended at once.*nowhere"):
        sophon.LocalServer(tmp_path / "nowhere").start()


def test_where_bits_would_differ_ops_stay_on_the_trainer_with_a_warning(server, monkeypatch):
    expected = digest(sophon.DataLoader(server.url, RECIPE, batch_size=4))
    from sophon.loader.sources import assignment as cuts

    real = cuts.digests

    def other(pipeline):
        found = real(pipeline)
        found[1] = "another libjpeg"
        return found

    monkeypatch.setattr(cuts, "digests", other)
    with pytest.warns(OffloadWarning, match="RandomResizedCrop and everything after it stay on the trainer"):
        loader = sophon.DataLoader(server.url, RECIPE, batch_size=4, policy="all")
    assert digest(loader) == expected
    assert loader.stats.cuts == {"0:raw": 12}
    with pytest.warns(OffloadWarning):
        loader = sophon.DataLoader(server.url, RECIPE, batch_size=4, policy=["1:webp"] * 6 + ["2:raw"] * 6)
    assert digest(loader) == expected
    assert loader.stats.cuts == {"1:webp": 6, "0:raw": 6}


def test_an_answer_keeps_its_seat_until_it_is_read():
    seats = Seats(Limits(requests=1))
    parts = _seated(seats.enter(), iter([b"one", b"two"]))
    assert next(parts) == b"one"
    with pytest.raises(RetryableError, match="already answering 1 requests"):
        seats.enter()
    assert list(parts) == [b"two"]
    unread = _seated(seats.enter(), iter([b"one"]))
    del unread  # its client has gone before it was begun
    assert seats.requests == 0
