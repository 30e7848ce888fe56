"""The heavy-tailed workload and the sweep of settings, small."""

import time

import numpy as np
import pytest

from sophon.bench.scans.heavy_tail import RECIPE, WAITING, encode, side_for, write_volumes
from sophon.bench.slow import bench_slow, heavy_tail
from sophon.bench.tune import SlowReads, Workload, _race
from sophon.codec.cut import RAW
from sophon.link.wire import Request
from sophon.pipeline import Key
from sophon.store import open_store


def test_one_in_twenty_takes_three_hundred_milliseconds_to_a_second():
    times = heavy_tail(400)
    slow = [seconds for seconds in times if seconds > 0.003]
    assert (len(times), len(slow)) == (400, 20)
    assert 0.3 <= min(slow) <= max(slow) <= 1.0
    assert times == heavy_tail(400)
    assert times != sorted(times)


def test_volumes_are_finished_with_the_same_bits_every_time():
    data = encode(40, 1)
    one, two = (RECIPE.run(data, Key(1, 2, 3)).array for _ in range(2))
    assert (one.shape, one.dtype) == ((1, 16, 16, 16), np.float32)
    assert np.array_equal(one, two)
    assert not np.array_equal(one, RECIPE.run(data, Key(1, 3, 3)).array)


def test_what_waits_waits_as_long_as_its_size_says():
    side = side_for(0.05, WAITING.ops[1].s_per_voxel)
    start_s = time.monotonic()
    WAITING.run(encode(side, 0), Key(0, 0, 0))
    assert time.monotonic() - start_s >= side**3 * WAITING.ops[1].s_per_voxel


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:This DataLoader will create")
def test_the_result_has_the_figures_that_are_promised():
    result = bench_slow(0.1, samples=20, work="wait")
    assert {"torch_per_s", "strict_per_s", "relaxed_per_s", "bound_per_s"} <= set(result)
    assert all(result[f"{name}_per_s"] > 0 for name in ("torch", "strict", "relaxed"))
    assert result["relaxed_per_s"] <= result["bound_per_s"]


def test_slow_reads_take_their_time_and_give_the_same_bytes(tmp_path):
    write_volumes(tmp_path / "v.parquet", [0.001] * 4, 7e-7)
    store = open_store(tmp_path / "v.parquet")
    request = Request(store.name, {"ops": []}, seed=0, epoch=0, samples=(0, 1, 2, 3), cuts=(RAW,) * 4)
    start_s = time.monotonic()
    replies = list(SlowReads(store, "here", 0.01).fetch(request, 1.0))
    assert time.monotonic() - start_s >= 0.04
    assert {reply.position: bytes(reply.payload) for reply in replies} == {i: store.read(i) for i in range(4)}


def test_a_sweep_names_the_best_and_what_was_tuned(tmp_path):
    write_volumes(tmp_path / "v.parquet", [0.0003] * 64, 7e-8)
    row = _race(tmp_path / "v.parquet", Workload(64, 0.0003, consumer_s=0.002), 0.1)
    assert set(row["fixed"]) == {"1×2", "2×2", "4×2"}
    assert row["best_per_s"] == max(row["fixed"].values())
    assert row["auto_of_best"] == pytest.approx(row["auto_per_s"] / row["best_per_s"])
