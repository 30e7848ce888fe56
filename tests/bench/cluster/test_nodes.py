"""`sophon bench cluster`, small; how fast it is depends on the machine."""

import pytest

from sophon.bench.cluster.nodes import UNEVEN, balanced, bench_nodes, bench_uneven
from sophon.bench.rig.namespaces import ShapedLink, can_shape
from sophon.bench.rig.shell import call
from tests.support.servers import make_images


@pytest.mark.skipif(not can_shape(), reason="needs root and iproute2")
def test_unlike_links_have_their_own_rates():
    with ShapedLink(4e6, len(UNEVEN), UNEVEN) as link:
        rates = [call(*node.enter, "tc", "qdisc", "show") for node in link.storages]
    assert ["rate 32Mbit" in text for text in rates] == [True, True, True, False]
    assert "rate 8Mbit" in rates[-1]


@pytest.mark.slow
@pytest.mark.skipif(not can_shape(), reason="needs root and iproute2")
def test_the_bits_do_not_depend_on_the_number_of_nodes(tmp_path):
    result = bench_nodes(make_images(tmp_path / "train", 48), link_bytes_per_s=2.5e6, rounds=1)
    assert set(result["nodes"]) == {"1", "2", "4"}
    assert all(row["per_s"] > 0 for row in result["nodes"].values())
    assert len(result["sha256"]) == 64


@pytest.mark.slow
@pytest.mark.skipif(not can_shape(), reason="needs root and iproute2")
def test_a_plan_knows_which_node_has_the_slow_link(tmp_path):
    result = bench_uneven(make_images(tmp_path / "train", 48), link_bytes_per_s=2.5e6, rounds=1)
    assert all(bound_s > 0 for bound_s in result["bound_s"])


@pytest.mark.parametrize("parts", [2, 4])
def test_links_are_compared_on_parts_with_the_same_bytes(tmp_path, parts):
    photos = make_images(tmp_path / "train", 12)
    with balanced(photos, parts, most=8 * parts) as folder:
        sizes = [path.stat().st_size for path in sorted(folder.rglob("*.*"))]
        assert len({sum(sizes[part::parts]) for part in range(parts)}) == 1
        assert len(sizes) == 7 * parts
