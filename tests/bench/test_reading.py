import pytest

from sophon.bench.reading import bench_reading
from sophon.store import STORES


@pytest.mark.slow
def test_a_slow_store_is_read_many_times_at_once_and_is_what_binds():
    seen, usual = [], dict(STORES)
    result = bench_reading(200, on_step=lambda name, *_: seen.append(name))
    assert usual == STORES
    assert seen == ["pictures", "local, none", "local, 0:window", "node, none", "node, 0:window"]
    assert [(row["where"], row["cuts"]) for row in result["rows"]] == [tuple(name.split(", ")) for name in seen[1:]]
    assert {row["verdict"] for row in result["rows"]} == {"store-bound"}
    assert all(row["speedup"] > 1 for row in result["rows"])
    assert result["in_turn_per_s"] <= 1 / result["read_s"]
