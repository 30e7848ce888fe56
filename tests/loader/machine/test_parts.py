"""A machine whose samples lie with different holders, driven by hand; `test_simulation` drives it through the rest."""

import numpy as np
import pytest

from sophon.errors import RetryableError
from sophon.loader.machine.machine import Machine, MachineConfig
from sophon.loader.machine.parts import Parts

DOWN = RetryableError("connection refused")


def _machine(holders, of, batch_size=4, names=(), **config):
    nodes = max((node for held in holders for node in held), default=-1) + 1
    settings = MachineConfig(nodes=nodes, **config)
    parts = Parts(tuple(holders), np.array(of, np.uint16), names)
    return Machine(len(of), batch_size, settings, expected_bytes=100, now_s=0.0, parts=parts)


def _answer(machine, ask, now_s):
    for position in ask.positions:
        assert machine.reply(ask.request, position, 50, now_s)
    machine.ended(ask.request, now_s)


def test_every_node_is_asked_for_what_it_holds_in_the_order_of_the_epoch():
    machine = _machine([(0,), (1,)], [0, 1, 1, 0, 1, 0, 0, 1], max_requests=2)
    assert [(ask.source, ask.positions) for ask in (machine.ask(0.0), machine.ask(0.0))] == [
        (0, (0, 3, 5, 6)),
        (1, (1, 2, 4, 7)),
    ]


def test_a_request_may_name_samples_of_several_parts_that_one_node_holds():
    machine = _machine([(0, 1), (1,)], [0, 1, 0, 1], max_requests=2, request_samples=1)
    first = machine.ask(0.0)
    assert (first.source, first.positions) == (0, (0,))
    machine = _machine([(0,), (0,), (1,)], [0, 1, 2, 0], max_requests=2)
    assert machine.ask(0.0).positions == (0, 1, 3)


def test_a_node_that_is_busy_or_away_keeps_no_other_waiting():
    machine = _machine([(0,), (1,)], [1] * 8 + [0] * 8, max_requests=2, request_samples=2)
    assert machine.ask(0.0).source == 1
    other = machine.ask(0.0)
    assert (other.source, other.positions) == (0, (8, 9))
    assert machine.ask(0.0) is None, "each has its share"
    assert machine.wanted == 10, "as far as was looked for something that can be asked"
    machine.failed(1, DOWN, 1.0)
    _answer(machine, other, 1.0)
    assert machine.ask(1.0).positions == (10, 11)


def test_every_lane_may_have_a_request_however_few_there_are():
    machine = _machine([(0,), (1,), (2,)], [0, 1, 2], max_requests=1)
    assert [machine.ask(0.0).source for _ in range(3)] == [0, 1, 2]
    assert machine.calls >= 3


def test_lanes_share_requests_by_their_nodes():
    machine = _machine([(0, 1), (2,)], [0, 1] * 20, max_requests=3, request_samples=1)
    asked = []
    while (ask := machine.ask(0.0)) is not None:
        asked.append(ask.source)
    assert sorted(asked) == [0, 1, 2]


@pytest.mark.parametrize("names", [(), ("grpc://a", "grpc://b")])
def test_the_deadline_of_a_part_is_its_own_and_its_holders_are_named(names):
    machine = _machine([(0,), (1,)], [0, 1] * 50, batch_size=1, deadline_s=5.0, request_samples=1, names=names)
    now_s = 0.0
    while machine.fatal is None and now_s < 10.0:
        ask = machine.ask(now_s)
        if ask is None:
            now_s += 0.05
        elif ask.source == 0:
            _answer(machine, ask, now_s)
            now_s += 0.1
        else:
            machine.failed(ask.request, DOWN, now_s)
    assert 5.0 <= now_s < 6.0, "though the other part was answered until then"
    assert f"no answer for 5 s from {'grpc://b' if names else 'node 1'}, after" in str(machine.fatal)


def test_time_in_which_nobody_came_to_ask_does_not_count():
    machine = _machine([(0,), (1,)], [0, 1], batch_size=2, deadline_s=5.0, max_requests=1)
    first, second = machine.ask(0.0), machine.ask(0.0)
    machine.failed(second.request, DOWN, 0.0)
    machine.check(100.0)  # the driver's only thread reads what the other part sends
    assert "node 0" in str(machine.fatal), "which is waited for all the time"
    machine = _machine([(0,), (1,)], [0, 1], batch_size=2, deadline_s=5.0, max_requests=1)
    first, second = machine.ask(0.0), machine.ask(0.0)
    machine.failed(second.request, DOWN, 0.0)
    _answer(machine, first, 99.0)
    assert machine.ask(100.0).positions == second.positions
    assert machine.fatal is None
    machine.check(104.0)
    assert machine.fatal is None
    machine.check(106.0)
    assert "node 1" in str(machine.fatal)


def test_what_is_late_is_asked_of_other_holders_and_the_rest_of_the_same_node():
    machine = _machine([(0, 1), (0,)], [0, 1], batch_size=2, hedge=0.5, max_requests=4, request_samples=2)
    machine._standings.failed(1, 0.0, 0.0)
    first = machine.ask(0.0)
    assert (first.source, first.positions) == (0, (0, 1))
    machine._standings.replied(1)
    second = machine.ask(0.5)
    assert (second.source, second.positions, second.is_second) == (1, (0,), True)


def test_only_what_has_another_source_can_be_lost():
    machine = _machine([(0, 1), (2,)], [0, 1], batch_size=2, deadline_s=60.0)
    first, second = machine.ask(0.0), machine.ask(0.0)
    assert {first.source, second.source} == {0, 2}
    instead = machine.ask(5.0)
    assert (instead.source, instead.positions) == (1, (0,))
    assert machine.ask(30.0) is None, "nobody else holds the other"


def test_a_part_that_only_the_fallback_has_is_read_there_at_once():
    machine = _machine([(0,), ()], [0, 1], batch_size=2, has_fallback=True)
    assert [machine.ask(0.0).source for _ in range(2)] == [0, 1]


# --- relays -----------------------------------------------------------------------------------------------------------


def _with_relay(is_relayed, **config):
    count = len(is_relayed)
    parts = Parts.among([(0, 1)], {1}, np.zeros(count, np.uint16), np.array(is_relayed, np.bool_), ("node", "relay"))
    settings = MachineConfig(nodes=2, max_requests=4, **config)
    return Machine(count, 4, settings, expected_bytes=100, now_s=0.0, parts=parts)


def test_the_plan_says_who_is_asked_for_which_sample():
    machine = _with_relay([False, True, True, False])
    assert {(ask.source, ask.positions) for ask in (machine.ask(0.0), machine.ask(0.0))} == {(0, (0, 3)), (1, (1, 2))}


def test_a_node_stands_in_for_a_relay_that_is_gone_and_a_relay_for_a_node():
    for gone, other in ((0, 1), (1, 0)):
        machine = _with_relay([gone == 1] * 4)
        ask = machine.ask(0.0)
        assert ask.source == gone
        machine.failed(ask.request, DOWN, 0.1)
        again = machine.ask(0.1)
        assert (again.source, again.positions) == (other, (0, 1, 2, 3))


def test_another_plan_changes_what_is_not_wanted_yet_and_nothing_else():
    machine = _with_relay([True] * 8, buffer_bytes=400)
    assert machine.ask(0.0).positions == (0, 1, 2, 3)
    machine.reroute(np.zeros(8, np.bool_))
    for position in range(4):
        machine.reply(1, position, 50, 0.1)
        machine.finished(position, 100)
        machine.put(position)
    machine.ended(1, 0.1)
    machine.take()
    ask = machine.ask(0.2)
    assert (ask.source, ask.positions) == (0, (4, 5, 6, 7))


def test_where_only_relays_reach_a_part_they_are_its_holders():
    parts = Parts.among([(0, 1), (1,)], {1}, np.array([0, 1, 0, 1], np.uint16), np.array([True, True, False, False]))
    assert parts.holders == ((0,), (1,), (1,))
    assert parts.stand_ins == ((1,), (), (0,))
    assert parts.of.tolist() == [2, 1, 0, 1]


def test_who_is_given_up_is_named_with_its_stand_ins():
    parts = Parts.among([(0, 1)], {1}, np.zeros(1, np.uint16), np.zeros(1, np.bool_), ("node", "relay"))
    assert parts.called(0) == "node and relay"
