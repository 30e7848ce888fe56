"""Whom to ask, by hand."""

import pytest

from sophon.loader.machine.standing import Choice, Standings


def _nodes(count=2, has_fallback=False, first_pause_s=1.0, longest_pause_s=8.0):
    return Standings(count, has_fallback, first_pause_s, longest_pause_s, now_s=0.0, seed=0)


def _fail(nodes, number, now_s):
    """Let a request fail that was sent after everything before."""
    nodes.asked(number)
    nodes.ended(number)
    nodes.failed(number, now_s, now_s)


def test_the_node_with_the_fewest_requests_gets_the_next():
    nodes = _nodes(3)
    for expected in (0, 1, 2, 0):
        assert nodes.pick(0.0) == Choice(expected)
        nodes.asked(expected)
    nodes.ended(1)
    assert nodes.pick(0.0) == Choice(1)


def test_a_node_that_fails_rests_and_is_then_tried_with_one_sample():
    nodes = _nodes()
    _fail(nodes, 0, 1.0)
    assert nodes.pick(1.4) == Choice(1)
    assert nodes.pick(2.0) == Choice(0, is_trial=True)


def test_between_two_tries_somebody_else_is_asked():
    nodes = _nodes(3)
    _fail(nodes, 0, 1.0)
    _fail(nodes, 1, 1.0)
    found = []
    for _ in range(4):
        nodes.pick(5.0)  # to pick is not to ask
        found.append(nodes.pick(5.0))
        nodes.asked(found[-1].source)
        nodes.ended(found[-1].source)
    assert [choice.is_trial for choice in found] == [True, False, True, False]
    assert found[1] == found[3] == Choice(2)


def test_a_node_that_is_being_tried_is_not_tried_again():
    nodes = _nodes()
    _fail(nodes, 0, 1.0)
    nodes.asked(nodes.pick(5.0).source)
    assert [nodes.pick(5.0) for _ in range(3)] == [Choice(1)] * 3


def test_a_reply_makes_a_node_well():
    nodes = _nodes()
    _fail(nodes, 0, 1.0)
    nodes.asked(1)
    nodes.ended(1)
    assert nodes.pick(1.0) == Choice(1)
    nodes.replied(0)
    assert nodes.pick(1.0) == Choice(0)


def test_a_pause_doubles_up_to_its_bound():
    nodes = _nodes(1)
    now_s = 0.0
    for full_s in (1.0, 2.0, 4.0, 8.0, 8.0):
        now_s += 100.0
        _fail(nodes, 0, now_s)
        pause_s = max(nodes.retries_s) - now_s
        assert 0.5 * full_s <= pause_s <= full_s
        assert nodes.pick(now_s + 0.49 * full_s) is None
        assert nodes.pick(now_s + full_s) == Choice(0)


def test_requests_that_were_under_way_together_fail_together():
    nodes = _nodes(1, has_fallback=True)
    for _ in range(4):
        nodes.failed(0, 1.0, 2.0)  # a restart: four streams break at once
    assert nodes.pick(3.0) == Choice(0)  # one failure, and the fallback is not asked
    nodes.failed(0, 3.0, 4.0)
    assert nodes.pick(4.0) == Choice(1)


def test_the_fallback_is_asked_while_every_node_has_failed_twice():
    nodes = _nodes(2, has_fallback=True)
    _fail(nodes, 0, 1.0)
    _fail(nodes, 1, 1.0)
    assert nodes.pick(1.1) is None
    _fail(nodes, 0, 3.0)
    assert nodes.pick(3.1).source == 1
    _fail(nodes, 1, 4.0)
    assert nodes.pick(4.1) == Choice(2)
    nodes.asked(2)
    assert nodes.pick(20.0) == Choice(0, is_trial=True)  # they are tried beside it
    nodes.replied(0)
    assert nodes.pick(20.0) in (Choice(1, is_trial=True), Choice(0))
    assert nodes.pick(20.0).source != 2


def test_where_the_fallback_fails_too_nodes_are_tried():
    nodes = _nodes(1, has_fallback=True)
    _fail(nodes, 0, 1.0)
    _fail(nodes, 0, 2.0)
    nodes.asked(0)  # a call that says nothing
    nodes.failed(1, 3.0, 20.0)
    assert nodes.pick(20.0) == Choice(0, is_trial=True)


def test_who_is_asked_instead():
    nodes = _nodes(3, has_fallback=True)
    assert nodes.pick_other({0}, 0.0) == 1
    nodes.asked(1)
    assert nodes.pick_other({0}, 0.0) == 2
    _fail(nodes, 1, 1.0)
    _fail(nodes, 2, 1.0)
    assert nodes.pick_other({0}, 1.1) == 3
    assert nodes.pick_other({0, 3}, 1.1) is None
    assert nodes.pick_instead({0, 3}, 1.1) == 0  # it has answered others
    assert nodes.pick_instead({0, 3}, 5.0) in (1, 2)
    _fail(nodes, 0, 5.0)
    nodes.failed(3, 5.0, 5.0)
    assert nodes.pick_instead({0, 3}, 1.1) is None


@pytest.mark.parametrize(("count", "has_fallback", "others"), [(1, False, False), (1, True, True), (2, False, True)])
def test_who_is_alone(count, has_fallback, others):
    assert _nodes(count, has_fallback).has_others(range(count)) is others


def test_many_trainers_do_not_retry_in_step():
    pauses = set()
    for seed in range(20):
        nodes = Standings(1, False, 1.0, 8.0, now_s=0.0, seed=seed)
        _fail(nodes, 0, 0.0)
        pauses.add(max(nodes.retries_s))
    assert len(pauses) == 20


def test_a_single_request_goes_round():
    nodes = _nodes(3)
    asked = []
    for _ in range(6):
        asked.append(nodes.pick(0.0).source)
        nodes.asked(asked[-1])
        nodes.ended(asked[-1])
    assert asked == [0, 1, 2, 0, 1, 2]


def test_the_next_epoch_knows_who_was_not_well():
    nodes = _nodes()
    nodes.asked(0)
    nodes.failed(0, 1.0, 1.0)
    nodes.begin(0)
    assert nodes.pick(1.1) == Choice(1)
    assert nodes.pick(5.0) == Choice(0, is_trial=True)  # nothing of the epoch before is under way


def test_who_has_kept_us_waiting_is_left_alone_for_longer_while_others_answer():
    nodes = _nodes(2, first_pause_s=0.1)
    nodes.asked(0)
    nodes.failed(0, 0.0, 5.0)  # silent for five seconds
    nodes.ended(0)
    assert nodes.pick(24.9) == Choice(1)
    assert nodes.pick(25.0) == Choice(0, is_trial=True)
    _fail(nodes, 1, 26.0)
    assert nodes.pick(26.01) == Choice(0)  # nobody else is left
