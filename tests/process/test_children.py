"""What a process and those below it have used, whatever sessions they are in: real processes."""

import subprocess
import sys
from pathlib import Path

import pytest

from sophon.process.children import children_of, kill_tree, tree_cpu_s
from tests.support.waiting import wait_until

_TICKS_S = 0.03  # of a child that has ended, the kernel counts hundredths
_BURN = "import time\nwhile time.process_time() < 0.3: pass\n"
_CHILD = f"{_BURN}print('burnt', flush=True)\nimport sys\nsys.stdin.read()\n"
_PARENT = f"""
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", {_CHILD!r}], start_new_session=True)
child.wait()
print("waited", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def parent():
    with subprocess.Popen(
        [sys.executable, "-c", _PARENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        yield process
        process.kill()


def test_the_cpu_of_a_child_counts_in_a_session_of_its_own_and_after_its_end(parent):
    assert parent.stdout.readline() == "burnt\n"
    (child,) = children_of(parent.pid)
    child_s, running_s = tree_cpu_s(child), tree_cpu_s(parent.pid)
    assert running_s >= child_s >= 0.3 - _TICKS_S
    subprocess.run(["kill", str(child)], check=True)
    assert parent.stdout.readline() == "waited\n"
    assert children_of(parent.pid) == []
    assert tree_cpu_s(parent.pid) >= running_s - _TICKS_S


def test_a_process_that_is_gone_is_not_taken_for_one_that_was_idle():
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        process.wait()
    with pytest.raises(FileNotFoundError):
        tree_cpu_s(process.pid)


def test_the_cpu_of_a_running_process_is_counted_more_finely_than_in_hundredths(parent):
    assert parent.stdout.readline() == "burnt\n"
    (child,) = children_of(parent.pid)
    found_s = {tree_cpu_s(child), tree_cpu_s(parent.pid)}
    assert any(abs(spent_s * 100 - round(spent_s * 100)) > 1e-6 for spent_s in found_s)


def test_what_a_killed_process_has_started_ends_with_it(parent):
    assert parent.stdout.readline() == "burnt\n"
    (child,) = children_of(parent.pid)
    kill_tree(parent.pid)
    parent.wait()
    wait_until(lambda: not runs(child), "the child lives")


def runs(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except FileNotFoundError:
        return False
