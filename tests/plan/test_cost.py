import math

import numpy as np
import pytest
from hypothesis import given, settings

from sophon.errors import ConfigError
from sophon.plan import cost
from sophon.plan.cost import Prediction, Totals, gather, predict, predict_totals
from sophon.plan.resources import Node, Resources
from tests.support.instances import problems, profile_of

PROFILE = profile_of([[100, 40], [200, 50]], [[0, 3], [0, 5]], [[4, 1], [8, 2]])


def totals(samples, payload, storage, trainer):
    return Totals(
        {
            "samples": [samples],
            "payload_bytes": [payload],
            "storage_s": [storage],
            "trainer_s": [trainer],
            "read_bytes": [300],
        }
    )


def arrays(said):
    return Totals({name: np.array(sums, float) for name, sums in said.sums.items()})


def plan(*columns):
    return np.array(columns, np.uint8)


def test_the_four_times_by_hand():
    found = predict(PROFILE, plan(0, 1), Resources(10, 2, 3, consumer_samples_per_s=0.5))
    assert (found.link_bytes, found.storage_cpu_s, found.trainer_cpu_s) == (150, 5, 6)
    assert (found.link_s, found.storage_s, found.trainer_s, found.consumer_s) == (15, 2.5, 2, 4)
    assert (found.epoch_s, found.bottleneck) == (15, "link")


@pytest.mark.parametrize(
    ("resources", "bottleneck", "epoch_s"),
    [
        (Resources(1e9, 1, 1e9), "storage", 8),
        (Resources(1e9, 1e9, 1), "trainer", 3),
        (Resources(1, 1e9, 1e9), "link", 90),
        (Resources(1e9, 1e9, 1e9, 0.01), "consumer", 200),
    ],
)
def test_the_slowest_decides(resources, bottleneck, epoch_s):
    found = predict(PROFILE, plan(1, 1), resources)
    assert (found.bottleneck, found.epoch_s) == (bottleneck, epoch_s)


def test_without_storage_cores_nothing_costs_nothing_and_anything_never_ends():
    assert predict(PROFILE, plan(0, 0), Resources(1, 0, 1)).storage_s == 0
    assert predict(PROFILE, plan(0, 1), Resources(1, 0, 1)).epoch_s == math.inf


@settings(deadline=None)
@given(problems(most=30))
def test_sums_are_those_of_a_loop(problem):
    profile, _ = problem
    rng = np.random.default_rng(len(profile))
    cut = np.array([rng.choice(np.flatnonzero(np.isfinite(row))) for row in profile.payload_bytes], np.uint8)
    found = gather(profile, cut)
    for name, table in profile.measures.items():
        assert found.sums[name].sum() == pytest.approx(sum(float(table[i, c]) for i, c in enumerate(cut)))


def test_blocks_do_not_show(monkeypatch):
    monkeypatch.setattr(cost, "_CHUNK", 1)
    found = gather(PROFILE, plan(0, 1))
    assert {name: sums.tolist() for name, sums in found.sums.items()} == totals(2, 150, 5, 6).sums


@pytest.mark.parametrize(
    "cut", [plan(0), plan(0, 2), np.array([0, 1]), np.zeros((2, 1), np.uint8), np.zeros(0, np.uint8)]
)
def test_a_plan_that_does_not_fit_is_refused(cut):
    with pytest.raises(ConfigError, match="does not fit a profile of 2 samples and 2 cuts"):
        gather(PROFILE, cut)


def test_an_illegal_cut_is_refused():
    gone = [[1, np.inf], [1, 1]]
    with pytest.raises(ConfigError, match="an impossible cut"):
        gather(profile_of(gone, gone, gone), plan(1, 0))


def test_predictions_rank_by_seconds_then_storage_then_bytes():
    slow = predict_totals(arrays(totals(1, 10, 1, 1)), Resources(1, 1, 1))
    frugal = predict_totals(arrays(totals(1, 9, 1, 10)), Resources(1, 1, 1))
    small = predict_totals(arrays(totals(1, 8, 1, 10)), Resources(1, 1, 1))
    busy = predict_totals(arrays(totals(1, 8, 2, 10)), Resources(1, 1, 1))
    fast = predict_totals(arrays(totals(1, 9, 9, 9)), Resources(1, 1, 1))
    assert sorted([busy, slow, frugal, small, fast], key=lambda p: p.rank) == [fast, small, frugal, slow, busy]


def test_json_and_back():
    for resources in (Resources(1, 2, 3, 4), Resources(1, 0, 1)):
        found = predict(PROFILE, plan(0, 1), resources, bound_s=1.5)
        assert Prediction.from_json(found.to_json()) == found
    with pytest.raises(ConfigError, match="expected a prediction with"):
        Prediction.from_json({})


def test_each_node_has_its_own_link_and_only_its_samples_use_it():
    profile = profile_of([[100, 40], [200, 50], [400, 60]], [[0, 3]] * 3, [[4, 1]] * 3, parts=[0, 1, 0])
    nodes = [Node("a", {"link_bytes_per_s": 10}), Node("b", {"link_bytes_per_s": 100})]
    found = predict(profile, plan(0, 0, 1), Resources(storage_cores=2, trainer_cores=3, nodes=nodes))
    assert found.busy_s == {"link of a": 16, "link of b": 2, "storage": 1.5, "trainer": 3}
    assert (found.bottleneck, found.link_s, found.link_bytes) == ("link of a", 16, 360)


def test_sending_takes_storage_cores_too_whatever_is_sent():
    resources = Resources(10, 2, 3, sending_s_per_byte=0.01, sending_s_per_sample=0.5)
    raw = predict(PROFILE, plan(0, 0), resources)
    assert raw.storage_cpu_s == pytest.approx(300 * 0.01 + 2 * 0.5)
    assert raw.storage_s == pytest.approx(raw.storage_cpu_s / 2)
    # A node without cores for ops still sends.
    assert predict(PROFILE, plan(0, 0), resources.having(storage_cores=0)).storage_s == 0


def test_the_store_may_bind_by_reads_or_by_bytes_whatever_the_plan():
    for cut in (plan(0, 0), plan(1, 1)):
        reads = predict(PROFILE, cut, Resources(1e9, 1e9, 1e9, store_reads_per_s=0.1))
        assert (reads.bottleneck, reads.epoch_s) == ("reads", 20)
        size = predict(PROFILE, cut, Resources(1e9, 1e9, 1e9, store_bytes_per_s=3))
        assert (size.bottleneck, size.epoch_s) == ("store", 100)


def test_a_profile_that_knows_what_each_route_reads_is_believed():
    profile = profile_of([[100, 40]] * 2, [[0, 3]] * 2, [[4, 1]] * 2, more={"read_bytes": [[100, 30]] * 2})
    assert predict(profile, plan(0, 1), Resources(1e9, 1e9, 1e9, store_bytes_per_s=1)).epoch_s == 130


def test_what_nobody_knows_never_binds():
    found = predict(PROFILE, plan(0, 0), Resources(10, 2, 3))
    assert set(found.busy_s) == {"link", "storage", "trainer"}
    assert found.consumer_s == 0
