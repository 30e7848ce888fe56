"""A data set that is spread over several nodes: real processes, real files."""

import json
import shutil
import time
from contextlib import ExitStack

import numpy as np
import pytest

import sophon
from sophon.errors import ConfigError, UnavailableError
from sophon.link import schemes
from sophon.loader.sources.census import Census
from sophon.loader.sources.local import open_path
from sophon.loader.sources.source import Source
from sophon.loader.sources.sources import FallbackWarning
from tests.support.epochs import epochs_digest, samples_of, wanted_in
from tests.support.marks import slow
from tests.support.servers import RECIPE, digest, make_images, serve
from tests.support.settings import grouped

COUNT, BATCH, SEED = 40, 4, 5
SETTINGS = {"batch_size": BATCH, "shuffle": True, "seed": SEED, "num_workers": 2, "profile": False}


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    return make_images(tmp_path_factory.mktemp("parts") / "train", COUNT)


@pytest.fixture(scope="module")
def expected(images):
    """Two epochs, computed the plain way: no loader, no server, one sample after the other."""
    return epochs_digest(images, SEED, BATCH)


@pytest.fixture(scope="module")
def whole(images):
    return sophon.RemoteDataset(images, RECIPE).opened.fingerprint


def part_of(images, folder, mine):
    """Copy the files for whose number `mine` is true to a folder of the same name."""
    for number, path in enumerate(sorted(images.rglob("*.*"))):
        if mine(number):
            target = folder / "train" / path.relative_to(images)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, target)
    return folder / "train"


def two_epochs(loader):
    return digest(batch for _ in range(2) for batch in loader)


# --- nodes ------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def halves(images, tmp_path_factory):
    """Two folders: class_2 is in the second alone, and each has some of the others."""
    root = tmp_path_factory.mktemp("halves")
    return (
        part_of(images, root / "a", lambda n: n < 25 and n % 2 == 0),
        part_of(images, root / "b", lambda n: n >= 25 or n % 2 == 1),
    )


@pytest.fixture(scope="module")
def servers(halves):
    """A node with the first half, and two with the second."""
    with ExitStack() as stack:
        limit = ("--limit", "5mbit")  # so that something can happen in the middle of an epoch
        yield [stack.enter_context(serve(half, options=limit)) for half in (halves[0], halves[1], halves[1])]


@pytest.fixture
def nodes(servers):
    for server in servers:
        if not server.is_running:
            server.start()
    return servers


def test_two_halves_give_the_batches_of_the_whole(nodes, expected, whole):
    one, two, _ = nodes
    for urls in ([one.url, two.url], [two.url, one.url]):
        loader = sophon.DataLoader(urls, RECIPE, **grouped(policy="2:webp", **SETTINGS))
        assert (len(loader.dataset), loader.dataset.opened.fingerprint) == (COUNT, whole)
        assert loader.dataset.classes == ("class_0", "class_1", "class_2")
        assert loader.dataset.sources.cores_of_nodes == [1.0, 1.0]
        assert two_epochs(loader) == expected
        assert loader.stats.sources == {one.url: 2 * 13, two.url: 2 * 27}
        assert sum(loader.stats.source_bytes.values()) == loader.stats.link_bytes


@pytest.mark.parametrize("settings", [{"num_workers": 0}, *slow({"num_workers": 1, "kind": "processes"})])
def test_without_worker_threads_too(nodes, expected, settings):
    loader = sophon.DataLoader([node.url for node in nodes], RECIPE, **grouped(policy="2:webp", **SETTINGS | settings))
    assert two_epochs(loader) == expected


def test_a_replica_that_is_killed_in_mid_epoch_loses_repeats_and_changes_nothing(nodes, expected):
    loader = sophon.DataLoader(
        [node.url for node in nodes],
        RECIPE,
        **grouped(policy="2:webp", buffer_bytes=1 << 18, **SETTINGS),
    )

    def batches():
        for epoch in range(2):
            for number, batch in enumerate(loader):
                if (epoch, number) == (0, 3):
                    nodes[2].kill()  # SIGKILL
                yield batch

    assert digest(batches()) == expected
    assert loader.stats.retries > 0


@pytest.mark.slow
def test_the_only_holder_of_a_part_that_is_killed_is_named(nodes):
    one, two, _ = nodes
    loader = sophon.DataLoader(
        [one.url, two.url], RECIPE, **grouped(policy="none", faults=sophon.Faults(deadline_s=6.0), **SETTINGS)
    )
    next(iter(loader))
    two.kill()
    with pytest.raises(UnavailableError, match=rf"no answer for 6 s from {two.url}, after \d+ (try|tries)"):
        list(loader)


def test_a_part_with_a_fallback(nodes, images, expected):
    one, two, _ = nodes
    loader = sophon.DataLoader(
        [one.url, two.url], RECIPE, **grouped(policy="2:webp", faults=sophon.Faults(fallback=images), **SETTINGS)
    )
    two.kill()
    with pytest.warns(FallbackWarning):
        assert two_epochs(loader) == expected
    assert loader.stats.sources[one.url] > 20, "whose own node answers is not read from the fallback"


@pytest.mark.slow
def test_a_part_whose_node_is_away_may_not_be_missing(nodes, images):
    _, two, three = nodes
    three.kill()
    with pytest.raises(UnavailableError, match=f"no answer for 6 s from {three.url} .* samples may be missing"):
        sophon.DataLoader(
            [node.url for node in nodes], RECIPE, **grouped(faults=sophon.Faults(deadline_s=6.0), **SETTINGS)
        )
    # The fallback shows that nothing is.
    loader = sophon.DataLoader(
        [node.url for node in nodes],
        RECIPE,
        **grouped(faults=sophon.Faults(deadline_s=6.0, fallback=images), **SETTINGS),
    )
    assert len(loader.dataset) == COUNT
    two.kill()
    with pytest.raises(UnavailableError, match=r"hold 13 samples, which differ from those of the fallback"):
        sophon.DataLoader(
            [node.url for node in nodes],
            RECIPE,
            **grouped(faults=sophon.Faults(deadline_s=6.0, fallback=images), **SETTINGS),
        )


def test_a_plan_a_cache_and_a_map_style_data_set(nodes, images, tmp_path, expected):
    one, two, _ = nodes
    urls = [one.url, two.url]
    planned = sophon.DataLoader(urls, RECIPE, **grouped(policy="optimal", **SETTINGS))
    assert two_epochs(planned) == expected
    assert planned.plan is not None
    assert planned.resources.storage_cores == pytest.approx(2.0, abs=1.9)
    cached = sophon.DataLoader(urls, RECIPE, **grouped(cache=sophon.Cache("1:webp", tmp_path), **SETTINGS))
    assert two_epochs(cached) == expected
    assert cached.stats.cached == COUNT
    dataset = sophon.RemoteDataset(urls, RECIPE, seed=SEED, output=sophon.Output(columns=["id"]))
    plain = sophon.RemoteDataset(images, RECIPE, seed=SEED, output=sophon.Output(columns=["id"]))
    for ours, theirs in zip(dataset.__getitems__([3, 39, 0]), plain.__getitems__([3, 39, 0]), strict=True):
        assert (ours[0] == theirs[0]).all()
        assert ours[1:] == theirs[1:]
    names = [plain[sample][2]["id"] for sample in range(COUNT)]
    assert [dataset.samples.name_of(sample) for sample in range(COUNT)] == names
    sizes = [(images / name).stat().st_size for name in names]
    assert dataset.sources.file_sizes(COUNT).tolist() == sizes


# --- divisions of all kinds: stores in this process stand for nodes ---------------------------------------------------


@pytest.fixture
def disks(monkeypatch):
    monkeypatch.setitem(schemes.SCHEMES, "disk", lambda address, *_: open_path(address.removeprefix("disk:/")))


def _division(images, root, seed, nodes=3):
    """Give every file to one node, and some to several; return the addresses."""
    rng = np.random.default_rng(seed)
    holds = rng.random((nodes, COUNT)) < 0.3
    holds[rng.integers(nodes, size=COUNT), np.arange(COUNT)] = True
    folders = [part_of(images, root / f"{seed}-{node}", lambda n, node=node: holds[node, n]) for node in range(nodes)]
    return [f"disk:/{folder}" for folder in folders]


@pytest.mark.usefixtures("disks")
def test_every_division_is_the_same_data_set(images, tmp_path, expected, whole):
    for seed in range(4):
        loader = sophon.DataLoader(_division(images, tmp_path, seed), RECIPE, **grouped(**SETTINGS))
        assert loader.dataset.opened.fingerprint == whole
        assert two_epochs(loader) == expected


@pytest.mark.usefixtures("disks")
def test_a_part_moves_between_two_epochs_and_in_the_middle_of_one(images, tmp_path, expected):
    batches, state = [], None
    for seed, stop in ((10, 10), (11, 4), (12, None)):  # an epoch, then some batches, then the rest
        loader = sophon.DataLoader(_division(images, tmp_path, seed, 2 + seed % 2), RECIPE, **grouped(**SETTINGS))
        if state is not None:
            loader.load_state_dict(json.loads(state))
        for number, batch in enumerate(loader, 1):
            batches.append(batch)
            if number == stop:
                break
        state = json.dumps(loader.state_dict())
    assert digest(batches) == expected


@pytest.mark.usefixtures("disks")
def test_a_bad_sample_is_named_and_replaced_as_in_one_piece(images, tmp_path):
    spoiled = tmp_path / "spoiled" / "train"
    shutil.copytree(images, spoiled)
    victim = sorted(spoiled.rglob("*.jpg"))[3]
    victim.write_bytes(victim.read_bytes()[:100])
    found = []
    for data in (spoiled, _division(spoiled, tmp_path, 20)):
        loader = sophon.DataLoader(data, RECIPE, **grouped(on_error="substitute", **SETTINGS))
        found.append((two_epochs(loader), [(bad.sample, bad.id) for bad in loader.bad_samples]))
    assert found[0] == found[1]
    assert found[0][1][0][1] == f"{victim.parent.name}/{victim.name}"


@pytest.mark.usefixtures("disks")
def test_relaxed_order_hedging_and_ranks(images, tmp_path):
    urls = _division(images, tmp_path, 30)
    relaxed = sophon.DataLoader(
        urls,
        RECIPE,
        **grouped(order="relaxed", faults=sophon.Faults(hedge=True), output=sophon.Output(columns=["id"]), **SETTINGS),
    )
    assert sorted(samples_of(relaxed, wanted_in(images, SEED, 0))) == list(range(COUNT))
    ranks = [sophon.DataLoader(urls, RECIPE, **grouped(ranks=sophon.Ranks(rank, 2), **SETTINGS)) for rank in range(2)]
    alone = [sophon.DataLoader(images, RECIPE, **grouped(ranks=sophon.Ranks(rank, 2), **SETTINGS)) for rank in range(2)]
    assert [digest(loader) for loader in ranks] == [digest(loader) for loader in alone]


@pytest.mark.usefixtures("disks")
def test_parts_that_do_not_fit_together(images, tmp_path):
    urls = _division(images, tmp_path, 40)
    flat = make_images(tmp_path / "flat", 3, classes=0)
    with pytest.raises(ConfigError, match="only some nodes have labels"):
        sophon.DataLoader([urls[0], f"disk:/{flat}"], RECIPE, **grouped(**SETTINGS))


def test_nodes_whose_files_differ_are_told_when_opened(images, tmp_path, caplog):
    stale = shutil.copytree(images, tmp_path / "stale")
    next(path for path in sorted(stale.rglob("*")) if path.is_file()).unlink()
    nodes = [Source(open_path(folder), RECIPE) for folder in (images, stale)]
    opened = nodes[0].open(RECIPE)
    with pytest.warns(sophon.PartsWarning, match=r"40 together: .* 40, .* 39\. 39 of them are at every"):
        Census(nodes, None, RECIPE, 5.0, time.monotonic() + 5.0).take(opened)
    half = part_of(images, tmp_path / "half", lambda number: number % 2)
    rest = part_of(images, tmp_path / "rest", lambda number: not number % 2)
    nodes = [Source(open_path(folder), RECIPE) for folder in (half, rest)]
    with caplog.at_level("INFO", "sophon"):
        Census(nodes, None, RECIPE, 5.0, time.monotonic() + 5.0).take(nodes[0].open(RECIPE))
    assert "the nodes hold different samples, 40 together" in caplog.text
