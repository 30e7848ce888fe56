"""Plans that are made in the middle of an epoch: in a thread of their own, which nobody waits for."""

import os
import threading
from dataclasses import replace

import pytest

import sophon
from sophon.loader.planning import planner as planner_module
from sophon.loader.planning import replanning
from sophon.loader.planning.background import Background
from sophon.pipeline import Pipeline, ops
from sophon.plan.plan import make_plan
from tests.support.python_process import run_python
from tests.support.servers import digest, make_images, serve
from tests.support.waiting import HANG_S, wait_until

RECIPE = Pipeline([ops.Decode(), ops.RandomResizedCrop(32), ops.ToTensor()])
COUNT = 48


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with serve(make_images(tmp_path_factory.mktemp("data") / "train", COUNT)) as running:
        yield running


class _Plans:
    """Stands before `make_plan`: notes in which threads it is called, and holds those up that replan, on demand."""

    def __init__(self):
        self.threads = []
        self.may_go_on = threading.Event()
        self.may_go_on.set()
        self.is_planning = threading.Event()
        self.error = None

    def __call__(self, *given):
        name = threading.current_thread().name
        self.threads.append(name)
        if name.startswith("sophon-"):
            self.is_planning.set()
            assert self.may_go_on.wait(HANG_S)
            if self.error is not None:
                raise self.error
        return make_plan(*given)


@pytest.fixture
def plans(monkeypatch):
    made = _Plans()
    monkeypatch.setattr(planner_module, "make_plan", made)
    yield made
    made.may_go_on.set()


@pytest.fixture
def loader(server, monkeypatch):
    """A loader with a plan, whose next epochs begin with a link that is not what they were planned for."""
    # The buffer holds a batch or two, so that samples come for as long as batches are taken.
    loader = sophon.DataLoader(
        server.url,
        RECIPE,
        batch_size=8,
        num_workers=sophon.Workers(2, buffer_bytes=200_000),
        policy=sophon.Planning(profile=False),
    )
    for _ in range(2):
        list(loader)
    assert loader.revisions == 0
    monkeypatch.setattr(replanning, "SETTLE_S", 0.0)
    monkeypatch.setattr(replanning, "LOOK_S", 0.0)
    planner = loader._planner
    begin = planner.begin

    def begin_and_change(*given):
        begin(*given)
        seen = planner.plan.resources
        planner.plan = replace(planner.plan, resources=seen.having(link_bytes_per_s=9 * seen.link_bytes_per_s))

    planner.begin = begin_and_change
    return loader


def _planning_threads():
    return [thread for thread in threading.enumerate() if thread.name.startswith("sophon-plan-")]


def test_a_plan_in_the_middle_of_an_epoch_is_made_by_a_thread_of_its_own(loader, plans):
    batches = iter(loader)
    next(batches)
    wait_until(lambda: loader.revisions)
    list(batches)
    anew = [name for name in plans.threads if name != "MainThread"]
    assert anew
    assert all(name.startswith("sophon-plan-") for name in anew)


def test_an_epoch_goes_on_and_ends_while_a_plan_is_in_the_making_which_is_then_dropped(server, loader, plans):
    expected = digest(sophon.DataLoader(server.url, RECIPE, batch_size=8, policy="none"))
    loader.set_epoch(0)
    plans.may_go_on.clear()
    batches = iter(loader)
    first = next(batches)
    assert plans.is_planning.wait(HANG_S)
    rest = list(batches)
    assert digest([first, *rest]) == expected
    kept, cuts = loader.plan, loader.dataset.samples.assignment
    (thread,) = _planning_threads()
    plans.may_go_on.set()
    thread.join(HANG_S)
    assert not thread.is_alive()
    assert (loader.plan, loader.dataset.samples.assignment, loader.revisions) == (kept, cuts, 0)


def test_there_are_never_two_at_once(loader, plans):
    plans.may_go_on.clear()
    list(loader)
    assert len(plans.threads) == 2  # before the epoch, and in it
    assert len(_planning_threads()) == 1


def test_a_loader_that_is_left_in_the_middle_waits_for_no_plan(loader, plans):
    plans.may_go_on.clear()
    batches = iter(loader)
    next(batches)
    assert plans.is_planning.wait(HANG_S)
    batches.close()  # comes back, though the plan is not made
    assert _planning_threads()
    plans.may_go_on.set()
    wait_until(lambda: not _planning_threads())
    assert loader.revisions == 0


def test_an_error_of_a_plan_is_raised_where_batches_are_taken(loader, plans):
    plans.error = ZeroDivisionError("of the plan")
    plans.may_go_on.clear()
    batches = iter(loader)
    next(batches)
    assert plans.is_planning.wait(HANG_S)
    plans.may_go_on.set()
    wait_until(lambda: not _planning_threads())
    with pytest.raises(ZeroDivisionError, match="of the plan"):
        list(batches)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_in_a_forked_child_nothing_is_under_way():
    background, may_end = Background(), threading.Event()
    assert background.start(lambda _: may_end.wait())
    pid = os.fork()
    if pid == 0:  # pragma: no cover - the child
        done = threading.Event()
        fine = background.start(lambda _: done.set()) and done.wait(HANG_S)
        os._exit(0 if fine else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert not background.start(lambda _: None)
    may_end.set()
    wait_until(lambda: not _planning_threads())


def test_a_process_that_ends_meanwhile_tells_the_job_and_waits_until_it_has_noticed():
    script = (
        "import time, threading\n"
        "from sophon.loader.planning.background import Background\n"
        "def run(job):\n"
        "    while job.is_wanted: time.sleep(0.001)\n"
        "    print('noticed', flush=True)\n"
        "Background().start(run)\n"
    )
    done = run_python("-c", script)
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, "noticed", "")
