import itertools

import numpy as np
import pytest

from sophon.bench.pictures.samples import Samples
from sophon.bench.window import bench_window, within
from sophon.codec import jxl
from sophon.codec.window import available
from sophon.errors import ConfigError
from tests.support.pictures import encode, scene

pytestmark = pytest.mark.skipif(not available(), reason="the extension was not built")


def test_the_figures_have_the_names_that_scripts_read():
    files = [encode(scene(500, 400, i), "jpeg 4:2:0") for i in range(3)] + [encode(scene(300, 200), "png")]
    result = bench_window(Samples("test", tuple(files)), 0.01)
    assert (result.files, result.windowable) == (4, 3)
    written = result.to_json()
    times = {"decode_crop_ms", "window_ms", "window_indexed_ms", "trainer_whole_ms", "trainer_window_ms"}
    assert set(written) == {*times, "index_share", "gain", "budget", "progressive"}
    assert set(written["progressive"]) == times - {"window_indexed_ms"}
    assert all(ms > 0 for ms in written["progressive"].values())
    assert result.progressive_made
    assert all(written[name] > 0 for name in times)
    assert 0 < written["index_share"] < 0.2
    gain = written["gain"]
    assert 1.0 <= gain["sophon"] <= gain["exact_best"] <= gain["lossy_best"]
    assert 1.0 < gain["window"] <= gain["exact_best"]
    assert ("jxl" in gain) == jxl.available()
    assert gain["window"] <= gain.get("jxl", gain["window"]) <= gain["exact_best"]
    curve = list(written["budget"].values())
    assert {"2_ms", "3_ms"} <= set(written["budget"])
    assert curve == sorted(curve)
    assert curve[-1] <= gain["exact_best"] + 1e-9
    assert result.ns_per_byte("window") > 0


def test_files_without_any_window_are_nothing_to_measure():
    with pytest.raises(ConfigError, match="no window can be cut"):
        bench_window(Samples("test", (encode(scene(30, 20), "png"),)), 0.01)


def test_progressive_files_of_a_data_set_are_timed_as_they_are():
    files = [encode(scene(200, 150, i), "jpeg progressive") for i in range(2)]
    result = bench_window(Samples("test", tuple(files)), 0.01)
    assert (result.files, result.windowable, result.progressive_made) == (2, 2, False)


def test_the_best_plan_within_a_budget_is_that_of_brute_force():
    rng = np.random.default_rng(1)
    for _ in range(20):
        sizes = rng.uniform(1, 100, (6, 3))
        costs = np.column_stack([np.zeros(6), rng.uniform(0.1, 9, (6, 2))])
        for budget in (0.0, 0.5, 2.0, 9.0):
            plans = itertools.product(range(3), repeat=6)
            picked = [np.array(plan) for plan in plans]
            fits = [plan for plan in picked if costs[range(6), plan].mean() <= budget]
            best = min(sizes[range(6), plan].mean() for plan in fits)
            found = within(sizes, costs, budget)
            # What cannot be divided costs at most one sample's choice.
            assert best - 1e-9 <= found <= best + 100 / 6
        assert within(sizes, costs, 9.0) == pytest.approx(sizes.min(axis=1).mean())
