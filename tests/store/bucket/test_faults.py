"""An object store in trouble: whatever happens, the bytes are right or there is an error."""

import itertools
import threading
import time
import warnings

import pytest

import sophon
from sophon.bench.rig.object_server import ObjectServer, environment_of, free_ports, program_of
from sophon.errors import Error, StoreError
from sophon.store import open_store
from sophon.store.bucket import client as client_module
from sophon.store.bucket.account import ACCOUNT
from sophon.store.bucket.pace import PACE, Pace
from tests.store.bucket.test_stores import upload
from tests.store.bucket.test_training import epochs
from tests.store.datasets import picture, write_files
from tests.support.object_proxy import ObjectProxy
from tests.support.pictures import encode, scene
from tests.support.servers import RECIPE, digest, make_images


@pytest.fixture
def proxy(seaweedfs, use, monkeypatch):
    use(seaweedfs)
    proxy = ObjectProxy(seaweedfs.ports[0])
    monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.endpoint)
    yield proxy
    proxy.close()
    PACE.renew()


def _data(server, tmp_path, count=12):
    root = make_images(tmp_path / "data", count)
    return root, upload(server, root, tmp_path.name)


def every(number, what):
    """Return a fault of every so many-th request for a sample."""
    counter = itertools.count(1)
    return lambda method, path: (
        what if method == "GET" and "list-type" not in path and not next(counter) % number else None
    )


# Once by default, ten times with the slow tests: what goes wrong once in ten is wrong.
TEN_TIMES = pytest.mark.parametrize("turn", [0, *(pytest.param(turn, marks=pytest.mark.slow) for turn in range(1, 10))])

FAULTS = {
    "503": lambda: every(3, (503, "SlowDown")),
    "500": lambda: every(3, (500, "InternalError")),
    "429": lambda: every(4, (429, "TooManyRequests")),
    "resets": lambda: every(3, "reset"),
    "answers that are cut short": lambda: every(3, "cut"),
}


@TEN_TIMES
@pytest.mark.parametrize("fault", FAULTS)
def test_an_epoch_goes_on_through(proxy, seaweedfs, tmp_path, fault, turn):
    root, address = _data(seaweedfs, tmp_path)
    expected = epochs(root, "none", 0)
    open_store(address)
    proxy.fault = FAULTS[fault]()
    before = ACCOUNT.now()
    assert epochs(address, "none", turn % 3) == expected
    assert ACCOUNT.retries > before["retries"]
    if fault in ("503", "429"):
        assert ACCOUNT.slow_downs > before["slow_downs"]


@TEN_TIMES
def test_a_listing_goes_on_where_it_was_interrupted(turn, proxy, seaweedfs, tmp_path, monkeypatch):
    root = write_files(tmp_path / "data", {f"{c}/{n:03}.jpg": picture(n) for c in "ab" for n in range(40)})
    address = upload(seaweedfs, root, tmp_path.name)
    monkeypatch.setattr(client_module, "_PAGE", 10)
    counter = itertools.count(1)
    proxy.fault = lambda _, path: "reset" if "list-type" in path and not next(counter) % 3 else None
    with open_store(root) as files, open_store(address) as objects:
        assert objects.manifest.fingerprint == files.manifest.fingerprint


@TEN_TIMES
def test_an_object_that_is_overwritten_in_mid_epoch_is_an_error_and_never_other_bytes(turn, proxy, seaweedfs, tmp_path):
    root, address = _data(seaweedfs, tmp_path, 20)
    with open_store(root) as files:
        names, ids = files.manifest.ids.to_pylist(), range(len(files))
        expected = {name: files.read(number) for name, number in zip(names, ids, strict=True)}
    store = open_store(address)
    changed = names[13]
    seaweedfs.put({f"{tmp_path.name}/{changed}": encode(scene(60, 50, seed=77), "jpeg 4:2:0")})
    for number, name in enumerate(names):
        if name == changed:
            with pytest.raises(StoreError, match="has changed since it was listed"):
                store.read(number)
        else:
            assert store.read(number) == expected[name]
    loader = sophon.DataLoader(address, RECIPE, batch_size=4, num_workers=0, policy="none")
    with loader, pytest.raises(Error, match="has changed since it was listed"):
        list(loader)


@TEN_TIMES
def test_expired_credentials_are_looked_up_anew(turn, proxy, seaweedfs, tmp_path, monkeypatch):
    from sophon.bench.rig.object_server import KEY, SECRET

    root, address = _data(seaweedfs, tmp_path)
    expected = epochs(root, "none", 0)
    file = tmp_path / "credentials"
    file.write_text(f"[default]\naws_access_key_id = old-{KEY}\naws_secret_access_key = {SECRET}\n")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(file))
    proxy.expired.add(f"old-{KEY}")
    writer = threading.Timer(
        0.5, lambda: file.write_text(f"[default]\naws_access_key_id = {KEY}\naws_secret_access_key = {SECRET}\n")
    )
    writer.start()
    assert epochs(address, "none", 0) == expected
    writer.join()
    used = {
        headers.get("authorization", headers.get("Authorization", "")).split("/")[0] for _, _, headers in proxy.requests
    }
    assert len(used) == 2


def test_wrong_credentials_are_an_error_without_the_secret(proxy, seaweedfs, tmp_path, monkeypatch):
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "hunter2-hunter2")
    monkeypatch.setattr(client_module, "_RENEW_S", 0.05)
    with pytest.raises(StoreError, match="does not accept the credentials") as caught:
        open_store("s3://bucket/anything")
    assert "hunter2" not in repr(caught.value)
    assert caught.value.__cause__ is not None
    assert "hunter2" not in repr(caught.value.__cause__)


def test_an_address_where_nobody_answers_is_an_error_soon(use, monkeypatch, tmp_path):
    pytest.importorskip("obstore")
    monkeypatch.setattr(client_module, "FIRST_PATIENCE_S", 0.2)
    for name, value in environment_of(f"http://127.0.0.1:{free_ports(1)[0]}").items():
        monkeypatch.setenv(name, value)
    with pytest.raises(StoreError, match=r"cannot access s3://bucket/x: .*cannot be reached"):
        open_store("s3://bucket/x")


@TEN_TIMES
def test_a_straggler_is_asked_for_a_second_time(turn, proxy, seaweedfs, tmp_path):
    root = write_files(tmp_path / "data", {f"{n:04}.jpg": picture(n) for n in range(40)})
    store = open_store(upload(seaweedfs, root, tmp_path.name))
    for seconds in [0.002] * 120 + [0.5] * 8:  # what earlier requests took
        store.client.hedge.learn(seconds)
    assert store.client.hedge.late_s is not None
    held = []

    def fault(_, path):
        if path.endswith("0007.jpg") and not held:
            held.append(path)
            return "held"
        return None

    proxy.fault = fault
    hedges = ACCOUNT.hedges
    assert store.read(7) == picture(7)  # the first request has not been answered yet
    proxy.release.set()
    assert ACCOUNT.hedges == hedges + 1
    assert proxy.requests[-1][1] == proxy.requests[-2][1] == held[0]


def test_requests_are_bounded_and_fewer_after_a_503():
    pace = Pace(most=8, most_bytes=100)
    for _ in range(4):
        pace.enter(10)
    assert not pace._may(70)
    assert pace._may(60)
    pace.slow_down()
    assert pace.limit == 2.5
    pace.slow_down()
    assert pace.limit == 2.5  # the same trouble
    for _ in range(4):
        pace.leave(10, True)
    assert 2.5 < pace.limit < 5
    assert pace.under_way == 0
    assert pace.under_way_bytes == 0


def _own_server(tmp_path):
    if program_of("seaweedfs") is None:
        pytest.skip("seaweedfs is not installed here")
    (tmp_path / "server").mkdir()
    server = ObjectServer("seaweedfs", tmp_path / "server", free_ports(8))
    server.start()
    return server


@pytest.mark.slow
@pytest.mark.parametrize("turn", range(10))
def test_an_epoch_goes_on_after_the_server_was_killed_and_restarted(turn, use, tmp_path):
    server = use(_own_server(tmp_path))
    try:
        root, address = _data(server, tmp_path, 60)
        expected = epochs(root, "none", 0)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            loader = sophon.DataLoader(
                address, RECIPE, batch_size=5, seed=3, shuffle=True, num_workers=0, policy="none"
            )
        with loader:
            for number in range(2):
                batches = iter(loader)
                first = [next(batches)]
                server.stop()
                starter = threading.Thread(target=server.start)
                starter.start()
                assert digest([*first, *batches]) == expected[number]
                starter.join()
    finally:
        server.stop()


@pytest.mark.slow
@pytest.mark.parametrize("turn", range(10))
def test_an_epoch_goes_on_through_ten_seconds_of_503(turn, proxy, seaweedfs, tmp_path):
    root, address = _data(seaweedfs, tmp_path, 30)
    expected = epochs(root, "none", 0)
    open_store(address)
    until_s = time.monotonic() + 10
    proxy.fault = lambda *_: (503, "SlowDown") if time.monotonic() < until_s else None
    assert epochs(address, "none", 0) == expected
    assert time.monotonic() > until_s
