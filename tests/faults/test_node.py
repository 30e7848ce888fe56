"""The node is killed, stopped, drained; its workers are; it is gone."""

import contextlib
import os
import signal
import time

import pytest

from sophon.bench.children import children_of
from sophon.errors import RetryableError
from tests.faults.struck import MOMENTS, POLICIES, SLOWLY, Struck, warnings_allowed
from tests.support.servers import serve


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("moment", MOMENTS)
def test_killed_and_started_again(images, expected, moment, policy):
    with serve(images, options=SLOWLY) as server:

        def fault():
            server.kill()
            server.start()

        assert Struck(server.url, fault, moment, policy=policy).digest() == expected


@pytest.mark.parametrize("policy", POLICIES)
def test_stopped_for_five_seconds(images, expected, policy):
    with serve(images, options=SLOWLY) as server:

        def fault():
            os.kill(server.pid, signal.SIGSTOP)
            time.sleep(5)
            os.kill(server.pid, signal.SIGCONT)

        assert Struck(server.url, fault, "mid-stream", policy=policy).digest() == expected


@pytest.mark.parametrize("moment", ["first batch", "mid-stream"])
def test_drained_and_started_again(images, expected, moment):
    codes = []
    with serve(images, options=SLOWLY) as server:

        def fault():
            codes.append(server.stop())
            server.start()

        assert Struck(server.url, fault, moment, policy="2:webp").digest() == expected
    assert codes == [0], "what was under way was ended, and no more taken"


def test_a_worker_process_killed_time_and_again(images, expected):
    with serve(images, cores=2, options=SLOWLY) as server:
        kills = []

        def fault():
            for _ in range(5):
                for child in children_of(server.pid):
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(child, signal.SIGKILL)
                        kills.append(child)
                time.sleep(0.3)

        struck = Struck(server.url, fault, "first batch", policy="2:webp")
        with warnings_allowed():
            assert struck.digest() == expected
        assert len(kills) >= 2
        os.kill(server.pid, 0)


def test_gone_for_good(images):
    with serve(images, options=SLOWLY) as server:
        struck = Struck(server.url, server.kill, "mid-stream", deadline_s=6)
        start_s = time.monotonic()
        with pytest.raises(
            RetryableError, match=r"no answer for 6 s, after \d+ tries.*Is `sophon serve` running there"
        ):
            struck.digest()
        assert time.monotonic() - start_s < 20
