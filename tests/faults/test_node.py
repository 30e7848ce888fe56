"""The node is killed, stopped, drained; its workers are; it is gone."""

import contextlib
import os
import signal
import time

import pytest

from sophon.errors import UnavailableError
from sophon.process.children import children_of
from tests.faults.struck import MOMENTS, POLICIES, SLOWLY, Struck, warnings_allowed
from tests.support.marks import slow
from tests.support.servers import serve
from tests.support.waiting import HANG_S
from tests.support.warm import cold


@pytest.fixture(scope="module")
def kept(images):
    with serve(images, options=SLOWLY) as running:
        yield running


@pytest.fixture
def server(kept):
    """A node that is up, whatever was done to it before."""
    if not kept.is_running:
        kept.start()
    return kept


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("moment", MOMENTS)
def test_killed_and_started_again(server, expected, moment, policy):
    def fault():
        server.kill()
        server.start()

    assert Struck(server.url, fault, moment, policy=policy).digest() == expected


@pytest.mark.parametrize("policy", POLICIES)
def test_stopped_for_two_seconds(server, expected, policy):
    def fault():
        os.kill(server.pid, signal.SIGSTOP)
        time.sleep(2)
        os.kill(server.pid, signal.SIGCONT)

    assert Struck(server.url, fault, "mid-stream", policy=policy).digest() == expected


@pytest.mark.parametrize("moment", [*slow("first batch"), "mid-stream"])
def test_drained_and_started_again(server, expected, moment):
    codes = []

    def fault():
        codes.append(server.stop(HANG_S))
        server.start()

    assert Struck(server.url, fault, moment, policy="2:webp").digest() == expected
    assert codes == [0], "what was under way was ended, and no more taken"


@pytest.mark.slow
def test_a_worker_process_killed_time_and_again(images, expected):
    with cold(), serve(images, cores=2, options=SLOWLY) as server:
        kills = []

        def fault():
            while len(kills) < 8 and not struck.is_over.wait(0.2):
                for child in children_of(server.pid):
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(child, signal.SIGKILL)
                        kills.append(child)

        struck = Struck(server.url, fault, "first batch", policy="2:webp")
        with warnings_allowed():
            assert struck.digest() == expected
        assert len(kills) >= 2
        os.kill(server.pid, 0)


def test_gone_for_good(server):
    struck = Struck(server.url, server.kill, "mid-stream", deadline_s=3)
    start_s = time.monotonic()
    with pytest.raises(
        UnavailableError, match=r"no answer for 3 s, after \d+ (try|tries).*Is `sophon serve` running there"
    ):
        struck.digest()
    assert time.monotonic() - start_s < HANG_S
