"""Several nodes of which some die, and a path to fall back on."""

import itertools
import os
import shutil
import signal
import time
from pathlib import Path

import pytest
import torch

import sophon
from sophon.bench.proxy import Proxy
from sophon.errors import ConfigError, UnavailableError
from sophon.link import flight as flight_transport
from sophon.loader.machine import machine
from sophon.loader.sources import census
from sophon.loader.sources.census import AbsentWarning
from sophon.loader.sources.sources import FallbackWarning
from tests.faults.struck import BATCH, COUNT, MOMENTS, SEED, SLOWLY, Struck, warnings_allowed
from tests.support.marks import slow
from tests.support.other_release import WHAT
from tests.support.servers import RECIPE, digest, make_images, serve
from tests.support.waiting import HANG_S, wait_until

REPOSITORY = str(Path(__file__).parents[2])


@pytest.fixture(scope="module")
def servers(images):
    with serve(images, options=SLOWLY) as one, serve(images, options=SLOWLY) as two:
        yield one, two


@pytest.fixture
def pair(servers):
    """Two nodes that are up, whatever was done to them before."""
    for server in servers:
        if not server.is_running:
            server.start()
    return servers


@pytest.fixture
def one(pair):
    return pair[0]


@pytest.fixture
def impatient(monkeypatch):
    """Silence is noticed soon, so that tests are short."""
    monkeypatch.setattr(machine, "_SILENT_S", 1.0)
    monkeypatch.setattr(flight_transport, "SILENCE_S", 1.5)


def _urls(pair):
    return [server.url for server in pair]


# --- two nodes --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("which", [0, *slow(1)])
def test_one_of_two_dies(pair, expected, moment, which, monkeypatch):
    monkeypatch.setattr(census, "_LATE_S", 0.5)  # so that tests are short
    with warnings_allowed():  # of one that is gone before anybody knows what it holds
        struck = Struck(_urls(pair), pair[which].kill, moment, policy="2:webp")
    assert struck.digest() == expected


def test_both_share_the_work(pair, expected):
    struck = Struck(_urls(pair), lambda: None, "opening")
    assert struck.digest() == expected
    for server in pair:
        alone = sophon.RemoteDataset(server.url, RECIPE)
        assert len(alone) == COUNT
    # An epoch over one limited link alone takes twice as long; here it is enough that both were asked.
    assert all(source._opened is not None for source in struck.loader.dataset.sources)


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("silence", ["stopped", *slow("unreachable")])
def test_one_of_two_falls_silent_for_good(pair, expected, silence):
    with Proxy(pair[0].port) as proxy:
        urls = [pair[0].url.replace(str(pair[0].port), str(proxy.port)), pair[1].url]

        def fault():
            if silence == "stopped":
                os.kill(pair[0].pid, signal.SIGSTOP)
            else:
                proxy.pause()

        try:
            struck = Struck(urls, fault, "mid-stream")
            start_s = time.monotonic()
            assert struck.digest() == expected
            assert time.monotonic() - start_s < HANG_S, "not as long as the deadline"
        finally:
            os.kill(pair[0].pid, signal.SIGCONT)


@pytest.mark.slow
def test_they_die_in_turns(pair, expected):
    def fault():
        for server in pair:
            server.kill()
            time.sleep(0.3)
            server.start()

    assert Struck(_urls(pair), fault, "first batch", policy="2:webp").digest() == expected


def test_both_die(pair):
    def fault():
        for server in pair:
            server.kill()

    struck = Struck(_urls(pair), fault, "mid-stream", deadline_s=3)
    start_s = time.monotonic()
    with pytest.raises(
        UnavailableError, match=rf"{pair[0].url}, {pair[1].url}: no answer for 3 s, after \d+ (try|tries)"
    ):
        struck.digest()
    assert time.monotonic() - start_s < HANG_S
    struck.join()


@pytest.mark.slow
def test_the_other_one_holds_other_files_under_the_same_names(tmp_path, images):
    others = make_images(tmp_path / "train", COUNT)
    changed = sorted(others.rglob("*.*"))[7]
    changed.write_bytes(changed.read_bytes() + b"\0")
    with serve(images) as one, serve(others) as two:
        name = f"{changed.parent.name}/{changed.name}"
        with pytest.raises(ConfigError, match=rf"{name}. is not the same everywhere \(bytes: .*{one.url}.*{two.url}"):
            sophon.DataLoader([one.url, two.url], RECIPE, batch_size=BATCH, num_workers=1)


@pytest.mark.slow
def test_one_that_was_away_when_the_data_set_was_opened_holds_other_files(tmp_path, images, monkeypatch):
    monkeypatch.setattr(census, "_LATE_S", 0.5)
    others = make_images(tmp_path / "train", COUNT - 1)
    with serve(images) as one, serve(others) as two:
        two.kill()
        with pytest.warns(AbsentWarning, match=f"no answer from {two.url}: assumed to hold a copy"):
            loader = sophon.DataLoader(
                [one.url, two.url], RECIPE, batch_size=BATCH, num_workers=sophon.Workers(1, buffer_bytes=1)
            )
        two.start()
        with pytest.raises(ConfigError, match=f"{two.url} holds a different data set"):
            list(itertools.chain.from_iterable(itertools.repeat(loader)))


@pytest.mark.slow
def test_the_other_one_has_another_version_of_an_op(images, expected, monkeypatch):
    monkeypatch.chdir(REPOSITORY)
    monkeypatch.setenv(WHAT, "op")
    with serve(images) as one, serve(images, options=("--import", "tests.support.other_release")) as two:
        struck = Struck([one.url, two.url], lambda: None, "opening", policy="2:webp")
        with warnings_allowed():
            assert struck.digest() == expected
        assert struck.loader.stats.cuts["0:raw"] > 0
        assert struck.loader.stats.cuts["2:webp"] > 0


@pytest.mark.parametrize("settings", [{"num_workers": 0}, {"num_workers": 1, "kind": "processes"}])
def test_one_of_two_dies_without_worker_threads(pair, expected, settings):
    struck = Struck(_urls(pair), pair[0].kill, "mid-stream", policy="2:webp", **settings)
    assert struck.digest() == expected


def test_several_addresses_that_make_no_sense(images):
    for data, words in [
        ([], "a list of addresses"),
        (["grpc://localhost:1/data", str(images)], r"pass it as Faults\(fallback"),
        (["grpc://localhost:1/data"] * 2, "given twice"),
        ([1], "a list of addresses"),
    ]:
        with pytest.raises(ConfigError, match=words):
            sophon.RemoteDataset(data, RECIPE)


@pytest.mark.slow
def test_nodes_may_take_requests_of_different_size(images, expected):
    with serve(images) as one, serve(images, options=("--max-request-samples", "7")) as two:
        for urls in ([one.url, two.url], [two.url, one.url]):
            assert Struck(urls, lambda: None, "opening", max_requests=4).digest() == expected


@pytest.mark.slow
def test_an_error_says_which_node_it_comes_from(images):
    with serve(images) as one, serve(images) as two:
        loader = sophon.DataLoader(
            [one.url, two.url], RECIPE, batch_size=BATCH, num_workers=sophon.Workers(1, buffer_bytes=1)
        )
        batches = iter(loader)
        next(batches)
        two.kill()
        two._command[two._command.index("--name") + 1] = "another"
        two.start()
        with pytest.raises(ConfigError, match=f"{two.url}: no data set 'data' here"):
            list(batches)


# --- late answers -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("hedge", [True, *slow(0.3)])
def test_late_samples_are_asked_for_a_second_time(pair, expected, hedge):
    one, two = pair
    with Proxy(one.port) as proxy:
        urls = [one.url.replace(str(one.port), str(proxy.port)), two.url]
        struck = Struck(urls, proxy.pause, "between epochs", hedge=hedge)
        start_s = time.monotonic()
        assert struck.digest() == expected
        assert time.monotonic() - start_s < HANG_S, "not as long as the deadline"
        assert struck.loader.stats.hedges > 0


def test_to_ask_twice_needs_threads(images):
    with pytest.raises(ConfigError, match="hedge: second requests need fetching threads"):
        sophon.DataLoader(images, RECIPE, num_workers=0, faults=sophon.Faults(hedge=True))
    for wrong in (-1, 0, 0.0, "yes", float("nan")):
        with pytest.raises(ConfigError, match="hedge: expected True, False or seconds"):
            sophon.DataLoader(images, RECIPE, num_workers=1, faults=sophon.Faults(hedge=wrong))


# --- a path to fall back on -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("workers", [2, *slow(0)])
def test_the_node_dies_for_good_and_the_files_are_read_directly(one, images, expected, moment, workers):
    with warnings_allowed():
        struck = Struck(one.url, one.kill, moment, policy="2:webp", num_workers=workers, fallback=images)
        assert struck.digest() == expected
        assert struck.loader.stats.fallback > 0


def test_a_fallback_is_worth_a_warning(one, images):
    struck = Struck(one.url, one.kill, "mid-stream", fallback=images)
    with pytest.warns(FallbackWarning, match=f"no answer from {one.url}; samples are read from {images}"):
        struck.digest()


def test_a_node_that_comes_back_is_asked_again(one, images, expected):
    with warnings_allowed():
        struck = Struck(one.url, one.kill, "first batch", fallback=images)
        assert struck.digest() == expected
        assert struck.loader.stats.fallback > 0
        one.start()
        wait_until(lambda: _falls_back(struck.loader) == 0)  # it is tried now and then
        assert _falls_back(struck.loader) == 0


def _falls_back(loader):
    """Return how many samples of one more epoch are read from the fallback."""
    before = loader.stats.fallback
    list(loader)
    return loader.stats.fallback - before


@pytest.mark.usefixtures("impatient")
def test_a_silent_node_with_a_fallback(one, images, expected):
    with warnings_allowed():
        struck = Struck(one.url, lambda: os.kill(one.pid, signal.SIGSTOP), "mid-stream", fallback=images)
        try:
            start_s = time.monotonic()
            assert struck.digest() == expected
            assert time.monotonic() - start_s < HANG_S, "not as long as the deadline"
        finally:
            os.kill(one.pid, signal.SIGCONT)


@pytest.mark.parametrize("workers", ["threads", "processes"])
@pytest.mark.matrix(every=2)
def test_no_node_at_the_start(images, expected, workers):
    url = "grpc://127.0.0.1:9/data"
    with pytest.warns(FallbackWarning, match="nothing is offloaded in this run"):
        loader = sophon.DataLoader(
            url,
            RECIPE,
            batch_size=BATCH,
            shuffle=True,
            num_workers=sophon.Workers(1, kind=workers),
            seed=SEED,
            policy="2:webp",
            faults=sophon.Faults(fallback=images),
        )
    with warnings_allowed():
        assert digest(batch for _ in range(2) for batch in loader) == expected


def test_the_fallback_is_gone_too_and_the_node_comes_back(tmp_path, one, images, expected):
    copy = tmp_path / "copy"
    shutil.copytree(images, copy)
    with warnings_allowed():

        def fault():
            shutil.rmtree(copy)
            one.kill()
            time.sleep(1)
            one.start()

        struck = Struck(one.url, fault, "first batch", fallback=copy)
        assert struck.digest() == expected
        assert len(struck.loader.bad_samples) == 0


def test_a_file_that_is_missing_in_the_fallback_is_one_bad_sample(tmp_path, one, images):
    copy = tmp_path / "copy"
    shutil.copytree(images, copy)
    with warnings_allowed():
        loader = sophon.DataLoader(
            one.url, RECIPE, batch_size=BATCH, num_workers=1, on_error="skip", faults=sophon.Faults(fallback=copy)
        )
        one.kill()
        next(copy.rglob("*.jpg")).unlink()
        assert sum(len(labels) for _, labels in loader) == COUNT - 1
    assert len(loader.bad_samples) == 1


def test_single_samples_warn_of_the_fallback_too(one, images):
    dataset = sophon.RemoteDataset(one.url, RECIPE, faults=sophon.Faults(fallback=images))
    one.kill()
    with pytest.warns(FallbackWarning, match="samples are read from"):
        assert len(dataset[0]) == 2


def test_a_fallback_that_makes_no_sense(tmp_path, one, images):
    others = make_images(tmp_path / "train", COUNT - 1)
    with pytest.raises(ConfigError, match=r"fallback .* holds a different data set"):
        sophon.DataLoader(one.url, RECIPE, faults=sophon.Faults(fallback=others))
    with pytest.raises(ConfigError, match=r"there is nothing at .*nowhere"):
        sophon.DataLoader(one.url, RECIPE, faults=sophon.Faults(fallback=tmp_path / "nowhere"))
    with pytest.raises(ConfigError, match="several nodes as a list"):
        sophon.DataLoader(one.url, RECIPE, faults=sophon.Faults(fallback=one.url))
    dataset = sophon.RemoteDataset(one.url, RECIPE)
    with pytest.raises(ConfigError, match="has its own faults; set them there"):
        sophon.DataLoader(dataset, faults=sophon.Faults(fallback=images))
    with pytest.raises(ConfigError, match="already read from a path"):
        sophon.DataLoader(images, RECIPE, faults=sophon.Faults(fallback=images))


def test_a_cached_prefix_is_filled_from_the_fallback_too(tmp_path, one, images):
    plain = sophon.DataLoader(images, RECIPE, batch_size=BATCH, seed=SEED)
    expected = [batch[0] for batch in plain]
    with warnings_allowed():
        loader = sophon.DataLoader(
            one.url,
            RECIPE,
            batch_size=BATCH,
            num_workers=1,
            seed=SEED,
            cache=sophon.Cache(True, tmp_path),
            faults=sophon.Faults(fallback=images),
        )
        batches = iter(loader)
        first = next(batches)[0]
        one.kill()
        got = [first, *(batch[0] for batch in batches)]
    assert all(torch.equal(one, two) for one, two in zip(got, expected, strict=True))
