"""Who may read what, asked by a plain Arrow Flight client that is not ours."""

import json
import pickle
import re
import secrets
import shlex
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
from pyarrow import flight

import sophon
from sophon import Credentials, RemoteDataset
from sophon.errors import AccessError, ConfigError, RetryableError
from sophon.link.flight import FlightTransport
from sophon.link.wire import Request
from sophon.server.access import EVERYTHING, Access, Rights, Tokens
from tests.support.certificates import Authority
from tests.support.command import refusal
from tests.support.servers import RECIPE, digest, make_images, serve
from tests.support.settings import grouped
from tests.support.waiting import HANG_S, wait_until

ALICE, BOB, ROOT = (secrets.token_urlsafe(24) for _ in range(3))


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("access")


@pytest.fixture(scope="module")
def images(place):
    return make_images(place / "alice", 8)


@pytest.fixture(scope="module")
def two_tenants(place, images):
    """A server with two data sets, of which Alice may read one and Bob the other."""
    bobs = make_images(place / "bob", 5)
    tokens = place / "tokens"
    tokens.write_text(f"# who\n{ALICE} alice\n{BOB}  bob # the other one\n{ROOT} *\n")
    ready = place / "ready.json"
    command = [sys.executable, "-m", "sophon.cli.main", "serve", f"alice={images}", f"bob={bobs}", "--port", "0"]
    command += ["--metrics-port", "0", "--token-file", str(tokens), "--ready-file", str(ready)]
    log = place / "log"
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
    wait_until(lambda: ready.exists() or process.poll() is not None)
    assert process.poll() is None, log.read_text()
    yield json.loads(ready.read_text()) | {"log": log}
    process.terminate()
    assert process.wait(HANG_S) == 0


def _bearer(*tokens):
    shown = [(b"authorization", f"Bearer {token}".encode()) for token in tokens]
    return flight.FlightCallOptions(headers=shown, timeout=HANG_S)


def _ticket(dataset, samples=(0,)):
    return flight.Ticket(Request(dataset, RECIPE.to_spec(), 0, 0, samples, (sophon.Cut(0),) * len(samples)).to_bytes())


def _metric(server, name):
    with urllib.request.urlopen(f"http://127.0.0.1:{server['metrics_port']}/metrics") as answer:
        lines = [line for line in answer.read().decode().splitlines() if line.startswith(name)]
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines)


@pytest.fixture
def client(two_tenants):
    with flight.connect(two_tenants["url"]) as plain:
        yield plain


WRONG = {
    "none": flight.FlightCallOptions(timeout=HANG_S),
    "empty": _bearer(""),
    "wrong": _bearer("x" * 32),
    "half of one": _bearer(ALICE[:-1]),
    "more than one": _bearer(ALICE + "x"),
    "in another case": _bearer(ALICE.swapcase()),
    "twice": _bearer(ALICE, BOB),
    "not a bearer": flight.FlightCallOptions(headers=[(b"authorization", b"Basic " + ALICE.encode())]),
    "without a scheme": flight.FlightCallOptions(headers=[(b"authorization", ALICE.encode())]),
    "in another header": flight.FlightCallOptions(headers=[(b"x-token", ALICE.encode())]),
    "huge": _bearer("x" * 4000),
}


@pytest.mark.parametrize("options", WRONG.values(), ids=WRONG.keys())
def test_without_the_right_token_every_call_is_refused_before_any_data_is_read(two_tenants, client, options):
    requests, sent = _metric(two_tenants, "sophon_requests_total"), _metric(two_tenants, "sophon_payload_bytes_total")
    calls = [
        lambda: client.do_get(_ticket("alice"), options).read_all(),
        lambda: list(client.do_action(flight.Action("list", b""), options)),
        lambda: list(client.do_action(flight.Action("open", b'{"dataset": "alice"}'), options)),
        lambda: list(client.do_action(flight.Action("sizes", b'{"dataset": "alice"}'), options)),
        lambda: list(client.do_action(flight.Action("listing", b'{"dataset": "alice"}'), options)),
        lambda: list(client.list_actions(options)),
        lambda: list(client.list_flights(options=options)),
        lambda: client.get_flight_info(flight.FlightDescriptor.for_path("alice"), options),
    ]
    for call in calls:
        with pytest.raises(flight.FlightUnauthenticatedError):
            call()
    assert _metric(two_tenants, "sophon_requests_total") == requests
    assert _metric(two_tenants, "sophon_payload_bytes_total") == sent


@pytest.mark.parametrize(
    ("token", "own", "other"), [(ALICE, "alice", "bob"), (BOB, "bob", "alice")], ids=["alice", "bob"]
)
def test_a_token_opens_its_own_data_sets_and_tells_nothing_about_others(two_tenants, client, token, own, other):
    options = _bearer(token)
    assert client.do_get(_ticket(own), options).read_all().num_rows == 1
    (names,) = client.do_action(flight.Action("list", b""), options)
    assert json.loads(names.body.to_pybytes()) == {"datasets": [own]}
    messages = []
    sent = _metric(two_tenants, "sophon_payload_bytes_total")
    for name in (other, "nothing-of-this-name"):
        with pytest.raises(flight.FlightUnauthorizedError) as refused:
            client.do_get(_ticket(name), options).read_all()
        messages.append(json.loads(refused.value.extra_info)["message"].replace(name, "…"))
        for action in ("open", "sizes", "listing"):
            with pytest.raises(flight.FlightUnauthorizedError):
                list(client.do_action(flight.Action(action, json.dumps({"dataset": name}).encode()), options))
    assert messages[0] == messages[1]
    assert _metric(two_tenants, "sophon_payload_bytes_total") == sent


@pytest.mark.parametrize("name", ["", "../alice", "/etc/passwd", "alice/class_0/0000.jpg", "bob\0", "ALICE", "*"])
def test_a_request_names_data_sets_and_never_paths(client, name):
    with pytest.raises(flight.FlightError, match="no data set"):
        client.do_get(_ticket(name), _bearer(ROOT)).read_all()


def test_a_request_names_samples_of_the_manifest_only(client):
    for sample in (8, 1 << 40, (1 << 63) - 1):
        with pytest.raises(flight.FlightError, match=r"has 8 samples; there is no sample"):
            client.do_get(_ticket("alice", (0, sample)), _bearer(ALICE)).read_all()


@pytest.mark.parametrize("workers", ["threads", "processes"])
@pytest.mark.matrix(every=2)
def test_a_loader_with_a_token_reads_the_same_batches(two_tenants, images, workers):
    url = f"{two_tenants['url']}/alice"
    expected = digest(sophon.DataLoader(images, RECIPE, batch_size=4))
    settings = {"kind": workers, "num_workers": 1}
    if workers == "processes":
        settings["multiprocessing_context"] = "spawn"
    assert (
        digest(
            sophon.DataLoader(
                url, RECIPE, **grouped(batch_size=4, credentials=sophon.Credentials(token=ALICE), **settings)
            )
        )
        == expected
    )


def test_the_environment_may_hold_the_token(two_tenants, monkeypatch):
    monkeypatch.setenv("SOPHON_TOKEN", BOB)
    assert len(sophon.RemoteDataset(f"{two_tenants['url']}/bob", RECIPE)) == 5
    transport = FlightTransport(f"{two_tenants['url']}/bob")
    assert BOB.encode() not in pickle.dumps(transport)


@pytest.mark.parametrize("token", [None, "w" * 32])
def test_a_trainer_without_the_right_token_is_told_at_once(two_tenants, token):
    refused = _metric(two_tenants, 'sophon_errors_total{type="AccessError"}')
    with pytest.raises(AccessError, match="token"):
        sophon.RemoteDataset(f"{two_tenants['url']}/alice", RECIPE, credentials=sophon.Credentials(token=token))
    with pytest.raises(AccessError, match="may not read a data set 'bob'; it may read alice"):
        sophon.RemoteDataset(f"{two_tenants['url']}/bob", RECIPE, credentials=sophon.Credentials(token=ALICE))
    assert _metric(two_tenants, 'sophon_errors_total{type="AccessError"}') == refused + 2, "nothing was tried again"


def test_tokens_are_found_in_no_log_error_repr_or_metric(two_tenants, client):
    seen = [repr(sophon.Credentials(ALICE)), str(sophon.Credentials(ALICE)), repr(Tokens.parse(f"{ALICE} *", "here"))]
    for options in WRONG.values():
        with pytest.raises(flight.FlightError) as refused:
            list(client.do_action(flight.Action("list", b""), options))
        seen.append(str(refused.value))
    dataset = sophon.RemoteDataset(f"{two_tenants['url']}/alice", RECIPE, credentials=sophon.Credentials(token=ALICE))
    seen += [repr(dataset), repr(vars(dataset)), repr(vars(dataset.transport))]
    with urllib.request.urlopen(f"http://127.0.0.1:{two_tenants['metrics_port']}/metrics") as answer:
        seen.append(answer.read().decode())
    seen.append(two_tenants["log"].read_text())
    for token in (ALICE, BOB, ROOT):
        assert not any(token in text for text in seen)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "expected at least one token"),
        ("short *", "line 1: expected a token of at least 16"),
        ("# x\n" + "ä" * 20 + " *", "line 2: expected a token"),
        ("0123456789abcdef", "line 1: expected names of data sets after the token"),
        ("0123456789abcdef train\n0123456789abcdef val", "line 2: this token is listed twice"),
        ("0123456789abcdef trian", "line 1: there is no data set 'trian' here"),
        ("sha256:1234 *", "line 1: expected a token"),
    ],
)
def test_a_token_file_with_a_slip_is_refused_without_quoting_from_it(text, message):
    with pytest.raises(ConfigError, match=message) as refused:
        Tokens.parse(text, "file", ["train", "val"])
    assert "0123456789abcdef" not in str(refused.value)


def test_a_token_file_may_hold_digests_and_rights_are_exact():
    import hashlib

    secret = "a token that is a sentence".replace(" ", "-")
    tokens = Tokens.parse(f"sha256:{hashlib.sha256(secret.encode()).hexdigest()} train val\n{ROOT} val *", "file")
    assert tokens.rights_of(f"Bearer {secret}") == Rights(frozenset({"train", "val"}))
    assert tokens.rights_of(f"bearer {ROOT}") == EVERYTHING
    assert Rights(frozenset({"val"})).readable(["train", "val", "value"]) == ["val"]
    for header in (None, "", "Bearer", "Bearer ", f"Bearer  {secret}", f"Bearer {secret} ", "Bearer \udc80\udcff"):
        with pytest.raises(AccessError):
            tokens.rights_of(header)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1"])
def test_a_public_address_needs_access_control_or_the_word_insecure(host):
    tokens = Tokens.parse(f"{ROOT} *", "file")
    with pytest.raises(ConfigError, match=r"anyone there could read the data: give --token-file"):
        Access().check_place(host)
    assert "anyone" in Access(insecure=True).check_place(host)
    assert "in the clear" in Access(tokens).check_place(host)
    for loopback in ("127.0.0.1", "127.8.8.8", "::1", "localhost"):
        assert Access().check_place(loopback) is None


def test_sophon_serve_refuses_a_public_address_without_access_control(images, place):
    command = [sys.executable, "-m", "sophon.cli.main", "serve", str(images), "--host", "0.0.0.0", "--port", "0"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=HANG_S)
    assert done.returncode != 0
    assert "give --insecure" in done.stderr
    with serve(images, options=("--host", "0.0.0.0", "--insecure")) as server:
        assert len(sophon.RemoteDataset(server.url, RECIPE)) == 8


# --- TLS --------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def ours(place):
    return Authority(place, "ours")


@pytest.fixture(scope="module")
def foreign(place):
    return Authority(place, "foreign")


@pytest.fixture(scope="module")
def tls_server(images, ours):
    pair = ours.issue("server")
    options = ("--tls-cert", str(pair.cert), "--tls-key", str(pair.key), "--tls-client-ca", str(ours.ca))
    with serve(images, options=options) as running:
        yield running


def _tls_client(server, ca, pair=None):
    files = {} if pair is None else {"cert_chain": pair.cert.read_bytes(), "private_key": pair.key.read_bytes()}
    return flight.connect(server.url.rpartition("/")[0], tls_root_certs=ca.read_bytes(), **files)


def _names(client):
    (answer,) = client.do_action(flight.Action("list", b""), flight.FlightCallOptions(timeout=HANG_S))
    return json.loads(answer.body.to_pybytes())["datasets"]


def test_mutual_tls_lets_in_who_has_a_certificate_and_nobody_else(tls_server, ours, foreign):
    with _tls_client(tls_server, ours.ca, ours.issue("trainer")) as client:
        assert _names(client) == ["data"]
    refused = {
        "none": None,
        "foreign": foreign.issue("trainer"),
        "expired": ours.issue("late", (-3, -1)),
        "not yet": ours.issue("early", (1, 3)),
    }
    for pair in refused.values():
        with _tls_client(tls_server, ours.ca, pair) as client, pytest.raises(flight.FlightUnavailableError):
            _names(client)
    with flight.connect(f"grpc://127.0.0.1:{tls_server.port}") as client, pytest.raises(flight.FlightError):
        _names(client)


def test_a_loader_over_mutual_tls_reads_the_same_batches(tls_server, images, ours):
    pair = ours.issue("loader")
    assert tls_server.url.startswith("grpc+tls://")
    loader = sophon.DataLoader(
        tls_server.url,
        RECIPE,
        batch_size=4,
        credentials=sophon.Credentials(tls_ca=ours.ca, tls_cert=pair.cert, tls_key=pair.key),
    )
    assert digest(loader) == digest(sophon.DataLoader(images, RECIPE, batch_size=4))


def test_a_trainer_does_not_talk_to_a_node_that_it_cannot_trust(tls_server, images, ours, foreign):
    pair = ours.issue("trainer")
    with pytest.raises(AccessError, match="the node's certificate is not trusted"):
        sophon.RemoteDataset(
            tls_server.url,
            RECIPE,
            credentials=sophon.Credentials(tls_ca=foreign.ca, tls_cert=pair.cert, tls_key=pair.key),
        )
    old = ours.issue("old", (-3, -1))
    with (
        serve(images, options=("--tls-cert", str(old.cert), "--tls-key", str(old.key))) as server,
        pytest.raises(AccessError, match="expired"),
    ):
        sophon.RemoteDataset(server.url, RECIPE, credentials=sophon.Credentials(tls_ca=ours.ca))


def test_a_node_without_tls_is_told_from_one_that_is_away(images, ours):
    with serve(images) as server, pytest.raises(AccessError, match=r"answers without TLS; use grpc://"):
        sophon.RemoteDataset(
            server.url.replace("grpc:", "grpc+tls:"), RECIPE, credentials=sophon.Credentials(tls_ca=ours.ca)
        )


def test_a_trainer_without_a_certificate_is_told_what_may_be_missing(tls_server, ours):
    node = FlightTransport(tls_server.url, HANG_S, sophon.Credentials(tls_ca=ours.ca))
    with pytest.raises(RetryableError, match="tls_cert and tls_key of a trainer that it trusts"):
        node.open(RECIPE)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"tls_cert": "x"}, "tls_cert and tls_key go together"),
        ({"tls_ca": "/nowhere.pem"}, r"tls_ca: /nowhere.pem cannot be read"),
        ({"token": "two\nlines"}, "several tokens; give one of them"),
        ({"token": ""}, "token: expected up to"),
    ],
)
def test_credentials_that_cannot_work_are_refused_with_a_remedy(settings, message):
    with pytest.raises(ConfigError, match=message):
        FlightTransport("grpc+tls://127.0.0.1:1/data", credentials=sophon.Credentials(**settings)).open(RECIPE)


def test_files_for_tls_need_an_address_with_tls_and_passwords_in_addresses_are_not_shown():
    with pytest.raises(ConfigError, match=r"tls_ca needs an address like grpc\+tls"):
        FlightTransport("grpc://127.0.0.1:1/data", credentials=sophon.Credentials(tls_ca="x"))
    with pytest.raises(ConfigError) as refused:
        FlightTransport("grpc://me:secret@127.0.0.1:1/data")
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--tls-cert", "a.pem"], "--tls-cert and --tls-key go together"),
        (["--tls-client-ca", "a.pem"], "--tls-client-ca needs --tls-cert"),
        (["--token-file", "/nowhere"], "token file /nowhere cannot be read"),
    ],
)
def test_a_server_with_wrong_files_says_so(images, options, message):
    assert message in refusal("serve", str(images), "--port", "0", *options)


def test_a_server_whose_certificate_is_not_there_ends_with_words(images):
    options = ["--port", "0", "--tls-cert", "no.pem", "--tls-key", "no.key"]
    command = [sys.executable, "-m", "sophon.cli.main", "serve", str(images), *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=HANG_S)
    assert done.returncode != 0
    assert "No such file" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_file_that_the_readme_makes_opens_the_node_by_the_variable_too(tmp_path, monkeypatch):
    readme = Path(__file__, "../../../README.md").resolve().read_text()
    command = re.search(r"^\(umask 077; python (-c .*) > tokens\)$", readme, re.MULTILINE)[1]
    made = subprocess.run([sys.executable, *shlex.split(command)], check=True, capture_output=True, text=True).stdout
    (tmp_path / "tokens").write_text(made)
    images = make_images(tmp_path / "images", 2)
    with serve(images, options=("--token-file", str(tmp_path / "tokens"))) as server:
        monkeypatch.setenv("SOPHON_TOKEN", made.rstrip("\n"))  # as SOPHON_TOKEN=$(cat tokens) does
        assert len(RemoteDataset(server.url, RECIPE)) == 2


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("a-token-of-enough-letters *\nanother-of-enough-letters *\n", "several tokens; give one of them"),
        ("sha256:" + 64 * "0" + " *", "this is the SHA-256 of a token"),
        ("# nothing but a comment", "the first word of a line in the node's --token-file"),
        ("töken", "the first word of a line in the node's --token-file"),
    ],
)
@pytest.mark.matrix(every=4)
def test_a_text_that_is_no_token_is_refused_with_what_to_give(text, problem):
    with pytest.raises(ConfigError, match=problem):
        Credentials(text).check(encrypted=False)
