import threading
import time

import pytest

from sophon.errors import ConfigError
from sophon.server.budget import CpuBudget
from tests.support.waiting import HANG_S, wait_until


@pytest.fixture
def budget():
    made = []

    def make(cores):
        made.append(CpuBudget(cores))
        return made[-1]

    yield make
    for each in made:
        each.close()


def _burn(cpu_s):
    end_s = time.thread_time() + cpu_s
    while time.thread_time() < end_s:
        pass


def test_a_task_comes_back_with_its_result_and_its_cpu_seconds(budget):
    result, cpu_s = budget(1).submit(lambda _: _burn(0.05) or "done", 10).result()
    assert result == "done"
    assert 0.05 <= cpu_s < 0.2


def test_no_more_tasks_run_at_once_than_there_are_cores(budget):
    running, most, lock, pair = 0, 0, threading.Lock(), threading.Barrier(2)

    def task(_):
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        pair.wait(HANG_S)  # which no task passes alone
        with lock:
            running -= 1

    two = budget(2)
    for future in [two.submit(task, 1000) for _ in range(12)]:
        future.result()
    assert most == 2


def test_where_the_kernel_holds_the_server_to_a_quota_the_budget_does_not_pause(budget, monkeypatch):
    monkeypatch.setattr("sophon.server.budget.quota_here", lambda: 1e-4)
    tiny = budget(1e-4)
    # 0.2 CPU seconds at a ten-thousandth of a core would be half an hour of pauses.
    for future in [tiny.submit(lambda _: _burn(0.02), 1e6) for _ in range(10)]:
        future.result(HANG_S)


def test_a_fraction_of_a_core_is_kept_to_over_time(budget):
    quarter = budget(0.25)
    start_s = time.monotonic()
    used_s = sum(future.result()[1] for future in [quarter.submit(lambda _: _burn(0.02), 1000) for _ in range(20)])
    assert used_s / (time.monotonic() - start_s) < 0.25 * 1.4  # the burst at the start counts for a little


def test_no_cores_refuse_everything(budget):
    assert budget(0).submit(lambda _: None, 1e6) is None


def test_a_task_that_would_wait_longer_than_its_patience_is_refused(budget):
    one = budget(1)
    gate = threading.Event()
    first = one.submit(lambda _: gate.wait(), 10)
    accepted = []
    while (future := one.submit(lambda _: None, 0.1)) is not None:
        accepted.append(future)
        assert len(accepted) < 1000
    assert accepted
    assert one.backlog_s > 0.1
    assert one.submit(lambda _: None, 1000) is not None
    gate.set()
    first.result()
    for future in accepted:
        future.result()


@pytest.mark.parametrize("cores", [-1, float("nan"), float("inf"), 5000])
def test_a_number_of_cores_that_makes_no_sense_is_refused(cores):
    with pytest.raises(ConfigError, match="cores: expected a number in 0 … 4096"):
        CpuBudget(cores)


def test_an_error_in_a_task_comes_back_and_the_worker_lives_on(budget):
    one = budget(1)
    with pytest.raises(ZeroDivisionError):
        one.submit(lambda _: 1 // 0, 10).result()
    assert one.submit(lambda _: 7, 10).result()[0] == 7


def test_what_is_withdrawn_is_never_run_and_nobody_waits_behind_it(budget):
    one, begun, go, ran = budget(1), threading.Event(), threading.Event(), []
    running = one.submit(lambda _: begun.set() or go.wait(HANG_S), 1000)
    assert begun.wait(HANG_S)
    left = [one.submit(lambda _, number=number: ran.append(number), 1000) for number in range(50)]
    last = one.submit(lambda _: "last", 1000)
    one.withdraw([running, *left])
    assert one.queued <= 1
    go.set()
    assert running.result()[0] is True  # what had begun goes on
    assert last.result()[0] == "last"
    assert not ran


def test_tenants_share_the_cores_by_seconds_and_not_by_tasks(budget):
    """A hundred long tasks of one tenant, then ten short ones of another: those do not wait for all the long ones."""
    one, order = budget(1), []
    long = [one.submit(lambda _: _burn(0.02) or order.append("long"), 1000, tenant=1) for _ in range(50)]
    short = [one.submit(lambda _: _burn(0.005) or order.append("short"), 1000, tenant=2) for _ in range(10)]
    for future in short:
        future.result()
    # 0.05 s of the short ones, so about as much of the long ones, and one that had begun.
    assert order.count("long") < 12
    for future in long:
        future.cancel()


def test_who_was_away_does_not_save_up(budget):
    one = budget(1)
    for future in [one.submit(lambda _: _burn(0.02), 1000, tenant=1) for _ in range(10)]:
        future.result()
    order = []
    first = [one.submit(lambda _: _burn(0.01) or order.append(2), 1000, tenant=2) for _ in range(20)]
    second = [one.submit(lambda _: _burn(0.01) or order.append(1), 1000, tenant=1) for _ in range(20)]
    for future in (*first, *second):
        future.result()
    # Tenant 2 is 0.2 s behind, which is all that it has to do; it would run alone until then if that counted.
    assert order[:10].count(1) >= 3


def test_a_tenants_own_backlog_is_all_that_counts_for_its_patience(budget):
    one, gate = budget(1), threading.Event()
    blocked = one.submit(lambda _: gate.wait(HANG_S), 1000, tenant=1)
    many = [one.submit(lambda _: None, 1e6, tenant=1) for _ in range(2000)]
    assert one.submit(lambda _: None, 0.1, tenant=1) is None
    assert (honest := one.submit(lambda _: "done", 0.1, tenant=2)) is not None
    gate.set()
    blocked.result()
    assert honest.result()[0] == "done"
    one.withdraw(many)


def test_what_comes_first_of_a_tenant_does_not_wait_for_its_others(budget):
    one, gate, order = budget(1), threading.Event(), []
    blocked = one.submit(lambda _: gate.wait(HANG_S), 1000)
    samples = [one.submit(lambda _, n=n: order.append(n), 1000) for n in range(3)]
    opening = one.submit(lambda _: order.append("opening"), 1000, is_first=True)
    gate.set()
    for future in (blocked, *samples, opening):
        future.result()
    assert order[0] == "opening"


class Stoppable:
    """Stands for a child process: works until it is told to stop, and goes on when it may."""

    def __init__(self, work_s):
        self.go_on, self.left_s, self.stops = threading.Event(), work_s, 0
        self.go_on.set()

    def hold(self, is_held):
        self.stops += is_held
        (self.go_on.clear if is_held else self.go_on.set)()

    def __call__(self, slot):
        with slot.holdable(self.hold):
            while self.left_s > 0:
                self.go_on.wait(HANG_S)
                _burn(0.002)
                self.left_s -= 0.002
        return "done"


def test_a_long_task_makes_place_for_another_tenants_and_ends_all_the_same(budget):
    one, long = budget(1), Stoppable(1.0)
    slow = one.submit(long, 1000, tenant=1)
    while not one._running:
        time.sleep(0.001)
    begin_s = time.thread_time()
    for future in [one.submit(lambda _: _burn(0.01), 1000, tenant=2) for _ in range(20)]:
        future.result()
    while long.stops < 2 and not slow.done():  # one stop may cover all of them
        one.submit(lambda _: _burn(0.01), 1000, tenant=2).result()
    assert not slow.done()
    assert long.stops >= 2
    assert long.left_s > 0.4, "it had no more than its share meanwhile"
    assert slow.result()[0] == "done"
    assert time.thread_time() - begin_s < 1


def test_a_task_of_one_tenant_alone_is_never_held(budget):
    one, long = budget(1), Stoppable(0.3)
    tasks = [one.submit(long, 1000, tenant=1), *(one.submit(lambda _: None, 1000, tenant=1) for _ in range(5))]
    for task in tasks:
        task.result()
    assert long.stops == 0


def test_a_closing_budget_lets_what_was_held_go_on(budget):
    one, long = budget(1), Stoppable(0.5)
    slow = one.submit(long, 1000, tenant=1)
    gate = threading.Event()
    other = one.submit(lambda _: gate.wait(HANG_S), 1000, tenant=2)
    while not long.stops:
        time.sleep(0.001)
    closing = threading.Thread(target=one.close)
    closing.start()
    gate.set()
    closing.join(HANG_S)
    assert not closing.is_alive()
    assert slow.result(0)[0] == "done"
    assert other.result(0)[0] is True


class Endless(Stoppable):
    """Goes on until it is told to end."""

    def __init__(self):
        super().__init__(1.0)
        self.ends = threading.Event()

    def __call__(self, slot):
        with slot.holdable(self.hold):
            while not self.ends.is_set():
                self.go_on.wait(HANG_S)
                _burn(0.001)


def test_long_tasks_of_two_tenants_take_turns_when_no_thread_is_left_to_look(budget):
    one, tasks = budget(1), (Endless(), Endless())
    futures = [one.submit(task, 1000, tenant=tenant) for tenant, task in enumerate(tasks)]
    wait_until(lambda: all(task.stops >= 3 for task in tasks))
    for task in tasks:
        task.ends.set()
        task.go_on.set()
    for future in futures:
        future.result(HANG_S)


def test_a_task_is_charged_for_cpu_and_not_for_the_time_that_a_busy_machine_took(budget):
    one, ends, held, charged = budget(1), threading.Event(), threading.Event(), []
    gone_s = time.monotonic()

    def starved(slot):  # has the place for long, but the machine gives it next to no CPU
        with slot.holdable(lambda is_held: held.set() if is_held else None, lambda: 0.004):
            ends.wait(HANG_S)
        slot.elsewhere_s = 0.004

    task = one.submit(starved, 1000, tenant=1)
    wait_until(lambda: time.monotonic() > gone_s + 0.2)
    other = one.submit(lambda _: charged.append(one._shares.of(1).had_s), 1000, tenant=2)
    other.result(HANG_S)
    ends.set()
    task.result(HANG_S)
    assert held.is_set()
    assert charged == [pytest.approx(2 * 0.004, abs=0.004)]
    assert one._shares.of(1).had_s >= charged[0], "nothing is given back, which its next task could use up at once"
