"""What becomes of an epoch when its server is late, stops, dies, falls silent or comes back."""

import os
import signal
import threading
import time

import pytest

import sophon
from sophon.errors import UnavailableError
from tests.support.marks import slow
from tests.support.servers import RECIPE, digest, serve
from tests.support.waiting import HANG_S


@pytest.mark.parametrize(("policy", "workers"), [("resize", 2), *slow(("none", 2), ("none", 0), ("resize", 0))])
def test_a_server_killed_and_started_again_in_the_middle_of_an_epoch_changes_nothing(images, policy, workers, expected):
    with serve(images) as server:
        loader = sophon.DataLoader(
            server.url,
            RECIPE,
            batch_size=8,
            shuffle=True,
            seed=5,
            num_workers=sophon.Workers(workers, buffer_bytes=1 << 16),
            policy=policy,
        )
        batches = []
        for epoch in range(2):
            for number, batch in enumerate(loader):
                batches.append(batch)
                if (epoch, number) == (0, 1):
                    server.kill()
                    threading.Timer(0.3, server.start).start()
        assert digest(batches) == expected
        assert loader.stats.samples == 82


def test_a_server_gone_for_good_is_an_error_within_the_deadline_that_says_what_to_do(images):
    with serve(images) as server:
        loader = sophon.DataLoader(
            server.url,
            RECIPE,
            batch_size=4,
            num_workers=sophon.Workers(1, buffer_bytes=1),
            faults=sophon.Faults(deadline_s=3),
        )
        batches = iter(loader)
        next(batches)
        server.kill()
        start_s = time.monotonic()
        with pytest.raises(UnavailableError) as caught:
            for _ in batches:
                pass
    assert time.monotonic() - start_s < HANG_S
    assert loader.stats.waited_s > 0.8 * 3, "time spent in vain is waiting too"
    text = str(caught.value)
    assert server.url in text
    assert "tries" in text
    assert "Is `sophon serve` running there" in text
    assert "deadline_s" in text


def test_a_server_that_never_was_is_an_error_within_the_deadline():
    start_s = time.monotonic()
    with pytest.raises(UnavailableError, match=r"tries.*grpc://127\.0\.0\.1:1/data.*Is `sophon serve` running"):
        sophon.DataLoader("grpc://127.0.0.1:1/data", RECIPE, faults=sophon.Faults(deadline_s=1.0))
    assert 1.0 <= time.monotonic() - start_s < HANG_S


def test_a_trainer_may_start_before_its_server(images):
    with serve(images) as server:
        pass  # its port is known and free now
    starter = threading.Timer(0.5, server.start)
    starter.start()
    try:
        assert len(sophon.DataLoader(server.url, RECIPE, batch_size=41)) == 1
    finally:
        starter.join()
        server.stop()


def test_a_stopped_server_is_waited_for(images, expected):
    with serve(images) as server:
        loader = sophon.DataLoader(
            server.url, RECIPE, batch_size=8, shuffle=True, num_workers=sophon.Workers(2, buffer_bytes=1 << 16), seed=5
        )
        batches = []
        for _ in range(2):
            for batch in loader:
                batches.append(batch)
                if len(batches) == 2:
                    os.kill(server.pid, signal.SIGSTOP)
                    threading.Timer(0.5, os.kill, (server.pid, signal.SIGCONT)).start()
    assert digest(batches) == expected


def test_sigterm_ends_what_is_under_way_and_then_the_server(images):
    server = serve(images).start()
    loader = sophon.DataLoader(server.url, RECIPE, batch_size=41, num_workers=1)
    assert len(list(loader)) == 1
    assert server.stop() == 0


@pytest.mark.parametrize("workers", [2, *slow(0)])
def test_a_server_that_falls_silent_is_an_error_within_the_deadline(images, workers):
    with serve(images) as server:
        loader = sophon.DataLoader(
            server.url,
            RECIPE,
            batch_size=4,
            num_workers=sophon.Workers(workers, buffer_bytes=1),
            faults=sophon.Faults(deadline_s=3),
        )
        batches = iter(loader)
        next(batches)
        os.kill(server.pid, signal.SIGSTOP)
        start_s = time.monotonic()
        try:
            with pytest.raises(UnavailableError, match="no answer for"):
                list(batches)
        finally:
            os.kill(server.pid, signal.SIGCONT)
        assert time.monotonic() - start_s < HANG_S


def test_a_server_with_a_client_that_does_not_read_still_ends(images):
    server = serve(images).start()
    loader = sophon.DataLoader(server.url, RECIPE, batch_size=2, num_workers=sophon.Workers(1, buffer_bytes=1))
    batches = iter(loader)
    next(batches)
    assert server.stop() in (0, 1)
    del batches
