"""The shaped link: as fast as it says, from the first moment, and gone afterwards."""

import os
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from sophon.bench.rig import goodput, namespaces, quota
from sophon.bench.rig.namespaces import ShapedLink, can_shape, remove_leftovers
from sophon.bench.rig.processes import RigError, Server, Trainer
from sophon.bench.rig.shell import ToolError, call, tool
from sophon.bench.rig.testbed import open_testbed
from sophon.process.children import children_of
from tests.support.servers import make_images
from tests.support.waiting import HANG_S, wait_until

needs_root = pytest.mark.skipif(not can_shape(), reason="needs root and iproute2")
_RATE = 4e6
_PAYLOAD_RATE = _RATE * 1448 / 1514  # of each frame
_ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}


def _namespaces():
    return {line.split()[0] for line in call("ip", "netns", "list").splitlines() if line.strip()}


def _lives(pid):
    return Path(f"/proc/{pid}").exists()


def _mine():
    return {name for name in _namespaces() if name.startswith(f"sophon-{os.getpid()}-")}


@needs_root
def test_the_kernel_is_told_the_rate():
    with ShapedLink(_RATE) as link:
        assert "tbf" in (told := call(*link.storage.enter, "tc", "qdisc", "show"))
        assert "rate 32Mbit" in told


@needs_root
@pytest.mark.slow
def test_the_rate_holds_within_five_percent_and_the_first_second_is_no_gift():
    with open_testbed(_RATE, "tbf") as testbed:
        facts = testbed.facts
        assert facts.shaped_by == "tbf"
        assert facts.congestion_control
        assert 0.95 <= facts.goodput_bytes_per_s / _PAYLOAD_RATE <= 1.01
        assert len(testbed.interface) <= 15


_RECEIVE = (
    "import sys; from sophon.bench.rig.goodput import receive; print(receive(sys.argv[1], int(sys.argv[2]), 2.0))"
)


@needs_root
def test_the_link_is_measured_and_not_how_busy_the_machine_is():
    """Sender and receiver stand still for most of the time, as on a machine with much else to do."""
    with ShapedLink(_RATE) as link, ExitStack() as stack:

        def start(node, *command):
            process = subprocess.Popen(
                [*node.enter, sys.executable, *command], stdout=subprocess.PIPE, text=True, env=_ENVIRONMENT
            )
            stack.callback(process.stdout.close)
            stack.callback(process.wait)
            stack.callback(process.kill)
            return process

        sender = start(link.storage, goodput.__file__, link.storage.address)
        receiver = start(link.trainer, "-c", _RECEIVE, link.storage.address, sender.stdout.readline().strip())
        while receiver.poll() is None:
            for number, pause_s in ((signal.SIGSTOP, 0.4), (signal.SIGCONT, 0.1)):
                sender.send_signal(number)
                receiver.send_signal(number)
                time.sleep(pause_s)
        assert 0.95 <= float(receiver.stdout.read()) / _PAYLOAD_RATE <= 1.01


@needs_root
def test_nothing_is_left_behind_whatever_happens():
    seen = []

    def interrupted():
        with open_testbed(_RATE, "tbf") as testbed:
            seen.extend([testbed.trainer.pid, _mine()])
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert len(seen[1]) == 2
    assert not _mine()
    assert not _lives(seen[0])


@needs_root
def test_a_run_that_is_told_to_end_takes_everything_with_it():
    run = "from sophon.bench.rig.testbed import open_testbed\nimport os, signal\nwith open_testbed(4e6, 'tbf'):\n"
    run += " os.kill(os.getpid(), signal.SIGTERM)\n"
    with subprocess.Popen([sys.executable, "-c", run], env=_ENVIRONMENT) as process:
        assert process.wait(HANG_S) == 128 + signal.SIGTERM
    assert not {name for name in _namespaces() if name.startswith(f"sophon-{process.pid}-")}


@needs_root
def test_a_link_that_cannot_be_built_leaves_nothing(monkeypatch):
    monkeypatch.setattr(namespaces, "_QUEUE", "no time")
    with pytest.raises(ToolError, match="tbf"), ShapedLink(_RATE):
        pass
    assert not _mine()


_KILLED = """
import sys, time
from sophon.bench.rig.namespaces import ShapedLink
import subprocess
link = ShapedLink(4e6).__enter__()
child = subprocess.Popen([*link.storage.enter, "sleep", "600"])
print(link.storage.namespace, child.pid, flush=True)
time.sleep(600)
"""


@needs_root
def test_what_a_killed_run_left_is_removed_by_the_next():
    with subprocess.Popen(
        [sys.executable, "-c", _KILLED],
        stdout=subprocess.PIPE,
        env=_ENVIRONMENT,
    ) as run:
        name, child = run.stdout.readline().decode().split()
        assert name in _namespaces()
        assert name not in remove_leftovers(), "a run that lives keeps its namespaces"
        run.send_signal(signal.SIGKILL)
        run.wait()
    assert name in remove_leftovers()
    assert name not in _namespaces()
    wait_until(lambda: not _lives(child))


@pytest.mark.skipif(quota.mechanism() is None, reason="needs root and a cgroup hierarchy for CPU")
def test_a_quota_holds_a_process_to_its_share():
    burn = (
        "import sys, time\nsys.stdin.readline()\nstart = time.monotonic()\nwhile time.monotonic() - start < 1: pass\n"
    )
    burn += "print(time.process_time())"
    with subprocess.Popen([sys.executable, "-c", burn], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        with quota.Quota(0.2, process.pid) as held:
            out, _ = process.communicate(b"\n")
            folder = held._folder
            assert folder.exists()
        assert not folder.exists()
    assert 0 < float(out) <= 0.3


@pytest.mark.slow
def test_without_root_the_server_holds_the_rate_itself(tmp_path):
    images = make_images(tmp_path / "train", 8)
    with open_testbed(_RATE, "server") as testbed:
        assert testbed.facts.shaped_by == "server"
        assert testbed.interface == "lo"
        with testbed.server({"data": images}, 0.5) as server:
            said = testbed.trainer.do("spend", url=server.url("data"), cut="2:raw", samples=[0, 1], seed=0, epoch=0)
            assert all(150_528 <= row[0] < 151_000 for row in said["rows"])


def _own_cpu_s(pid):
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK")


def test_the_cpu_of_a_servers_child_processes_counts_while_they_run_and_afterwards(tmp_path):
    images = make_images(tmp_path / "train", 8)
    with Server({"data": images}, 1) as server, Trainer() as trainer:

        def spend(epoch):
            trainer.do("spend", url=server.url("data"), cut="2:raw", samples=[0, 1], seed=0, epoch=epoch)

        spend(0)
        (child,) = children_of(server.pid)
        assert os.getsid(child) != os.getsid(server.pid), "else this test shows nothing"
        own_s, child_s, before_s = _own_cpu_s(server.pid), _own_cpu_s(child), server.cpu_s()
        assert child_s > 0
        assert before_s >= own_s + child_s
        os.kill(child, signal.SIGKILL)
        spend(1)  # now it is missed, and replaced
        assert child not in children_of(server.pid)
        assert server.cpu_s() >= before_s


def test_a_server_that_does_not_start_says_why(tmp_path):
    with pytest.raises(RigError, match="nowhere"), Server({"data": tmp_path / "nowhere"}, 1):
        pass


def test_what_fails_at_the_trainer_is_raised_here():
    with Trainer() as trainer:
        with pytest.raises(RigError, match="KeyError"):
            trainer.do("digest", name="nobody", epoch=0)
        assert trainer.do("hello") == "hello"


def test_a_tool_that_is_not_there_is_named():
    assert tool("no-such-tool") is None
    with pytest.raises(ToolError, match="no-such-tool is not installed"):
        call("no-such-tool")
