import pytest

from sophon.bench import soak
from sophon.bench.cluster.soak import bench_cluster_soak

KEYS = {"minutes", "samples", "relayed", "faults", "lost", "repeated", "mismatched", "rss_growth", "fd_growth"}


def _check(result):
    assert set(result) == KEYS | {"kinds", "timeline"}
    assert result["timeline"][-1]["samples"] <= result["samples"]
    assert result["samples"] > 0
    assert (result["lost"], result["repeated"], result["mismatched"]) == (0, 0, 0)


@pytest.mark.slow
def test_a_short_soak_loses_repeats_and_changes_nothing(monkeypatch):
    monkeypatch.setattr(soak, "_PHOTOS", 16)
    monkeypatch.setattr(soak, "_PAUSE_S", (0.2, 1.0))
    result = soak.bench_soak(0.2, seed=3)
    _check(result)
    assert result["faults"] >= 3


@pytest.mark.slow
def test_a_soak_of_three_minutes():
    result = soak.bench_soak(3.0, seed=1)
    _check(result)
    assert result["faults"] >= 12
    assert result["rss_growth"] < 0.05
    assert result["fd_growth"] <= 4


@pytest.mark.slow
def test_a_soak_over_parts_copies_and_relays_loses_repeats_and_changes_nothing(monkeypatch):
    monkeypatch.setattr(soak, "_PHOTOS", 16)
    monkeypatch.setattr(soak, "_PAUSE_S", (0.2, 1.0))
    result = bench_cluster_soak(0.4, seed=3)
    assert (result.pop("nodes"), result.pop("relays")) == (4, 2)
    assert result["relayed"] > 0
    _check(result)
    assert result["faults"] >= 3
