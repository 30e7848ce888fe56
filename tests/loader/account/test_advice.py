"""Whatever an epoch was like: no advice to turn on what is on, none that the loader refuses, no two opinions."""

import itertools
import math
import re

import numpy as np
import pytest

import sophon
from sophon.loader.account.advice import Setup, Spent
from sophon.loader.account.explain import explain_epoch
from sophon.loader.account.stats import Stats
from sophon.loader.sources.assignment import OffloadWarning
from sophon.plan.plan import make_plan
from sophon.plan.resources import Resources
from sophon.profile.verdict import Verdict
from tests.support.instances import profile_of
from tests.support.marks import slow
from tests.support.servers import RECIPE, make_images, serve
from tests.support.settings import grouped

WALL_S = 10.0
COUNTS = [
    {"samples": 0},
    {"waited_s": 0.1, "consumer_s": 9.8},
    {"waited_s": 5.0},
    {"waited_s": 5.0, "fallback": 600},
    {"waited_s": 5.0, "finish_cpu_s": 39.0},
    {"waited_s": 5.0, "finish_cpu_s": 19.0},
    {"waited_s": 5.0, "finish_cpu_s": 19.0, "collate_s": 4.8, "cached": 1000},
    {"waited_s": 5.0, "finish_cpu_s": 5.0, "fetch_cpu_s": 34.0, "fetch_s": 35.0},
    {"waited_s": 5.0, "collate_s": 4.8},
    {"waited_s": 5.0, "fetch_s": 39.0},
    {"waited_s": 5.0, "cached": 1000},
    {"waited_s": 5.0, "fetch_s": 19.0, "reading_s": 18.0, "reads": 1000, "read_s": 50.0},
]
VERDICTS = [None, *(Verdict(*rates) for rates in itertools.permutations((100.0, 300.0, 900.0)))]
VERDICTS.append(Verdict(math.inf, 300.0, 900.0))
VERDICTS.append(Verdict(900.0, 300.0, 900.0, 100.0))


def _plans():
    """Return no plan, plans of several policies that offload everything, and one that each part holds up."""
    profile = profile_of([[1000, 100]] * 10, [[0, 0.1]] * 10, [[0.2, 0.1]] * 10)
    resources = {
        "link": Resources(100, 100, 100, 1000),
        "storage": Resources(500, 0.5, 100, 1000),
        "trainer": Resources(1e6, 100, 0.1, 1000),
        "consumer": Resources(1e6, 1, 10, 0.1),
    }
    plans = [make_plan(profile, given, policy) for given in resources.values() for policy in ("optimal", "sophon")]
    assert {plan.prediction.bottleneck for plan in plans if plan.policy == "optimal"} == set(resources)
    assert {len(plan.counts()) for plan in plans} >= {1}
    assert {tuple(map(str, plan.counts())) for plan in plans} >= {("0:raw",), ("1:raw",)}
    return [None, *plans]


def _setups():
    """Yield every setup that a loader can have."""
    flags = (False, True)
    for is_remote, kind, workers, collate in itertools.product(flags, ("threads", "processes"), (0, 2, 4, 8), flags):
        if kind == "processes" and workers == 0:
            continue  # the loader's own thread
        known = {"workers": workers, "requests": 2, "kind": kind, "cores": 4, "is_remote": is_remote, "bad": 0}
        known |= {"on_error": "raise", "has_collate": collate}
        autos = [{}] if workers == 0 else [{}, {"is_auto": True}, {"is_auto": True, "finds_requests": True}]
        keeps = flags if kind == "processes" else (False,)
        ways = [{**auto, "is_persistent": persistent} for auto in autos for persistent in keeps]
        chosen = ["policy", "plan", "cache", "nothing"]
        if is_remote:
            chosen.append("planner")
        stores = [""] if is_remote else ["folder", "tar", "parquet"]
        for way, cuts_by, store in itertools.product(ways, chosen, stores):
            yield Setup(**known, **way, cuts_by=cuts_by, store=store)


def _on_already(setup, plan):
    """Return what may not be recommended: it is on, or the loader would refuse it."""
    yield "workers='"  # which kind does not change what is slow
    if setup.workers:
        yield "num_workers="
    if setup.is_auto:
        yield "more workers"
    if setup.finds_requests:
        yield "max_requests"
    if setup.is_persistent or setup.kind == "threads":
        yield "persistent_workers"
    if not setup.has_collate:
        yield "collate_fn"
    if setup.store in ("tar", "parquet"):
        yield "tar shards"
    if setup.cuts_by != "cache":
        yield "cache"
    is_optimal = setup.cuts_by == "planner" and (plan is None or plan.policy == "optimal")
    if is_optimal or setup.cuts_by in ("plan", "cache", "nothing") or not setup.is_remote:
        yield "policy="
        yield "'optimal'"


# What may be said of whom an epoch waits for; each text has one of them.
HELD_UP = {
    "here": ("cores are busy", "workers are busy", "cannot keep up", "more CPU here", "more CPU than all ops"),
    "batches": ("waits for batches to be made",),
    "link": ("wait for payloads",),
    "disk": ("the workers wait for files", "wait for it"),
    "others": ("neither compute nor wait",),
    "loop": ("keeps up",),
    "no workers": ("training loop waits",),
    "node": ("a storage node that answers",),
    "store": ("requests wait for files there",),
    "unknown": ("not a single sample arrived",),
}


@pytest.mark.parametrize("step", [7, *slow(1)])  # with the first every seventh place of the grid is looked at
def test_no_advice_repeats_a_setting_or_contradicts_itself(step):
    plans, seen = _plans(), set()
    for setup, counts in itertools.islice(itertools.product(_setups(), COUNTS), 0, None, step):
        spent = Spent(1, WALL_S, Stats(**{"samples": 1000, **counts}), 10, True)
        for plan in plans if setup.cuts_by == "planner" else [None]:
            for verdict in VERDICTS if setup.cuts_by == "planner" else [None]:
                text = explain_epoch(spent, setup, verdict, plan)
                (advice,) = re.findall("^What would help: (.*)$", text, re.MULTILINE)
                for word in _on_already(setup, plan):
                    assert word not in advice, (setup, plan, advice)
                held_up = [who for who, words in HELD_UP.items() if any(word in advice for word in words)]
                assert len(held_up) == 1, (setup, held_up, advice)
                assert "-bound" not in text
                assert "decides" not in text
                _check_comparison(text, verdict, plan)
                seen.add(advice)
    assert len(seen) > 30  # the grid is not one corner of it


def _check_comparison(text, verdict, plan):
    """What is said of a run without offloading says so and gives no advice; what was run needs no such comparison."""
    lines = text.splitlines()
    compared = [line for line in lines if line.startswith("Without offloading, ")]
    assert len(compared) == (verdict is not None)
    for line in compared:
        assert line == lines[-1]
        assert "would reach, in samples: training loop " in line
        assert not re.search("polic|help|worker|busy|wait|faster|more", line), line
        offloads = plan is not None and {str(cut) for cut in plan.counts()} != {"0:raw"}
        assert ("would set the pace" in line) == offloads
        if offloads:
            assert f"; the {verdict.slowest} would set the pace." in line


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    return make_images(tmp_path_factory.mktemp("data") / "train", 23)


@pytest.fixture(scope="module")
def server(images):
    with serve(images) as running:
        yield running


def _advice(loader, epochs=1):
    for _ in range(epochs):
        list(loader)
    return loader.explain().split("What would help: ")[1]


@pytest.mark.parametrize(
    ("settings", "never"),
    [
        ({"num_workers": 1, "profile": False}, ["policy="]),
        ({"num_workers": "auto", "profile": False}, ["policy=", "more workers", "max_requests"]),
        ({"num_workers": 1, "policy": "optimal", "profile": False}, ["policy="]),
        ({"num_workers": 1, "policy": ["1:raw"] * 23}, ["policy="]),
        (
            {"num_workers": 1, "kind": "processes", "persistent_workers": True},
            ["workers='processes'", "persistent_workers"],
        ),
    ],
)
@pytest.mark.parametrize("epochs", [1, 2])
@pytest.mark.matrix(every=3)
def test_a_real_loader_is_not_told_to_do_what_it_does(server, settings, never, epochs):
    text = _advice(sophon.DataLoader(server.url, RECIPE, **grouped(batch_size=4, **settings)), epochs)
    for word in never:
        assert word not in text


def test_a_cache_is_not_told_to_plan(server, tmp_path):
    loader = sophon.DataLoader(server.url, RECIPE, batch_size=4, num_workers=1, cache=sophon.Cache(True, tmp_path))
    assert "policy=" not in _advice(loader)


def test_a_pipeline_that_cannot_be_divided_is_not_told_to_plan(server):
    with pytest.warns(OffloadWarning, match="no op that saves much can run near storage"):
        loader = sophon.DataLoader(server.url, [len], batch_size=4, num_workers=1, policy="optimal")
    assert "policy=" not in _advice(loader)


def test_the_kind_of_store_is_known_where_files_are_read(images):
    assert sophon.RemoteDataset(images, RECIPE).opened.store == "folder"


def test_a_plan_of_whole_files_offloads_nothing():
    plan = make_plan(profile_of([[1000, 100]] * 4, [[0, 0.1]] * 4, [[0, 0]] * 4), Resources(1e6, 1, 1, 1), "none")
    assert not np.any(plan.cut)
    spent = Spent(1, WALL_S, Stats(samples=4, waited_s=5.0), 1, True)
    setup = Setup(2, 2, "threads", 4, True, 0, "raise", cuts_by="planner")
    text = explain_epoch(spent, setup, Verdict(math.inf, 300.0, 900.0), plan)
    assert text.splitlines()[-1] == (
        "Without offloading, each part on its own would reach, in samples: training loop not measured, link 300/s, "
        "trainer's CPU 900/s."
    )


@pytest.mark.parametrize(("waited_s", "begins"), [(1.7, "little: "), (5.0, "a faster link, or more cores")])
def test_a_plan_that_sends_whole_files_because_the_training_step_is_slow_is_described_as_such(waited_s, begins):
    plan = make_plan(profile_of([[1000, 100]] * 4, [[0, 0.1]] * 4, [[0, 0]] * 4), Resources(1e6, 1, 1, 1))
    assert plan.prediction.bottleneck == "consumer"
    spent = Spent(1, WALL_S, Stats(samples=4, waited_s=waited_s), 1, True)
    setup = Setup(2, 2, "threads", 4, True, 0, "raise", cuts_by="planner")
    lines = explain_epoch(spent, setup, None, plan).splitlines()
    (advice,) = (line for line in lines if line.startswith("What would help: "))
    assert advice.startswith(f"What would help: {begins}")
    assert "the plan expects the training step to be slower than the link, so it sends whole files" in advice
    assert (
        "Plan: policy optimal, which predicts 4 s an epoch, set by the training step, once the first batch" in lines[-1]
    )


def test_a_loader_without_a_link_is_not_said_to_have_one():
    setup = Setup(2, 2, "threads", 4, False, 0, "raise", cuts_by="nothing", store="folder")
    spent = Spent(1, WALL_S, Stats(samples=4, waited_s=5.0), 1, True)
    text = explain_epoch(spent, setup, Verdict(100.0, math.inf, 900.0), None)
    assert text.endswith("Each part on its own would reach, in samples: training loop 100/s, trainer's CPU 900/s.")
