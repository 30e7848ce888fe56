"""The machine, driven by hand; `test_simulation` drives it through everything else."""

import pytest

from sophon.errors import ConfigError, RetryableError, UnavailableError
from sophon.loader.machine.machine import Machine, MachineConfig

DOWN = RetryableError("connection refused")


def _machine(count=10, batch_size=4, **config):
    return Machine(count, batch_size, MachineConfig(**config), expected_bytes=100, now_s=0.0)


def _complete(machine, positions):
    for position in positions:
        for _, place in machine.finished(position, 100):
            machine.put(place)


def test_samples_are_asked_for_in_order_and_in_requests_of_bounded_size():
    machine = _machine(request_samples=3, max_requests=2)
    assert machine.ask(0.0).positions == (0, 1, 2)
    assert machine.ask(0.0).positions == (3, 4, 5)
    assert machine.ask(0.0) is None  # two are under way


def test_a_request_is_bounded_in_bytes_too():
    assert _machine(request_bytes=250).ask(0.0).positions == (0, 1, 2)


def test_batches_become_ready_in_order_however_samples_finish():
    machine = _machine()
    ask = machine.ask(0.0)
    for position in ask.positions:
        assert machine.reply(ask.request, position, 50, 0.0)
    _complete(machine, [8, 9, 4, 5, 6, 7, 0, 1, 2])
    assert machine.ready == 0
    _complete(machine, [3])
    assert machine.ready == 3
    assert [machine.take() for _ in range(3)] == [0, 1, 2]
    assert machine.held_bytes == 0


def test_a_second_reply_a_late_one_and_one_that_nobody_asked_for_are_refused():
    machine = _machine()
    ask = machine.ask(0.0)
    assert machine.reply(ask.request, 0, 50, 0.0)
    assert not machine.reply(ask.request, 0, 50, 0.0)
    assert not machine.reply(ask.request, 99, 50, 0.0)
    assert not machine.reply(ask.request, -1, 50, 0.0)
    assert not machine.reply(ask.request + 1, 1, 50, 0.0)
    machine.failed(ask.request, DOWN, 0.0)
    assert not machine.reply(ask.request, 1, 50, 0.0)


def test_what_a_failed_request_owes_is_asked_for_again_after_a_pause_that_grows():
    machine = _machine(first_pause_s=1.0, longest_pause_s=4.0, deadline_s=1000.0)
    now_s, pauses = 0.0, []
    for _ in range(6):
        while (ask := machine.ask(now_s)) is None:
            now_s += 0.01
        assert ask.positions == tuple(range(10))
        machine.failed(ask.request, DOWN, now_s)
        start_s = now_s
        while now_s < start_s + 10 and max(machine._standings.retries_s) > now_s:
            now_s += 0.01
        pauses.append(now_s - start_s)
    for pause_s, full_s in zip(pauses, [1, 2, 4, 4, 4, 4], strict=True):
        assert 0.5 * full_s <= pause_s <= full_s + 0.02


def test_only_what_is_missing_is_asked_for_again():
    machine = _machine(first_pause_s=0.0)
    ask = machine.ask(0.0)
    for position in (0, 2, 4, 6, 8):
        machine.reply(ask.request, position, 50, 0.0)
    machine.failed(ask.request, DOWN, 0.0)
    assert machine.ask(1.0).positions == (1, 3, 5, 7, 9)


def test_a_reply_that_ends_early_is_a_failure():
    machine = _machine(first_pause_s=0.0)
    ask = machine.ask(0.0)
    machine.ended(ask.request, 0.0)
    assert machine.tries == 1
    assert machine.ask(1.0).positions == ask.positions


def test_the_deadline_counts_from_the_first_question_and_names_tries_and_cause():
    machine = _machine(deadline_s=5.0, first_pause_s=0.0)
    for now_s in (1.0, 2.0, 5.9):
        machine.failed(machine.ask(now_s).request, DOWN, now_s)
        assert machine.fatal is None
    machine.check(6.0)
    assert isinstance(machine.fatal, UnavailableError)
    assert "no answer for 5 s, after 3 tries" in str(machine.fatal)
    assert "connection refused" in str(machine.fatal)
    assert machine.ask(7.0) is None


def test_progress_starts_the_deadline_anew():
    machine = _machine(deadline_s=5.0, first_pause_s=0.0)
    machine.failed(machine.ask(1.0).request, DOWN, 1.0)
    ask = machine.ask(5.0)
    machine.reply(ask.request, 0, 50, 5.0)
    machine.failed(ask.request, DOWN, 5.5)
    machine.check(9.9)
    assert machine.fatal is None
    machine.check(10.0)
    assert machine.fatal is not None


def test_a_failure_before_a_long_pause_of_the_consumer_is_tried_again_before_it_is_fatal():
    machine = _machine(deadline_s=5.0, first_pause_s=0.0)
    machine.failed(machine.ask(0.0).request, DOWN, 0.0)
    machine.resume()
    assert machine.ask(1000.0) is not None
    assert machine.fatal is None


def test_a_connection_that_stands_and_says_nothing_is_given_up_too():
    machine = _machine(deadline_s=5.0)
    machine.ask(0.0)
    machine.check(4.9)
    assert machine.fatal is None
    machine.check(5.0)
    assert "although the connection is up" in str(machine.fatal)


def test_a_consumer_that_takes_its_time_is_not_a_stall():
    machine = _machine(count=8, deadline_s=5.0, buffer_bytes=400)
    ask = machine.ask(0.0)
    for position in ask.positions:
        machine.reply(ask.request, position, 50, 0.0)
    machine.ended(ask.request, 0.0)
    _complete(machine, ask.positions)
    assert machine.ask(100.0) is None  # no room until the batch is taken
    machine.check(1000.0)
    assert machine.fatal is None
    machine.take()
    assert machine.ask(1000.0) is not None
    machine.check(1004.0)
    assert machine.fatal is None


def test_an_error_that_is_no_use_retrying_ends_the_epoch():
    machine = _machine()
    machine.failed(machine.ask(0.0).request, ConfigError("no data set 'x'"), 0.0)
    assert isinstance(machine.fatal, ConfigError)


def test_bytes_held_stay_within_the_buffer_but_the_next_batch_may_always_be_completed():
    machine = _machine(count=40, batch_size=4, buffer_bytes=600, request_samples=100)
    assert len(machine.ask(0.0).positions) == 6
    assert machine.held_bytes == 600
    tight = _machine(count=40, batch_size=4, buffer_bytes=1)
    assert len(tight.ask(0.0).positions) == 4


def _received(machine):
    """Ask for everything and receive it."""
    while (ask := machine.ask(0.0)) is not None:
        for position in ask.positions:
            machine.reply(ask.request, position, 50, 0.0)
        machine.ended(ask.request, 0.0)
    return machine


def test_in_relaxed_order_a_slow_sample_holds_up_no_other():
    machine = _received(_machine(count=10, batch_size=2, max_delay=3))
    _complete(machine, [1, 2, 3, 4])
    assert machine.ready == 2  # sample 0 is still in the works
    _complete(machine, [0])
    assert machine.taken_positions().tolist() == []
    machine.take()
    machine.take()
    assert machine.taken_positions().tolist() == [1, 2, 3, 4]


def test_in_relaxed_order_the_last_batch_that_a_sample_may_come_in_keeps_a_place_for_it():
    machine = _received(_machine(count=10, batch_size=2, max_delay=2))
    _complete(machine, [2, 3, 4, 5, 6])
    assert machine.ready == 2  # the third batch is the last one for samples 0 and 1: 6 has to wait
    _complete(machine, [1, 0])
    assert machine.ready == 3
    assert machine.finished(7, 100) == [(7, 7)]
    assert [machine.position_at(place) for place in range(8)] == [2, 3, 4, 5, 1, 0, 6, 7]


def test_a_delay_of_no_batch_keeps_every_sample_in_its_batch():
    machine = _received(_machine(count=7, batch_size=3, max_delay=0))
    _complete(machine, [6, 5, 4, 2, 1])
    assert machine.ready == 0
    _complete(machine, [0, 3])
    assert machine.ready == 3
    for _ in range(3):
        machine.take()
    assert machine.taken_positions().tolist() == [2, 1, 0, 4, 5, 3, 6]


def test_limits_may_be_changed_on_the_way_but_never_beyond_the_buffer():
    machine = _machine(count=40, batch_size=4, buffer_bytes=800, request_samples=2, max_requests=1)
    machine.ahead_bytes = 400
    assert machine.ask(0.0) is not None
    assert machine.ask(0.0) is None
    machine.max_requests = 10
    while machine.ask(0.0) is not None:
        pass
    assert (machine.held_bytes, machine.full) == (400, True)
    machine.ahead_bytes = 10**9
    while machine.ask(0.0) is not None:
        pass
    assert (machine.held_bytes, machine.full) == (800, True)


# --- several sources, and second requests; `nodes` and `patience` have tests of their own -----------------------------


def _answer(machine, ask, now_s, positions=None):
    for position in ask.positions if positions is None else positions:
        assert machine.reply(ask.request, position, 50, now_s)


def test_two_nodes_share_the_requests():
    machine = _machine(count=12, request_samples=3, max_requests=4, nodes=2)
    assert [machine.ask(0.0).source for _ in range(4)] == [0, 1, 0, 1]


def test_what_a_node_owes_that_fails_is_asked_of_the_other_at_once():
    machine = _machine(nodes=2, request_samples=5)
    first, second = machine.ask(0.0), machine.ask(0.0)
    machine.failed(first.request, DOWN, 1.0)
    again = machine.ask(1.0)
    assert (again.source, again.positions) == (second.source, first.positions)


def test_a_late_request_is_made_a_second_time_and_the_first_answer_counts():
    machine = _machine(count=4, nodes=2, hedge=0.5)
    first = machine.ask(0.0)
    assert machine.ask(0.4) is None
    assert machine.wait_s(0.4) == pytest.approx(0.1)
    second = machine.ask(0.5)
    assert (second.source, second.positions, second.is_second) == (1, first.positions, True)
    assert machine.ask(0.6) is None  # once
    _answer(machine, second, 0.6, [0, 1])
    assert not machine.reply(first.request, 0, 50, 0.6)
    assert machine.surplus() == []
    _answer(machine, second, 0.7, [2, 3])
    assert machine.surplus() == [first.request]
    assert machine.surplus() == []
    machine.failed(first.request, DOWN, 0.8)  # cancelled
    assert machine.tries == 0
    assert machine.ask(10.0) is None


def test_where_nobody_else_is_there_the_same_node_is_asked_once_more():
    machine = _machine(count=4, hedge=0.5)
    assert machine.ask(0.0).source == 0
    assert machine.ask(0.5).source == 0


def test_in_strict_order_only_what_the_next_batch_waits_for_is_asked_for_twice():
    machine = _machine(count=8, batch_size=4, request_samples=4, hedge=0.5)
    first, ahead = machine.ask(0.0), machine.ask(0.0)
    assert machine.ask(1.0).positions == first.positions
    assert machine.ask(1.0) is None
    assert ahead.positions == (4, 5, 6, 7)


def test_without_hedging_a_node_that_is_lost_is_replaced_all_the_same():
    machine = _machine(count=4, nodes=2, deadline_s=60.0)
    first = machine.ask(0.0)
    assert machine.ask(4.9) is None
    assert machine.ask(5.0).source != first.source


def test_three_sources_that_say_nothing_are_tried_before_the_deadline_and_then_the_fallback():
    machine = _machine(count=4, nodes=3, has_fallback=True, deadline_s=6.0)
    now_s, asked = 0.0, []
    while len(asked) < 4:
        ask = machine.ask(now_s)
        if ask is not None:
            asked.append(ask)
        now_s += 0.1
    assert sorted(ask.source for ask in asked) == [0, 1, 2, 3]
    assert asked[-1].source == 3
    assert now_s < 6.0
    assert machine.surplus() == [ask.request for ask in asked[:2]]  # the two that were let go for others
    _answer(machine, asked[-1], now_s)
    machine.check(1000.0)
    assert machine.fatal is None


def test_a_second_request_whose_first_has_failed_may_be_late_itself():
    machine = _machine(count=104, batch_size=104, request_samples=100, max_requests=1, nodes=3, hedge=0.5)
    _answer(machine, machine.ask(0.0), 0.0)
    first = machine.ask(0.0)
    second = machine.ask(0.5)
    machine.failed(first.request, DOWN, 0.6)
    third = machine.ask(1.0)
    assert third.positions == second.positions
    assert third.source not in (first.source, second.source)


def test_a_stream_whose_end_does_not_come_is_neither_a_stall_nor_in_the_way():
    machine = _machine(count=8, batch_size=4, request_samples=4, max_requests=1, deadline_s=5.0)
    first = machine.ask(0.0)
    _answer(machine, first, 0.0)
    assert machine.ask(1.0).positions == (4, 5, 6, 7)
    waiting = _machine(count=4, deadline_s=5.0)
    _answer(waiting, waiting.ask(0.0), 0.0)
    waiting.check(1000.0)
    assert waiting.fatal is None


def test_a_final_error_of_any_node_ends_the_epoch_with_that_error():
    machine = _machine(nodes=2, has_fallback=True, request_samples=5)
    machine.ask(0.0)
    error = ConfigError("another data set")
    machine.failed(machine.ask(0.0).request, error, 0.0)
    assert machine.fatal is error


def test_a_nap_is_neither_nothing_nor_longer_than_the_next_pause():
    machine = _machine(first_pause_s=0.2)
    assert machine.wait_s(0.0) == 1.0
    machine.failed(machine.ask(0.0).request, DOWN, 0.0)
    wait_s = machine.wait_s(0.0)
    assert 0.1 <= wait_s <= 0.2
    assert machine.ask(wait_s - 1e-6) is None
    assert machine.wait_s(wait_s - 1e-9) == 1e-3
    assert machine.ask(wait_s) is not None


def test_a_node_at_work_is_not_lost_though_it_sends_nothing_yet():
    machine = _machine(count=4, batch_size=4, nodes=2, deadline_s=100.0)
    ask = machine.ask(0.0)
    for now_s in range(1, 31):
        machine.heard(ask.request, float(now_s))
        assert machine.ask(now_s + 0.5) is None
    assert machine.reply(ask.request, 0, 100, 31.0)


def test_a_node_without_a_sign_of_life_is_lost_and_another_is_asked():
    machine = _machine(count=4, batch_size=4, nodes=2, deadline_s=100.0)
    ask = machine.ask(0.0)
    machine.heard(ask.request, 2.0)
    assert machine.ask(6.9) is None
    second = machine.ask(7.0)
    assert (second.source, second.positions, second.is_second) == (1, ask.positions, True)


def test_who_is_at_work_but_late_is_asked_for_a_second_time_if_that_is_wanted():
    machine = _machine(count=4, batch_size=4, nodes=2, deadline_s=100.0, hedge=2.0)
    ask = machine.ask(0.0)
    machine.heard(ask.request, 1.9)
    assert machine.ask(2.0).is_second
