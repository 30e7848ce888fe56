"""A clock for each node, where they hold different samples."""

import numpy as np
import pytest

from sophon.loader.machine.parts import Parts
from sophon.loader.planning.node_clocks import MOST_PARTS, NodeClocks

SAMPLES = 100


def run(clocks, node, bytes_per_s, seconds=6, request=0):
    """Have a node send at a steady rate."""
    clocks.began(request, node, 0.0)
    for tenth in range(1, 10 * seconds + 1):
        clocks.got(request, int(bytes_per_s / 10), 0.0, 0.0, tenth / 10, 0.0)
    clocks.ended(request, float(seconds))


def test_the_link_of_each_node_is_its_own():
    clocks = NodeClocks()
    run(clocks, 0, 8e6, request=1)
    run(clocks, 1, 2e6, request=2)
    parts = Parts(((0,), (1,)), np.arange(SAMPLES, dtype=np.uint16) % 2, ("fast", "slow"))
    fast, slow = clocks.nodes(parts, SAMPLES, [4.0, 1.0], 1, False)
    assert fast.rates["link_bytes_per_s"] == pytest.approx(8e6, rel=0.05)
    assert slow.rates["link_bytes_per_s"] == pytest.approx(2e6, rel=0.05)
    assert (fast.rates["storage_cores"], slow.rates["storage_cores"]) == (4.0, 1.0)
    assert (fast.name, slow.name) == ("fast", "slow")
    assert clocks.nodes(parts, SAMPLES, [4.0, 1.0], 2, False)[0].rates["link_bytes_per_s"] == pytest.approx(
        16e6, rel=0.05
    )


def test_replicas_add_up_and_a_node_of_two_parts_is_shared():
    clocks = NodeClocks()
    for node in range(3):
        run(clocks, node, 4e6, request=node)
    parts = Parts(((0, 1), (2,), (2,)), np.repeat(np.arange(3, dtype=np.uint16), [50, 25, 25]))
    both, *halves = clocks.nodes(parts, SAMPLES, [1.0, 1.0, 2.0], 1, False)
    assert both.rates["link_bytes_per_s"] == pytest.approx(8e6, rel=0.05)
    assert [half.rates["link_bytes_per_s"] for half in halves] == pytest.approx([2e6, 2e6], rel=0.05)
    assert [half.rates["storage_cores"] for half in halves] == [1.0, 1.0]


def test_nothing_is_said_before_something_was_seen_or_where_there_are_too_many_parts():
    clocks = NodeClocks()
    parts = Parts(((0,), (1,)), np.arange(SAMPLES, dtype=np.uint16) % 2)
    assert clocks.nodes(parts, SAMPLES, [1.0, 1.0], 1, False) == ()
    run(clocks, 0, 4e6)
    assert len(clocks.nodes(parts, SAMPLES, [1.0, 1.0], 1, False)) == 2  # the other one is taken for alike
    many = Parts(tuple((0,) for _ in range(MOST_PARTS + 1)), np.arange(SAMPLES, dtype=np.uint16) % (MOST_PARTS + 1))
    assert clocks.nodes(many, SAMPLES, [1.0], 1, False) == ()
