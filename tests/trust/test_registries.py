"""A registry that lies: it cannot send a trainer just anywhere, nor make it or a node hold more than a little."""

import contextlib
import json
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pytest
from click.testing import CliRunner
from pyarrow import flight

from sophon.cli.main import cli
from sophon.cluster.registered import open_registered
from sophon.cluster.roll import Roll
from sophon.errors import ConfigError, Error, ProtocolError
from sophon.link import listing
from sophon.link.answer import opened_from
from sophon.link.credentials import Credentials
from sophon.link.flight import FlightTransport
from sophon.link.listing import piece_of, received
from sophon.link.membership import Held, NodeRecord
from sophon.link.registry import RegistryClient
from sophon.store.manifest import Manifest
from tests.support.answer import ANSWER
from tests.support.certificates import Authority
from tests.support.servers import make_images, serve


class LyingRegistry(flight.FlightServerBase):
    """Names whatever it is told to name."""

    def __init__(self, nodes=(), about=b"{}", count=1, answers=(b"{}",), **more):
        self.endpoints = [flight.FlightEndpoint(b"{}", list(nodes)) for _ in range(count)]
        self.about, self.answers, self.sent = about, answers, 0
        super().__init__(f"grpc{'+tls' if more else ''}://127.0.0.1:0", **more)

    def get_flight_info(self, _, descriptor):
        return flight.FlightInfo(pa.schema([]), descriptor, self.endpoints, 1, -1, app_metadata=self.about)

    def do_action(self, *_):
        for answer in self.answers:
            self.sent += 1
            yield answer


def find(registry, scheme="sophon", credentials=None):
    return open_registered(f"{scheme}://127.0.0.1:{registry.port}/train", credentials or Credentials(), 5.0).find()


@pytest.mark.parametrize(
    "relays", [5, "grpc://a:1", {"a": 1}, ["/etc"], ["http://169.254.169.254/"], ["sophon+file:///etc/passwd"], [None]]
)
def test_relays_are_nodes_and_nothing_else(relays):
    said = json.dumps({"relays": relays}).encode()
    with LyingRegistry(["grpc://127.0.0.1:1"], said) as registry, pytest.raises(ProtocolError, match="names"):
        find(registry)


@pytest.mark.parametrize(
    "url", ["grpc+unix:///run/some.sock", "http://127.0.0.1:80", "grpc://host", "grpc://a:1/x/y", "grpc://user@host:1"]
)
def test_nodes_are_hosts_and_ports_and_nothing_else(url):
    with LyingRegistry([url]) as registry, pytest.raises(ProtocolError, match="names a node"):
        find(registry)


@pytest.mark.parametrize("address", ["grpc://[x:1/train", "grpc://a]b:1/train"])
def test_an_address_with_half_a_bracket_is_no_address(address):
    with pytest.raises(ConfigError, match="expected an address"):
        FlightTransport(address)


def test_a_registry_with_tls_cannot_have_tokens_sent_in_the_clear(tmp_path):
    authority = Authority(tmp_path, "ours")
    pair = authority.issue("registry")
    tls = [(pair.cert.read_bytes(), pair.key.read_bytes())]
    shown = Credentials("a-token-of-some-length", tls_ca=authority.ca)
    plain, safe = (LyingRegistry([f"{scheme}://127.0.0.1:1"], tls_certificates=tls) for scheme in ("grpc", "grpc+tls"))
    with plain as registry, pytest.raises(ProtocolError, match="in the clear"):
        find(registry, "sophon+tls", shown)
    with safe as registry:
        assert [node.address for node in find(registry, "sophon+tls", shown).nodes] == ["grpc+tls://127.0.0.1:1/train"]


def test_more_nodes_than_there_can_be_are_not_even_received():
    node = f"grpc://{'a' * 200}:1"  # long, so that the registry itself is soon done with 5 MB of them
    with LyingRegistry([node], count=24_000) as registry, pytest.raises(Error, match="size"):
        find(registry)


def test_an_answer_without_end_is_given_up():
    with LyingRegistry(answers=(b"{}" for _ in range(10**6))) as registry:
        with pytest.raises(ProtocolError, match="several answers"):
            RegistryClient(f"sophon://127.0.0.1:{registry.port}").action("status")
        assert registry.sent < 10_000


PARTS = ["1/1000000000", "x", "1/", "/4", "0/4", "5/4", "²/3", "1/4\n", "-1/4", "1/99999"]


@pytest.mark.parametrize("part", PARTS)
def test_a_part_that_cannot_be_is_refused(part):
    with pytest.raises(ProtocolError, match="part"):
        opened_from({**ANSWER, "part": part, "whole": "0" * 32}, "grpc://a:1/train")
    said = {"fingerprint": "f", "samples": 1, "part": part}
    record = {"node": "n", "role": "storage", "url": "grpc://a:1", "datasets": {"train": said}}
    with pytest.raises(ProtocolError):
        NodeRecord.from_json(json.dumps(record).encode())


@pytest.mark.parametrize("name", ["fingerprint", "whole"])
@pytest.mark.parametrize("text", ["x" * 200, "\N{HORSE}" * 60, "a b"])
def test_fingerprints_are_short_and_plain(name, text):
    record = {"node": "n", "role": "storage", "url": "grpc://a:1", "datasets": {"train": {name: text}}}
    with pytest.raises(ProtocolError, match="fingerprint"):
        NodeRecord.from_json(json.dumps(record).encode())


def announced(roll, number, part):
    held = {"train": Held(f"f{number}", 10, part, "w")}
    roll.announce(NodeRecord(f"n{number % 3}", f"grpc://n{number % 3}:7077", "storage", 1.0, "1", held), 0.0)


def test_a_node_that_announces_ever_other_parts_is_remembered_with_a_bounded_number(monkeypatch):
    monkeypatch.setattr("sophon.cluster.roll.MOST_PARTS", 100)
    roll = Roll(0.0)
    for number in range(300):
        announced(roll, number, f"{number + 1}/4096")
    assert len(roll.known()["train"]) == 100


def test_of_many_parts_that_nobody_announced_a_few_are_named():
    roll = Roll(0.0)
    announced(roll, 0, "1/4096")
    assert 2 <= len(roll.parts("train", 100.0)) < 100


def test_a_listing_of_endless_ids_is_given_up(monkeypatch):
    monkeypatch.setattr(listing, "_MOST_ID_BYTES", 40 << 20)
    asked = []

    def ask(start):
        asked.append(start)
        ids = pa.array(["a" * (15 << 20)], pa.large_string())
        return piece_of(Manifest("folder", ids, np.array([1]), None), 0)

    with pytest.raises(ProtocolError, match="trusted=True"):
        received(ask, 1 << 24, "0" * 32)
    assert len(asked) == 3


SILENT = """
import socket, sys, time, warnings
warnings.simplefilter("ignore")
import sophon
from sophon import ops
lines = [socket.create_server(("127.0.0.1", 0), backlog=64) for _ in range(100)]  # take calls, and answer none
urls = [f"grpc://127.0.0.1:{line.getsockname()[1]}/data" for line in lines]
deadline_s, problem = float(sys.argv[1]), ""
begin_s = time.monotonic()
recipe = sophon.Pipeline([ops.Decode(), ops.RandomResizedCrop(32), ops.ToTensor()])
try:
    sophon.DataLoader([*sys.argv[2:], *urls], recipe, batch_size=4, faults=sophon.Faults(deadline_s=deadline_s))
except sophon.Error as error:
    problem = type(error).__name__
print(problem, time.monotonic() - begin_s)
"""


def _opened_beside_a_hundred_silent(deadline_s, *urls):
    command = [sys.executable, "-c", SILENT, str(deadline_s), *urls]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=True)
    problem, seconds = done.stdout.rstrip("\n").split(" ")
    return problem, float(seconds)


@pytest.mark.slow
def test_a_hundred_nodes_that_never_answer_take_no_longer_than_a_few(tmp_path):
    with serve(make_images(tmp_path / "train", 8)) as server:
        problem, seconds = _opened_beside_a_hundred_silent(3, server.url)
    assert problem == "", "it holds all there is, as far as anybody knows"
    assert seconds < 3 + 2


@pytest.mark.slow
@pytest.mark.parametrize("answering", [0, 2])
def test_opening_beside_a_hundred_silent_nodes_is_an_error_at_the_deadline(tmp_path, answering):
    """Above ten seconds, where a node may be silent for five: a last try must not begin anew."""
    with contextlib.ExitStack() as stack:
        folders = [make_images(tmp_path / f"part{number}", 8 + number) for number in range(answering)]
        urls = [stack.enter_context(serve(folder)).url for folder in folders]
        problem, seconds = _opened_beside_a_hundred_silent(12, *urls)
    assert problem == "UnavailableError"
    assert 12 <= seconds < 12 + 2


@pytest.mark.parametrize(
    "said", [{}, {"nodes": 5}, {"nodes": [{"datasets": {"a": None}}], "missing": []}, {"nodes": []}]
)
def test_what_a_registry_says_in_another_form_is_an_error_of_one_line(said):
    with LyingRegistry(answers=(json.dumps(said).encode(),)) as registry:
        done = CliRunner().invoke(cli, ["nodes", f"sophon://127.0.0.1:{registry.port}"])
    assert isinstance(done.exception, ProtocolError)
