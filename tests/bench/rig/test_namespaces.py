"""Links between namespaces: what crosses them is counted, and nodes may reach each other."""

import sys

import pytest

from sophon.bench.rig.namespaces import ShapedLink, can_shape
from sophon.bench.rig.shell import call

SEND = "import socket, sys; socket.socket(type=socket.SOCK_DGRAM).sendto(bytes(1000), (sys.argv[1], 9))"


@pytest.mark.skipif(not can_shape(), reason="needs root and iproute2")
def test_bytes_are_counted_over_all_links_and_nodes_reach_each_other_through_the_trainer():
    with ShapedLink(4e6, 2) as link:
        link.connect_all()
        first, second = link.storages
        before = link.received_bytes()
        call(*second.enter, sys.executable, "-S", "-c", SEND, link.trainer.address)  # that is on the other link
        between = link.received_bytes()
        call(*first.enter, sys.executable, "-S", "-c", SEND, second.address)
        assert before + 1000 <= between <= link.received_bytes() - 1000
