"""Loaders that open a registry's address: real processes, killed, moved, added and restarted in mid-epoch."""

import json
import shutil
import signal
import time
from contextlib import ExitStack

import pytest

import sophon
from sophon.errors import AccessError, ProtocolError, RetryableError, UnavailableError
from sophon.link.registry import RegistryClient
from tests.loader.sources.test_parts import part_of
from tests.support.epochs import epochs_digest
from tests.support.registries import Registry
from tests.support.servers import RECIPE, digest, make_images, serve
from tests.support.waiting import HANG_S, wait_until

COUNT, BATCH, SEED = 40, 4, 5
pytestmark = pytest.mark.filterwarnings("default::sophon.AwayWarning")  # of a machine that is busy
SLOW = ("--limit", "3mbit")  # so that something can happen in the middle of an epoch


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    return make_images(tmp_path_factory.mktemp("registry") / "train", COUNT)


@pytest.fixture(scope="module")
def expected(images):
    return epochs_digest(images, SEED, BATCH)


@pytest.fixture
def registry(tmp_path):
    with Registry(tmp_path, "--state", str(tmp_path / "state.json")) as registry:
        yield registry


def node(folder, registry, *options, **settings):
    return serve(folder, name="train", options=("--registry", registry.url, *options), **settings)


def loader(registry, deadline_s=60.0, **more):
    # A small buffer, so that little was asked for when something happens.
    workers = sophon.Workers(2, buffer_bytes=1 << 20)
    faults = sophon.Faults(deadline_s=deadline_s)
    settings = {"batch_size": BATCH, "shuffle": True, "seed": SEED, "num_workers": workers, "policy": "none"}
    return sophon.DataLoader(f"{registry.url}/train", RECIPE, faults=faults, **(settings | more))


def two_epochs(loader, after=3, strike=lambda: None):
    """Return the digest of two epochs; something happens after some batches of the first."""

    def batches():
        for epoch in range(2):
            for number, batch in enumerate(loader):
                if epoch == 0 and number == after:
                    strike()
                yield batch

    return digest(batches())


def test_parts_replicas_a_killed_node_a_killed_registry_and_a_new_holder_change_no_bit(
    images, expected, registry, tmp_path
):
    with ExitStack() as stack:
        first = stack.enter_context(node(images, registry, "--part", "1/2", *SLOW))
        second = stack.enter_context(node(images, registry, "--part", "2/2", *SLOW))
        registry.wait_for(2)
        opened = loader(registry)

        def strike():
            registry.end(signal.SIGKILL)
            registry.start()
            second.kill()  # the only holder of its part; another one takes it over at another address
            stack.enter_context(node(images, registry, "--part", "2/2"))

        assert two_epochs(opened, strike=strike) == expected
        assert opened.stats.samples == 2 * COUNT
        assert len(opened.stats.sources) == 3
        assert first.is_running


@pytest.mark.slow
def test_a_part_that_moves_to_other_nodes_in_mid_epoch_changes_no_bit(images, expected, registry, tmp_path):
    halves = [part_of(images, tmp_path / str(n), lambda i, n=n: i % 2 == n) for n in range(2)]
    with ExitStack() as stack:
        nodes = [stack.enter_context(node(half, registry, *SLOW)) for half in halves]
        registry.wait_for(2)
        opened = loader(registry)

        def strike():
            for path in sorted((halves[0] / "class_0").iterdir())[::2]:
                shutil.move(path, halves[1] / "class_0" / path.name)
            for one in nodes:  # both hold other samples now than before, under the same addresses
                one.stop()
                one.start()

        assert two_epochs(opened, strike=strike) == expected


@pytest.mark.slow
def test_a_part_without_any_holder_is_an_error_within_the_deadline_that_names_it(images, registry):
    with node(images, registry, "--part", "1/2") as first:
        registry.wait_for(1)
        with pytest.raises(UnavailableError, match="part 2/2"):
            loader(registry, deadline_s=1.0)
        with node(images, registry, "--part", "2/2", *SLOW) as second:
            registry.wait_for(2)
            opened = loader(registry, deadline_s=15.0)
            batches = iter(opened)
            next(batches)
            gone = f"grpc://127.0.0.1:{second.port}/train"
            second.kill()
            start_s = time.monotonic()
            with pytest.raises(UnavailableError, match=gone):
                list(batches)
            assert time.monotonic() - start_s < 15 + HANG_S
        assert first.is_running
    with pytest.raises(UnavailableError, match=r"part 1/2, 2/2|no node"):
        loader(registry, deadline_s=1.0)


@pytest.mark.slow
def test_a_rolling_restart_of_all_nodes_in_mid_epoch_changes_no_bit(images, expected, registry):
    with ExitStack() as stack:
        parts = ("1/2", "1/2", "2/2", "2/2")
        nodes = [stack.enter_context(node(images, registry, "--part", part, *SLOW)) for part in parts]
        registry.wait_for(4)
        opened = loader(registry)

        def roll():
            for one in nodes:
                assert one.stop() == 0  # drained, not killed
                one.start()

        assert two_epochs(opened, strike=roll) == expected


def is_told(client):
    try:
        return client.info("train")
    except RetryableError:  # it has just started
        return None


def test_addresses_are_given_to_those_alone_who_may_read(images, tmp_path):
    reader, other, announcer = "reader-token-0123456789", "other-token-0123456789", "node-token-0123456789"
    (tmp_path / "readers").write_text(f"{reader} train\n{other} val\n")
    (tmp_path / "nodes").write_text(f"{announcer} train\n")
    files = ("--token-file", str(tmp_path / "readers"), "--node-token-file", str(tmp_path / "nodes"))

    def client(token):
        return RegistryClient(registry.url, sophon.Credentials(token=token))

    with Registry(tmp_path, *files) as registry:
        record = {"node": "n", "role": "storage", "url": "grpc://127.0.0.1:1", "cores": 1, "datasets": {}}
        record["datasets"] = {"train": {"fingerprint": "f", "samples": 1}}
        for token in (reader, other, "nobody-token-0123456789"):
            with pytest.raises(AccessError):
                client(token).action("announce", json.dumps(record).encode())
        client(announcer).action("announce", json.dumps(record).encode())
        wait_until(lambda: is_told(client(reader)), "readers are told nothing")
        assert len(client(reader).info("train").endpoints) == 1
        for token in (other, announcer, "nobody-token-0123456789"):
            with pytest.raises(AccessError):
                client(token).info("train")
        assert json.loads(client(other).action("status"))["nodes"] == []
        # Neither by its name nor by its address does anybody else take a node's place.
        for mine in ({**record, "datasets": {}}, {**record, "node": "m", "datasets": {}}):
            for action in ("leave", "announce"):
                with pytest.raises(AccessError):
                    client(other).action(action, json.dumps(mine).encode())
        assert len(client(reader).info("train").endpoints[0].locations) == 1
        with pytest.raises(AccessError):
            client(reader).action("forget", b'{"dataset": "train"}')
    with pytest.raises(AssertionError), Registry(tmp_path, *files[:2]):
        pass  # it says that --node-token-file is missing


def test_what_one_token_announces_is_kept_apart_from_what_others_announce(tmp_path):
    reader, honest, other = "reader-token-0123456789", "node-token-0123456789", "other-token-0123456789"
    stranger = "stranger-token-0123456789"
    (tmp_path / "readers").write_text(f"{reader} train\n{other} mine\n{stranger} nosuch\n")
    (tmp_path / "nodes").write_text(f"{honest} train\n{other} mine\n")
    files = ("--token-file", str(tmp_path / "readers"), "--node-token-file", str(tmp_path / "nodes"))
    with Registry(tmp_path, *files) as registry:

        def client(token):
            return RegistryClient(registry.url, sophon.Credentials(token=token), keeps=True)

        def announce(token, *names, role="storage"):
            record = {"node": "n", "url": "grpc://127.0.0.1:7077", "cores": 1, "role": role}
            record["datasets"] = {name: {"fingerprint": "f", "samples": 1} for name in names}
            return json.loads(client(token).action("announce", json.dumps(record).encode()))

        with pytest.raises(AccessError, match="may not announce nodes"):
            announce(reader)  # even though it names no data set
        with pytest.raises(ProtocolError, match="expected the name of a data set"):
            announce(other, "mine~1")
        with pytest.raises(AccessError, match="'train'"):
            announce(other, "train~1", role="relay")
        for token, name in ((other, "mine"), (honest, "train"), (other, "mine")):  # all of them at one address
            assert announce(token, name) == {"known": True}
        wait_until(lambda: is_told(client(reader)), "readers are told nothing")
        assert len(client(reader).info("train").endpoints[0].locations) == 1
        with pytest.raises(RetryableError, match=r"known data sets: none$"):
            client(stranger).info("nosuch")
        told = registry.status(sophon.Credentials(token=other))
        assert [list(node["datasets"]) for node in told["nodes"]] == [["mine"]]
        assert list(told["upstreams"]) == ["mine"]


def test_a_node_that_stops_in_order_says_so(images, registry):
    with node(images, registry) as one:
        registry.wait_for(1)
        one.stop()
        wait_until(lambda: not registry.status()["nodes"], "it is still listed")
        wait_until(lambda: registry.status()["missing"], "its part is not missed")  # not told while the registry is new
