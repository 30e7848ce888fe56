"""What Ray costs, and how soon a killed node serves again: a real Ray cluster."""

import pytest

from sophon.bench.cluster.ray_cost import bench_ray, compared
from tests.support.servers import make_images


def test_a_cost_is_the_median_of_pairs_and_comes_with_its_quartiles():
    row = compared([1.1, 2.0, 3.3, 4.0, 5.0], [1.0, 2.0, 3.0, 4.0, 10.0])
    assert row["overhead"] == 0.0
    assert row["spread"] == pytest.approx([0.0, 0.1])
    assert row["rounds"] == pytest.approx([0.1, 0.0, 0.1, 0.0, -0.5])


@pytest.mark.slow
def test_a_killed_node_serves_again_within_five_seconds_and_ray_changes_no_bit(tmp_path):
    pytest.importorskip("ray")
    result = bench_ray(make_images(tmp_path / "train", 40), rounds=2)
    assert len(result["again_s"]) == 2
    assert max(result["again_s"]) <= 5.0
    assert result["threads_share"] < 0.01
    assert len(result["sha256"]) == 64
