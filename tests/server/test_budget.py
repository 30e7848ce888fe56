import threading
import time

import pytest

from sophon.errors import ConfigError
from sophon.server.budget import CpuBudget
from tests.support.waiting import HANG_S


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
    monkeypatch.setattr("sophon.server.budget.quota_here", lambda: 0.01)
    tiny = budget(0.01)
    # 0.2 CPU seconds at a hundredth of a core would be twenty seconds of pauses.
    for future in [tiny.submit(lambda _: _burn(0.02), 1000) for _ in range(10)]:
        future.result(10)


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
    assert one._waiting <= 2
    assert len(one._queue) <= 1
    go.set()
    assert running.result()[0] is True  # what had begun goes on
    assert last.result()[0] == "last"
    assert not ran
