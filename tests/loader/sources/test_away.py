"""What is said of sources that do not answer: by hand with a clock, and with real servers."""

import logging
import socket
import threading

import pytest

from sophon import AwayWarning, DataLoader, Faults, UnavailableError
from sophon.errors import RetryableError
from sophon.loader.sources import away
from sophon.loader.sources.away import Absences
from tests.support.servers import RECIPE, digest, make_images, serve
from tests.support.waiting import wait_until


def _said(caplog):
    return [record.getMessage() for record in caplog.records if record.name == "sophon.nodes"]


def test_an_absence_is_told_of_after_some_seconds_ever_more_rarely_and_when_it_ends(caplog):
    now_s = [100.0]
    absences = Absences(["grpc://a:1/x", "grpc://b:1/x"], 600.0, lambda: now_s[0])
    with caplog.at_level(logging.INFO, "sophon"):
        for now_s[0] in range(100, 131):
            absences.failed(1, RetryableError("grpc://b:1/x: connection refused"), since_s=100.0)
        absences.answered(0)
        absences.answered(1)
        absences.answered(1)
    lines = _said(caplog)
    assert lines[0] == (
        "no answer from grpc://b:1/x for 3 s, after 4 tries; the last one: connection refused. Retrying for "
        "up to 600 s in total"
    )
    assert [line.split(" for ")[1].split(",")[0] for line in lines[:-1]] == ["3 s", "6 s", "12 s", "24 s"]
    assert lines[-1] == "grpc://b:1/x answers again, after 30 s and 31 tries"


def test_a_short_absence_is_nobodys_business(caplog):
    now_s = [0.0]
    absences = Absences(["grpc://a:1/x"], 60.0, lambda: now_s[0])
    with caplog.at_level(logging.INFO, "sophon"):
        now_s[0] = 2.0
        absences.failed(0, RetryableError("lost"), since_s=0.0)
        absences.answered(0)
    assert not _said(caplog)


def test_a_wrong_port_is_told_before_the_deadline_with_the_number_of_tries(monkeypatch):
    monkeypatch.setattr(away, "FIRST_S", 1.0)
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # and does not listen
        url = f"grpc://127.0.0.1:{nobody.getsockname()[1]}/train"
        with (
            pytest.warns(
                AwayWarning, match=r"no answer from .* for \d s, after \d+ (try|tries); .* nothing is listening"
            ) as told,
            pytest.raises(UnavailableError, match=r"after \d+ (try|tries); .*Is `sophon serve` running there"),
        ):
            DataLoader(url, RECIPE, faults=Faults(deadline_s=4))
    assert told[0].filename == __file__  # the user's own line


def test_a_node_that_goes_and_comes_back_is_logged_and_the_batches_are_the_same(tmp_path, caplog, monkeypatch):
    server = serve(make_images(tmp_path / "images", 12))
    with caplog.at_level(logging.INFO, "sophon"), server:
        loader = DataLoader(server.url, RECIPE, batch_size=2, num_workers=0, policy="none")
        wanted = digest(loader)
        loader.set_epoch(0)
        monkeypatch.setattr(away, "FIRST_S", 0.2)
        server.kill()
        back = threading.Thread(target=lambda: (wait_until(lambda: _said(caplog)), server.start()))
        back.start()
        assert digest(loader) == wanted
        back.join()
        loader.close()
    lines = _said(caplog)
    assert lines[0].startswith(f"no answer from {server.url} for ")
    assert lines[-1].startswith(f"{server.url} answers again, after ")
