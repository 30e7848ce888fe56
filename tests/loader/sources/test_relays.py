"""Relays between nodes and a trainer: real processes, real files, real faults."""

import os
import signal

import numpy as np
import pytest

import sophon
from sophon.codec.cut import Cut
from sophon.codec.route import Route, legal_routes
from sophon.errors import AccessError, TransportError
from sophon.link.schemes import open_address
from sophon.loader.sources.assignment import Assignment
from tests.support.epochs import epochs_digest
from tests.support.relays import LocalRelay
from tests.support.servers import RECIPE, digest, make_images, serve
from tests.support.settings import grouped

COUNT, BATCH, SEED = 40, 4, 5
SETTINGS = {"batch_size": BATCH, "shuffle": True, "seed": SEED, "num_workers": 2, "profile": False}
QUICK = ("--isolation", "thread")  # a child takes long to start on a busy machine
pytestmark = pytest.mark.filterwarnings("ignore::sophon.loader.sources.away.AwayWarning")
FIXED = SETTINGS | {"policy": "none"}  # nobody plans: the test says which way samples go


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    return make_images(tmp_path_factory.mktemp("relays") / "train", COUNT)


@pytest.fixture(scope="module")
def expected(images):
    """Two epochs, computed the plain way: no loader, no server, one sample after the other."""
    return epochs_digest(images, SEED, BATCH)


@pytest.fixture(scope="module")
def node(images):
    with serve(images, options=QUICK) as server:
        yield server


@pytest.fixture(scope="module")
def relay(node):
    with LocalRelay(node.url) as server:
        yield server


def two_epochs(loader):
    return digest(batch for _ in range(2) for batch in loader)


def through(loader, routes):
    """Have a loader's samples take some routes in turn, one of them straight from the node."""
    firsts = tuple(None if route.is_direct else route.cuts[0] for route in routes)
    numbers = np.arange(COUNT, dtype=np.uint8) % len(routes)
    loader.dataset.samples.assignment = Assignment(tuple(route.arrival for route in routes), numbers, firsts)
    return loader


def some_routes(count, seed=0):
    """Return routes of every first cut, and many second ones."""
    routes = legal_routes(RECIPE, ("raw", "zstd", "webp", "window"))
    rng = np.random.default_rng(seed)
    firsts = list(dict.fromkeys(route.cuts[0] for route in routes))
    picked = [rng.choice([r for r in routes if r.cuts[0] == first]) for first in firsts]
    return [*picked, *rng.choice(routes, max(0, count - len(picked)))][:255]


def test_a_relay_says_what_it_is_and_what_its_node_is(node, relay):
    told, behind = (sophon.RemoteDataset(url, RECIPE).opened for url in (relay.url, node.url))
    assert told.is_relay
    assert not behind.is_relay
    assert (told.fingerprint, told.samples, told.classes) == (behind.fingerprint, behind.samples, behind.classes)
    assert told.behind.digests == behind.digests


@pytest.mark.parametrize("workers", [0, 2])
def test_the_batches_are_the_same_through_relays_at_many_routes(node, relay, expected, workers):
    loader = sophon.DataLoader([node.url, relay.url], RECIPE, **grouped(**FIXED | {"num_workers": workers}))
    assert two_epochs(through(loader, some_routes(24))) == expected
    assert loader.stats.relayed == 2 * COUNT
    assert loader.stats.relay_cpu_s > 0
    assert loader.stats.sources[relay.url] == 2 * COUNT


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
def test_the_batches_are_the_same_through_relays_at_every_legal_route(node, relay, expected, workers):
    routes = legal_routes(RECIPE)
    for start in range(0, len(routes), COUNT):
        loader = sophon.DataLoader([node.url, relay.url], RECIPE, **grouped(**FIXED | {"num_workers": workers}))
        assert two_epochs(through(loader, routes[start : start + COUNT])) == expected


def test_a_relay_alone_is_a_node_to_the_trainer(relay, expected):
    loader = sophon.DataLoader(relay.url, RECIPE, **grouped(**SETTINGS | {"policy": "2:webp"}))
    assert two_epochs(loader) == expected
    assert loader.stats.cuts["2:webp"] == 2 * COUNT


def test_samples_by_index_come_through_relays_too(node, relay, images):
    plain = sophon.RemoteDataset(images, RECIPE, seed=SEED)
    dataset = sophon.RemoteDataset([node.url, relay.url], RECIPE, seed=SEED)
    dataset.samples.assignment = Assignment((Cut(2, "webp"),), None, (Cut(0),))
    for sample in range(6):
        assert np.array_equal(dataset[sample][0], plain[sample][0])


# --- they come and go -------------------------------------------------------------------------------------------------


def test_a_relay_that_is_killed_in_mid_epoch_changes_nothing(node, expected):
    with LocalRelay(node.url, options=QUICK) as first, LocalRelay(node.url, options=QUICK) as second:
        loader = sophon.DataLoader([node.url, first.url, second.url], RECIPE, **grouped(**FIXED))
        through(loader, [Route.parse("0:raw/2:raw"), Route.parse("0:raw/2:webp"), Route.parse("0:raw/5:raw")])

        def batches():
            for number, batch in enumerate(loader):
                if number == 1:
                    os.kill(first.pid, signal.SIGKILL)
                yield batch
            os.kill(second.pid, signal.SIGKILL)
            yield from loader

        assert digest(batches()) == expected
        assert loader.stats.samples == 2 * COUNT
        assert loader.stats.sources[node.url] > 0  # which stands in for both


def test_relays_behind_one_address_pass_samples_on_and_may_go(node, expected, tmp_path):
    listed = tmp_path / "nodes"
    with LocalRelay(node.url, options=QUICK) as relay:
        listed.write_text(f"{node.url}\n{relay.url}\n")
        loader = sophon.DataLoader(f"sophon+file://{listed}", RECIPE, **grouped(**FIXED))
        through(loader, [Route.parse("0:raw/2:raw"), Route.parse("0:raw/5:raw")])
        batches = iter(loader)
        first = [next(batches) for _ in range(3)]
        assert len(loader.dataset.samples.sources.relays) == 1
        listed.write_text(f"{node.url}\n")
        os.kill(relay.pid, signal.SIGKILL)
        first += batches
    assert digest([*first, *loader]) == expected
    assert loader.stats.relayed > 0


def test_a_relay_whose_node_dies_says_so_and_is_not_blamed(images):
    with serve(images, options=QUICK) as node, LocalRelay(node.url, options=QUICK) as relay:
        loader = sophon.DataLoader(relay.url, RECIPE, **grouped(**SETTINGS | {"deadline_s": 15.0}))
        node.kill()
        with pytest.raises(TransportError, match=r"this relay is working, but its node is not.*127\.0\.0\.1"):
            list(loader)


def test_a_relay_asks_another_copy_when_its_node_dies(images, expected):
    with (
        serve(images, options=QUICK) as node,
        serve(images, options=QUICK) as copy,
        LocalRelay(node.url, copy.url, options=QUICK) as relay,
    ):
        loader = sophon.DataLoader(relay.url, RECIPE, **grouped(**SETTINGS | {"policy": "2:raw"}))
        found = [digest(loader)]
        node.kill()
        assert digest(batch for batch in loader) != found[0]  # another epoch
        assert two_epochs(sophon.DataLoader(relay.url, RECIPE, **grouped(**SETTINGS))) == expected


def test_a_relay_is_not_put_before_a_relay(relay):
    with pytest.raises(TransportError, match="is a relay itself"):
        LocalRelay(relay.url).start()


# --- who may read -----------------------------------------------------------------------------------------------------

TOKEN, OTHER = "right-" + "a" * 20, "wrong-" + "b" * 20


def test_a_relay_shows_the_trainers_right_and_has_none_itself(images, tmp_path, monkeypatch):
    options = ("--token-file", str(tmp_path / "tokens"), *QUICK)
    (tmp_path / "tokens").write_text(f"{TOKEN} data\n")
    with serve(images, options=options) as node:
        monkeypatch.setenv("SOPHON_TOKEN", TOKEN)  # of whoever starts the relay: not for those who ask it
        relay = LocalRelay(node.url, options=QUICK)
        with relay:
            monkeypatch.delenv("SOPHON_TOKEN")
            with pytest.raises(AccessError, match="needs a token"):
                open_address(relay.url).open(RECIPE)
            with pytest.raises(AccessError, match="does not know the token"):
                open_address(relay.url, sophon.Credentials(OTHER)).open(RECIPE)
            opened = open_address(relay.url, sophon.Credentials(TOKEN)).open(RECIPE)
            assert opened.samples == COUNT
            settings = {**SETTINGS, "credentials": sophon.Credentials(TOKEN), "policy": "2:raw"}
            loader = sophon.DataLoader(relay.url, RECIPE, **grouped(**settings))
            assert len(list(loader)) == COUNT // BATCH


def test_a_relay_before_an_open_node_does_not_listen_to_everybody(node):
    with pytest.raises(TransportError, match=r"any(body|one) there could read"):
        LocalRelay(node.url, options=("--host", "0.0.0.0")).start()


def test_a_relay_that_finds_no_node_says_so():
    with pytest.raises(TransportError, match=r"does not answer.*sophon serve"):
        LocalRelay("grpc://127.0.0.1:9/data", options=("--wait", "0.1")).start()


def test_what_is_no_address_is_refused():
    with pytest.raises(TransportError, match="expected the address of a data set on a node"):
        LocalRelay("/some/folder").start()
