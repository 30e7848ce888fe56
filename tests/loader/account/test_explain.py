"""Where the time of an epoch went, in words and on a bar; and the counts that both are made of."""

import io
import re
import time
from collections import Counter

import pytest
from rich.console import Console

import sophon
from sophon.codec import RAW
from sophon.link.wire import Reply
from sophon.loader.account.explain import Setup, Spent, explain_epoch
from sophon.loader.account.stats import Stats
from tests.support.servers import RECIPE, make_images, serve
from tests.support.settings import grouped


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    return make_images(tmp_path_factory.mktemp("data") / "train", 23)


@pytest.fixture(scope="module")
def server(images):
    with serve(images) as running:
        yield running


def _told(setup=None, **counts):
    stats = Stats(**{"samples": 1000, **counts})
    return explain_epoch(Spent(3, 10.0, stats, 10, True), setup or _setup(), None, None)


def _setup(**change):
    known = {"workers": 2, "requests": 2, "kind": "threads", "cores": 4, "is_remote": False, "bad": 0}
    known["on_error"] = "raise"
    return Setup(**{**known, **change})


@pytest.mark.parametrize(
    ("counts", "change", "advice"),
    [
        ({"waited_s": 0.1, "consumer_s": 9.8}, {}, "nothing in the loader; it keeps up"),
        ({"waited_s": 5.0}, {"workers": 0}, "workers. With num_workers=0.*num_workers=3"),
        ({"waited_s": 5.0, "finish_cpu_s": 19.0}, {}, "more workers: 2 threads cannot keep up, and there are 4 cores"),
        ({"waited_s": 5.0, "finish_cpu_s": 39.0}, {"workers": 4}, "more cores, or a cheaper pipeline"),
        (
            {"waited_s": 5.0, "finish_cpu_s": 39.0},
            {"workers": 8, "is_remote": True},
            "fewer ops here.*moves ops to the storage node",
        ),
        ({"waited_s": 5.0, "collate_s": 4.8}, {"has_collate": True}, "a cheaper collate_fn"),
        (
            {"waited_s": 5.0, "collate_s": 4.8},
            {},
            "smaller samples, or smaller batches: the loop mostly waits for batches",
        ),
        ({"waited_s": 5.0}, {"is_remote": True}, "fewer bytes on the link.*policy='optimal' sends"),
        (
            {"waited_s": 5.0, "fetch_s": 19.0, "reading_s": 18.0, "reads": 1000, "read_s": 50.0},
            {"is_remote": True, "cuts_by": "planner"},
            "a faster store on the node: requests wait for files there",
        ),
        (
            {"waited_s": 5.0},
            {"is_remote": True, "cuts_by": "planner"},
            "another epoch.*measured; the next one has a plan",
        ),
        (
            {"waited_s": 5.0, "finish_cpu_s": 39.0},
            {"workers": 4, "is_remote": True, "cuts_by": "planner"},
            "another epoch: all cores are busy.*measured; the next one has a plan",
        ),
        (
            {"waited_s": 5.0, "finish_cpu_s": 19.0},
            {"is_auto": True},
            "more cores, or a cheaper pipeline: the workers are busy",
        ),
        (
            {"waited_s": 5.0},
            {"is_remote": True, "cuts_by": "plan"},
            "a faster link.*or a plan made for their current state",
        ),
        ({"waited_s": 5.0}, {"is_remote": True, "cuts_by": "nothing"}, "a faster link.*nothing can be offloaded"),
        ({"waited_s": 5.0}, {"is_remote": True, "cuts_by": "cache"}, "a fuller cache"),
        ({"waited_s": 5.0, "cached": 1000}, {"is_remote": True, "cuts_by": "cache"}, "a faster disk for the cache"),
        ({"waited_s": 5.0, "fallback": 600}, {"is_remote": True}, "a storage node that answers"),
        ({"waited_s": 0.0, "samples": 0}, {"is_remote": True}, "unknown: not a single sample arrived"),
        ({"waited_s": 5.0, "fetch_s": 15.0}, {}, "a faster disk, or more requests at once"),
        (
            {"waited_s": 5.0, "fetch_s": 15.0},
            {"is_auto": True, "finds_requests": True},
            "a faster disk: .*more concurrent requests would not pay off",
        ),
        ({"waited_s": 5.0, "fetch_s": 3.0}, {}, "cores: much of the time the workers neither compute nor wait"),
        (
            {"waited_s": 5.0, "fetch_s": 3.0},
            {"kind": "processes"},
            "cores: .*so something else is using the cores, or they are still starting",
        ),
        ({"waited_s": 5.0, "finish_cpu_s": 8.0}, {"workers": 1}, "more workers: 1 thread cannot"),
        ({"waited_s": 5.0, "finish_cpu_s": 5.0, "fetch_cpu_s": 14.0, "fetch_s": 15.0}, {}, "cheaper reading"),
        (
            {"waited_s": 5.0, "finish_cpu_s": 5.0, "fetch_cpu_s": 14.0, "fetch_s": 15.0},
            {"is_remote": True},
            "more cores, or fewer bytes: receiving them.*policy='optimal' sends",
        ),
    ],
)
def test_what_would_help_follows_from_what_was_counted(counts, change, advice):
    text = _told(_setup(**change), **counts)
    assert re.search(f"What would help: {advice}", text), text


def test_no_cut_is_left_out_and_one_is_one():
    cuts = Counter({"0:raw": 900, "2:webp": 50, "0:window": 30, "1:raw": 10, "2:raw": 6, "2:zstd": 4})
    text = _told(_setup(is_remote=True), waited_s=4.0, cuts=cuts, retries=1, hedges=1)
    assert "cuts: 0:raw 900, 2:webp 50, 0:window 30, 1:raw 10, others 10." in text
    assert "1 request failed and was sent again." in text
    assert "1 request was sent a second time" in text


def test_what_is_read_from_the_fallback_did_not_cross_the_link():
    stats = Stats()
    stats.received(Reply(0, RAW, bytes(70)), RAW)
    stats.received(Reply(1, RAW, bytes(500)), RAW, is_fallback=True)
    assert (stats.samples, stats.fallback, stats.link_bytes) == (2, 1, 70)


def test_the_words_name_the_figures():
    text = _told(
        _setup(is_remote=True, bad=2, on_error="skip"),
        waited_s=4.0,
        consumer_s=6.0,
        link_bytes=50_000_000,
        smaller_cuts=7,
        retries=3,
    )
    assert "Epoch 3: 1,000 samples in 10 batches" in text
    assert "worked for 6 s (60%) and waited for batches for 4 s (40%)" in text
    assert "50 MB crossed the link, 5 MB/s" in text
    local = _told(source_bytes=Counter(data=50_000_000), fetch_s=3.0, fetch_cpu_s=1.0)
    assert "Reading 50 MB took 1 s of CPU and 2 s of waiting" in local
    for part in ("For 7 samples storage did less", "3 requests failed", "2 samples are bad so far (on_error='skip')"):
        assert part in text


@pytest.mark.parametrize(
    "settings",
    [{}, {"num_workers": 2}, {"num_workers": 2, "kind": "processes"}, {"num_workers": 1, "policy": "resize"}],
)
def test_an_epoch_that_was_run_is_explained(server, settings):
    loader = sophon.DataLoader(server.url, RECIPE, **grouped(batch_size=4, **{"policy": "none", **settings}))
    assert "No epoch has run yet" in loader.explain()
    for _ in loader:
        time.sleep(0.01)
    text = loader.explain()
    assert "Epoch 0: 23 samples in 6 batches" in text
    assert "What would help: " in text
    stats = loader.stats
    assert stats.samples == 23
    assert stats.finish_cpu_s > 0
    assert stats.link_bytes > 0
    assert stats.consumer_s >= 0.05
    assert sum(stats.cuts.values()) == 23
    next(iter(loader))
    assert "Epoch 1, stopped before its end" in loader.explain()


def test_the_planners_verdict_is_part_of_it(server):
    loader = sophon.DataLoader(server.url, RECIPE, batch_size=4, num_workers=1, policy=sophon.Planning(profile=False))
    for _ in range(2):
        list(loader)
    text = loader.explain()
    assert "Plan: policy optimal" in text
    assert "\nWithout offloading, each part on its own would reach, in samples: training loop " in text
    # Who plans is not told to plan.
    spent = Spent(3, 10.0, Stats(samples=1000, waited_s=9.0), 10, True)
    text = explain_epoch(spent, _setup(is_remote=True), None, loader.plan)
    assert "policy=" not in text
    assert "whole files" in text or "no other choice among the cuts measured would be faster" in text


def test_what_is_read_from_a_bucket_is_counted_once_and_not_called_a_disk():
    text = _told(_setup(store="bucket-folder"), reads=1000, read_bytes=3_000_000, fetch_s=3.0, waited_s=5.0)
    assert "Reading samples took 0 s of CPU and 3 s of waiting for the object store or for a core." in text
    assert text.count(" MB") == 1
    assert "disk" not in text


def test_stats_since_count_one_epoch_only(images):
    loader = sophon.DataLoader(images, RECIPE, batch_size=4)
    list(loader)
    before = loader.stats.to_dict()
    list(loader)
    since = loader.stats.since(before)
    assert since.samples == 23
    assert since.cuts == {"0:raw": 23}
    since.merge(before)
    both, whole = since.to_dict(), loader.stats.to_dict()
    assert both.pop("cuts") == whole.pop("cuts") == {"0:raw": 46}
    assert both.pop("sources") == whole.pop("sources") == {str(images): 46}
    files_bytes = sum(path.stat().st_size for path in images.rglob("*.*"))
    assert both.pop("source_bytes") == whole.pop("source_bytes") == {str(images): 2 * files_bytes}
    assert whole["link_bytes"] == 0
    assert both == pytest.approx(whole)


def test_progress_gives_the_batches_and_shows_a_bar(images):
    shown = io.StringIO()
    console = Console(file=shown, force_terminal=True, width=120)
    loader = sophon.DataLoader(images, RECIPE, batch_size=4, num_workers=1)
    assert len(list(loader.progress(console=console))) == 6
    assert "epoch 0" in shown.getvalue()
    assert "6/6" in shown.getvalue()
    assert "samples/s" in shown.getvalue()


def test_progress_goes_on_where_a_state_was_loaded_and_ends_with_its_iterator(images):
    loader = sophon.DataLoader(images, RECIPE, batch_size=4)
    batches = iter(loader)
    for _ in range(4):
        next(batches)
    other = sophon.DataLoader(images, RECIPE, batch_size=4)
    other.load_state_dict(loader.state_dict())
    shown = io.StringIO()
    batches = other.progress("again", console=Console(file=shown, force_terminal=True, width=120))
    next(batches)
    batches.close()
    assert "again" in shown.getvalue()
    assert "4/6" in shown.getvalue()
    assert "stopped before its end" in other.explain()


def test_reads_at_once_are_told_where_there_were_several():
    assert "A read of the store took 50 ms on average, with 5 reads at a time." in _told(
        reads=1000, read_s=50.0, waited_s=5.0
    )
    assert "A read of the store" not in _told(reads=1000, read_s=0.5, waited_s=5.0)
