"""One process that is kept running, whoever watches it."""

import os
import signal
import time
from types import SimpleNamespace

import pytest

from sophon.cluster.keeper import LOOK_S, Keeper
from tests.support.waiting import wait_until


@pytest.fixture
def keeper(tmp_path):
    keeper = Keeper(tmp_path / "kept", ["registry", "--settle", "0"])
    yield keeper
    keeper.stop()
    keeper.close()


def looked(keeper):
    keeper.look()
    time.sleep(LOOK_S / 5)
    return keeper.ready


def test_it_is_started_again_on_its_port_and_adopted_by_the_next_keeper(keeper, tmp_path):
    wait_until(lambda: looked(keeper), "it is never ready")
    port, pid = keeper.ready["port"], keeper.child.pid
    assert os.getsid(pid) == pid != os.getsid(0)
    keeper.look()
    assert (keeper.starts, keeper.child.pid) == (1, pid)

    keeper.close()  # as if it had died
    following = Keeper(tmp_path / "kept", ["registry", "--settle", "0"])
    assert following.look()
    assert following.adopted
    assert (following.starts, following.child.pid) == (0, pid)
    assert keeper.look()  # only looks on, since another one acts
    assert keeper.starts == 1

    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: looked(following) and following.child.pid != pid, "it is not started again")
    assert following.ready["port"] == port
    following.stop()
    assert not following.child.is_running
    following.close()


def test_other_arguments_have_it_started_anew(keeper, tmp_path):
    wait_until(lambda: looked(keeper), "it is never ready")
    pid = keeper.child.pid
    keeper.close()
    other = Keeper(tmp_path / "kept", ["registry", "--settle", "1"])
    wait_until(lambda: looked(other) and other.child.pid != pid, "it is not started anew")
    other.stop()
    other.close()


def test_what_dies_at_once_is_started_ever_more_rarely(tmp_path, monkeypatch):
    now_s, begun_s = [0.0], []
    monkeypatch.setattr("sophon.cluster.keeper.time", SimpleNamespace(monotonic=lambda: now_s[0]))
    keeper = Keeper(tmp_path / "kept", ["registry", "--no-such-option"])
    while len(begun_s) < 4:
        keeper.look()
        if keeper.starts > len(begun_s):
            begun_s.append(now_s[0])
        wait_until(lambda: not keeper.child.is_running, "it lives")
        now_s[0] += LOOK_S
    assert begun_s == [0.0, 0.25, 0.75, 1.75]
    wait_until(lambda: "no-such-option" in keeper.words().lower(), "it says why")
    keeper.stop()
    keeper.close()
