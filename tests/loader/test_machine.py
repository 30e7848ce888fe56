"""The machine, driven by hand and by a seeded simulator with virtual time."""

import heapq
import random

import pytest

from sophon.errors import ConfigError, RetryableError
from sophon.loader.machine import Machine, MachineConfig

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
        while now_s < start_s + 10 and machine._nodes.retry_at_s > now_s:
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
    assert isinstance(machine.fatal, RetryableError)
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
    assert "though the connection stands" in str(machine.fatal)


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


class _Simulation:
    """A server and a link that do everything wrong, in virtual time."""

    def __init__(self, seed: int, relaxed: bool = False) -> None:
        self.random = random.Random(seed)
        self.now_s = 0.0
        self.count = self.random.randint(1, 80)
        self.batch_size = self.random.randint(1, 12)
        config = MachineConfig(
            buffer_bytes=self.random.choice([1, 500, 3000, 10**6]),
            deadline_s=60.0,
            max_requests=self.random.randint(1, 4),
            request_samples=self.random.randint(1, 20),
            max_delay=self.random.choice([0, 1, 2, 5, 100]) if relaxed else None,
        )
        self.machine = Machine(self.count, self.batch_size, config, 100, 0.0, seed)
        self.events = []
        self.number = 0
        self.received = []
        self.delivered = []
        self.down_until_s = 0.0

    def at(self, delay_s, action):
        self.number += 1
        heapq.heappush(self.events, (self.now_s + delay_s, self.number, action))

    def send(self, ask):
        r = self.random
        if self.now_s < self.down_until_s or r.random() < 0.1:
            self.at(r.random(), lambda: self.machine.failed(ask.request, DOWN, self.now_s))
            return
        order = list(ask.positions)
        r.shuffle(order)
        if r.random() < 0.2:
            order = order[: r.randint(0, len(order))]  # a reply that is cut short
        time_s = 0.0
        for position in order:
            time_s += r.expovariate(50)
            for _ in range(1 + (r.random() < 0.1)):  # some come twice
                self.at(time_s, lambda p=position: self.reply(ask.request, p))
        broken = r.random() < 0.2
        end = self.machine.failed if broken else self.machine.ended
        args = (ask.request, DOWN) if broken else (ask.request,)
        self.at(time_s * (r.random() if broken else 1.01), lambda: end(*args, self.now_s))
        if r.random() < 0.05:
            self.down_until_s = self.now_s + r.uniform(0, 20)  # a restart

    def reply(self, request, position):
        if self.machine.reply(request, position, self.random.randint(1, 200), self.now_s):
            self.received.append(position)
            slow = self.random.random() < 0.05
            self.at(self.random.expovariate(0.2 if slow else 20), lambda: self.finished(position))

    def finished(self, position):
        for _, place in self.machine.finished(position, 100):
            self.at(self.random.expovariate(200), lambda p=place: self.machine.put(p))

    def run(self):
        steps = 0
        while len(self.delivered) < self.machine.batches:
            steps += 1
            assert steps < 100_000, "no progress"
            assert self.machine.fatal is None
            while (ask := self.machine.ask(self.now_s)) is not None:
                self.send(ask)
            next_batch = max(0, self.machine.taken) + 1
            allowed = max(self.machine._config.buffer_bytes, 0) + 300 * (self.batch_size + 20)
            assert self.machine.held_bytes <= allowed, next_batch
            if self.machine.ready > self.machine.taken and self.random.random() < 0.7:
                self.delivered.append(self.machine.take())
                continue
            if self.events and (not self.machine._again or self.events[0][0] <= self.machine._nodes.retry_at_s):
                self.now_s, _, action = heapq.heappop(self.events)
                action()
            else:
                self.now_s += 0.01
        return self


@pytest.mark.parametrize("seed", range(200))
def test_nothing_is_lost_repeated_or_reordered_whatever_the_link_does(seed):
    simulation = _Simulation(seed).run()
    assert sorted(simulation.received) == list(range(simulation.count))
    assert simulation.delivered == list(range(simulation.machine.batches))
    assert simulation.machine.taken_positions().tolist() == list(range(simulation.count))
    assert simulation.machine.held_bytes == 0


@pytest.mark.parametrize("seed", range(300))
def test_in_relaxed_order_nothing_is_lost_or_repeated_and_nobody_waits_longer_than_promised(seed):
    simulation = _Simulation(seed, relaxed=True).run()
    machine = simulation.machine
    assert simulation.delivered == list(range(machine.batches))
    assert machine.held_bytes == 0
    positions = machine.taken_positions().tolist()
    assert sorted(positions) == sorted(simulation.received) == list(range(simulation.count))
    size = simulation.batch_size
    assert all(place // size - p // size <= machine._config.max_delay for place, p in enumerate(positions))


@pytest.mark.parametrize("relaxed", [False, True])
def test_a_simulation_can_be_replayed(relaxed):
    one, two = _Simulation(7, relaxed).run(), _Simulation(7, relaxed).run()
    assert (one.now_s, one.received) == (two.now_s, two.received)
    assert one.machine.taken_positions().tolist() == two.machine.taken_positions().tolist()
