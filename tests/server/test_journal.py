"""What the server logs: real processes, and the clock of the limits by hand."""

import json
import logging
import subprocess
import sys

import pytest

from sophon import AccessError, ConfigError, Credentials, DataLoader, RemoteDataset
from sophon.link.wire import Reply, Request
from sophon.server.journal import Journal, host_of
from tests.support.servers import RECIPE, make_images
from tests.support.waiting import wait_until

TOKEN = "a-token-of-more-than-sixteen-letters"


@pytest.fixture
def served(tmp_path):
    """A server that asks for a token and logs JSON, with a file that is no picture; yields its address and the log."""
    images = make_images(tmp_path / "images", 12, classes=0)
    sorted(images.iterdir())[2].write_bytes(b"no picture")
    (tmp_path / "tokens").write_text(f"{TOKEN} *\n")
    ready, log = tmp_path / "ready.json", tmp_path / "log"
    command = [sys.executable, "-m", "sophon", "serve", str(images), "--port", "0", "--ready-file", str(ready)]
    command += ["--token-file", str(tmp_path / "tokens"), "--cache-dir", str(tmp_path / "cache")]
    command += ["--log-format", "json", "--isolation", "thread"]
    with log.open("wb") as output, subprocess.Popen(command, stderr=output, stdout=subprocess.PIPE) as process:
        wait_until(ready.exists)
        yield json.loads(ready.read_text())["url"], lambda: [json.loads(line) for line in log.read_text().splitlines()]
        process.terminate()
        assert process.stdout.read() == b""  # everything is in the log, as JSON


def test_a_server_says_who_came_who_was_refused_and_what_is_broken(served):
    url, lines = served
    right = Credentials(TOKEN)
    with pytest.raises(AccessError, match="--token-file"):
        RemoteDataset(f"{url}/images", RECIPE, credentials=Credentials("a-wrong-token-of-enough-letters"))
    with pytest.raises(ConfigError, match="no data set 'nothing' here; available: images") as refused:
        RemoteDataset(f"{url}/nothing", RECIPE, credentials=right)
    assert not getattr(refused.value, "__notes__", [])  # nobody finds a wrong name in the node's code
    assert refused.value.__cause__ is None
    with DataLoader(f"{url}/images", RECIPE, batch_size=12, policy="all", on_error="skip", credentials=right) as loader:
        assert [len(batch) for batch in loader] == [11]
    events = {line["event"]: line for line in lines()}
    assert events["serving"]["samples"] == 12
    assert {"time", "level", "message", "pid"} <= set(events["ready"])
    refusals = [line for line in lines() if line["event"] == "refused"]
    assert [(line["peer"], line["type"]) for line in refusals] == [
        ("127.0.0.1", "AccessError"),
        ("127.0.0.1", "ConfigError"),
    ]
    assert events["connected"]["peer"] == "127.0.0.1"
    assert events["connected"]["dataset"] == "images"
    assert "RandomResizedCrop" in events["connected"]["message"]
    assert events["broken"]["sample"] == 2
    assert events["broken"]["id"].startswith("0002")
    assert TOKEN not in json.dumps(lines())
    assert "a-wrong-token" not in json.dumps(lines())


def _said(caplog):
    return [record.getMessage() for record in caplog.records if record.name == "sophon.server"]


def _reply(**told):
    reply = Reply(0, **{name: value for name, value in told.items() if name not in ("cpu_s", "reason")})
    reply.cpu_s, reply.reason = told.get("cpu_s", 0.0), told.get("reason")
    return reply


def test_a_slow_sample_is_told_of_once_a_minute_with_the_number_of_times(caplog):
    now_s = [0.0]
    journal = Journal(lambda _, sample: f"{sample}.jpg", lambda: now_s[0])
    request = Request("train", {"ops": []}, 0, 0, (7,), ())
    with caplog.at_level(logging.INFO, "sophon"):
        for now_s[0] in (0.0, 1.0, 59.0, 61.0):
            journal.sent(request, [_reply(cpu_s=3.5), _reply(cpu_s=0.1)])
    one = "sample 7 of train (7.jpg) is slow: 3.5 s of CPU"
    assert _said(caplog) == [one, f"{one} (3 times)"]


def test_what_the_node_as_a_whole_lacks_is_said_once_and_what_is_remembered_is_bounded(caplog):
    journal = Journal(lambda _, sample: f"{sample}.jpg", lambda: 0.0)
    with caplog.at_level(logging.INFO, "sophon"):
        for sample in range(10):
            request = Request("train", {"ops": []}, 0, 0, (sample,), ())
            journal.sent(request, [_reply(reason="overload")])
        for host in range(10_000):
            journal.refused(f"ipv4:10.0.{host // 256}.{host % 256}:999", AccessError("who are you"))
    assert _said(caplog)[0] == "train: samples are sent raw: no core was available in time"
    assert len(_said(caplog)) == 1 + 10_000
    assert len(journal._said) <= 4096


@pytest.mark.parametrize(
    ("peer", "host"),
    [("ipv4:10.0.0.3:4123", "10.0.0.3"), ("ipv6:%5B::1%5D:4123", "::1"), ("unix:/tmp/socket", "unix:/tmp/socket")],
)
def test_a_peer_is_called_by_its_address(peer, host):
    assert host_of(peer) == host
