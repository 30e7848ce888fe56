"""What a process and those below it have used, whatever sessions they are in: real processes."""

import subprocess
import sys

import pytest

from sophon.process.children import children_of, tree_cpu_s

_TICKS_S = 0.03  # the kernel counts in hundredths
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
