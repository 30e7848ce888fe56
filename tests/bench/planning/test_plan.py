import json

import numpy as np
import pytest

from sophon.bench.planning.plan import CUTS, PROBLEMS, RESOURCES, measure, peak_bytes, run, synthetic
from sophon.errors import ConfigError, Error
from sophon.plan.cost import predict
from sophon.plan.policies import DEFAULTS
from sophon.plan.policies.optimal import choose as optimal


def test_the_synthetic_profile_looks_like_openimages():
    profile = synthetic(50_000)
    mean = profile.payload_bytes.mean(axis=0, dtype=np.float64)
    raw, window, _, crop, webp = mean[:5]
    assert raw == pytest.approx(326_000, rel=0.03)  # DESIGN 5: 325,980
    assert crop == 150_528
    assert webp == pytest.approx(70_000, rel=0.05)
    assert window == pytest.approx(154_000, rel=0.15)
    assert (profile.storage_s[:, 0] == 0).all()


def test_the_same_seed_gives_the_same_profile_whatever_its_length():
    assert (synthetic(70_000).trainer_s[:100] == synthetic(200_000).trainer_s[:100]).all()
    assert (synthetic(100, seed=1).payload_bytes != synthetic(100, seed=2).payload_bytes).any()


@pytest.mark.parametrize(("count", "resources"), PROBLEMS.items())
def test_all_resources_bind_in_every_scenario(count, resources):
    profile = synthetic(100_000, parts=max(len(resources.nodes), 1))
    found = predict(profile, optimal(profile, resources, DEFAULTS).cut, resources)
    assert len(found.busy_s) == count
    for label, seconds in found.busy_s.items():
        # The links of three nodes and that of the trainer cannot all be full to the last byte.
        assert seconds == pytest.approx(found.epoch_s, rel=2e-2 if count == 8 else 2e-3), label


@pytest.mark.slow
def test_every_policy_and_size_is_one_row():
    lines = []
    rows = run((1000, 3000), ("optimal", "sophon"), lines.append)
    assert list(rows) == ["optimal", "sophon"]
    for name, measured in rows.items():
        assert [row["samples"] for row in measured] == [1000, 3000]
        for row in measured:
            assert row["seconds"] > 0
            assert row["peak_bytes"] > row["profile_bytes"] == 3 * 4 * len(CUTS) * row["samples"]
            assert (row["bound_s"] is not None) == (name == "optimal")
    assert json.loads(json.dumps(rows)) == rows
    assert len(lines) == 4


@pytest.mark.slow
def test_peak_memory_is_the_childs_own():
    ballast = np.ones(50_000_000)  # 400 MB here must not show there
    assert peak_bytes() > ballast.nbytes
    assert run((1000,), ("none",))["none"][0]["peak_bytes"] < 300e6


def test_no_samples_and_unknown_policies_are_refused():
    with pytest.raises(ConfigError, match="expected one or more samples"):
        run((0,))
    with pytest.raises(ConfigError, match="there is no policy"):
        run((10,), ("best",))


def test_a_child_that_fails_is_reported(monkeypatch):
    from sophon.bench.planning import plan

    monkeypatch.setattr(plan.sys, "executable", "/bin/false")
    with pytest.raises(Error, match=r"ended with code 1.*give fewer --samples"):
        run((10,), ("none",))


@pytest.mark.slow
def test_ten_million_samples_in_time_and_memory():
    """The issue's figures: 8 s and 2.5 GB for `optimal`, 4 s for `sophon`; CPU seconds, since machines are busy."""
    rows = run()
    assert rows["optimal"][-1]["cpu_seconds"] <= 8
    assert rows["optimal"][-1]["peak_bytes"] <= 2.5e9
    assert rows["optimal"][-1]["epoch_s"] <= rows["optimal"][-1]["bound_s"] * 1.001
    assert rows["sophon"][-1]["cpu_seconds"] <= 4
    for measured in rows.values():
        assert measured[-1]["cpu_seconds"] <= 2 * 10 * measured[0]["cpu_seconds"]


@pytest.mark.slow
@pytest.mark.parametrize("alike", [False, True])
def test_ten_million_samples_in_time_with_a_consumer_that_decides_and_with_samples_alike(alike):
    import time

    profile = synthetic(10_000_000)
    resources = RESOURCES.having(consumer_samples_per_s=7_000)
    if alike:
        tables = [table.copy(order="F") for table in (profile.payload_bytes, profile.storage_s, profile.trainer_s)]
        for table in tables:
            table[:] = table[:1]
        profile = type(profile)(profile.cuts, *tables)
        resources = RESOURCES
    start = time.process_time()
    choice = optimal(profile, resources, DEFAULTS)
    assert time.process_time() - start <= 8
    assert predict(profile, choice.cut, resources).epoch_s <= choice.bound_s * 1.001


def test_measuring_here_gives_the_row_of_a_child():
    import os

    before = os.sched_getaffinity(0)
    try:
        row = measure("sophon", 500)
    finally:
        os.sched_setaffinity(0, before)
    assert set(row) == {
        "samples",
        "resources",
        "seconds",
        "peak_bytes",
        "cpu_seconds",
        "profile_bytes",
        "epoch_s",
        "bound_s",
    }
