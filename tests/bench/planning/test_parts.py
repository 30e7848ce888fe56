"""`sophon bench parts`, small; how fast it is depends on the machine."""

import pytest

from sophon.bench.planning.parts import bench_parts, divided
from sophon.bench.rig.namespaces import ShapedLink, can_shape
from sophon.bench.rig.shell import call
from sophon.store import open_store
from tests.support.servers import make_images


def test_a_folder_is_divided_into_parts_that_make_up_the_whole(tmp_path):
    images = make_images(tmp_path / "train", 11)
    with divided(images, 3) as folders:
        parts = [open_store(folder).manifest.ids.to_pylist() for folder in folders]
    assert [len(part) for part in parts] == [4, 4, 3]
    assert sorted(sample for part in parts for sample in part) == sorted(open_store(images).manifest.ids.to_pylist())


@pytest.mark.slow
@pytest.mark.parametrize(
    "shape", ["server", pytest.param("tbf", marks=pytest.mark.skipif(not can_shape(), reason="root"))]
)
def test_the_bench_compares_bits_and_rates(tmp_path, shape):
    result = bench_parts(make_images(tmp_path / "train", 24), link_bytes_per_s=5e6, rounds=1, shape=shape)
    assert (result["samples"], result["nodes"], result["rig"]["shaped_by"]) == (24, 2, shape)
    assert set(result["per_s"]) == set(result["epoch_s"]) == {"whole", "parts"}
    assert result["times"] > 0
    assert len(result["sha256"]) == 64


@pytest.mark.skipif(not can_shape(), reason="needs root and iproute2")
def test_every_node_has_a_link_of_its_own():
    with ShapedLink(4e6, 3) as link:
        assert len({node.namespace for node in (*link.storages, link.trainer)}) == 4
        for node in link.storages:
            assert "rate 32Mbit" in call(*node.enter, "tc", "qdisc", "show")
        ways = {call("ip", "-n", link.trainer.namespace, "route", "get", node.address) for node in link.storages}
        assert len({way.split(" dev ")[1].split()[0] for way in ways}) == 3
    assert not {node.namespace for node in link.storages} & set(call("ip", "netns", "list").split())
