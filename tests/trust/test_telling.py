"""Nothing of a node is told beyond what a trainer needs."""

import os

import pyarrow as pa
import pytest
from pyarrow import flight

import sophon
from sophon.codec import RAW
from sophon.errors import ConfigError, StoreError
from sophon.link.telling import told_text
from sophon.link.wire import Request
from sophon.server.access import Tokens
from sophon.store import open_store
from tests.support.servers import RECIPE, make_images, serve
from tests.support.waiting import HANG_S

TOKEN = "a-token-that-is-known"
CALL = flight.FlightCallOptions(headers=[(b"authorization", f"Bearer {TOKEN}".encode())], timeout=HANG_S)
NOWHERE = flight.FlightDescriptor.for_path("nowhere")


def _request(**more):
    given = {"dataset": "data", "pipeline": RECIPE.to_spec(), "seed": 0, "epoch": 0, "samples": (1,)}
    return Request(**{**given, "cuts": (RAW,), **more}).to_bytes()


def _put(client):
    writer, _ = client.do_put(NOWHERE, pa.schema([("a", pa.int32())]), CALL)
    writer.close()


def _exchange(client):
    _, reader = client.do_exchange(NOWHERE, CALL)
    reader.read_chunk()


WRONG = {
    "list flights": lambda client: list(client.list_flights(b"", CALL)),
    "flight info": lambda client: client.get_flight_info(NOWHERE, CALL),
    "put": _put,
    "exchange": _exchange,
    "an action": lambda client: list(client.do_action(flight.Action("x" * 10_000, b""), CALL)),
    "no message": lambda client: list(client.do_action(flight.Action("open", b""), CALL)),
    "a number": lambda client: list(client.do_action(flight.Action("open", b"7"), CALL)),
    "a listing": lambda client: list(client.do_action(flight.Action("listing", b'{"dataset": "data"}'), CALL)),
    "no data set": lambda client: list(client.do_action(flight.Action("open", b'{"dataset": "/etc"}'), CALL)),
    "no ticket": lambda client: client.do_get(flight.Ticket(b""), CALL).read_all(),
    "no sample": lambda client: client.do_get(flight.Ticket(_request(samples=(99,))), CALL).read_all(),
    "no column": lambda client: client.do_get(flight.Ticket(_request(columns=("x",))), CALL).read_all(),
    "a bad spec": lambda client: client.do_get(flight.Ticket(_request(pipeline={"ops": 1})), CALL).read_all(),
    "no token": lambda client: client.do_get(flight.Ticket(_request())).read_all(),
}


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = make_images(tmp_path_factory.mktemp("data") / "secret-place" / "train", 8)
    tokens = folder.parent / "tokens"
    tokens.write_text(f"{TOKEN} data\n")
    with serve(folder, options=("--token-file", str(tokens))) as running:
        files = sorted(folder.rglob("*.*"))
        files[1].unlink()
        files[2].write_bytes(b"longer or shorter than it was")
        yield running


def _discreet(text):
    assert "Traceback" not in text
    assert ".py" not in text
    assert "secret-place" not in text
    assert os.sep + "tmp" not in text


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_call_is_refused_without_a_word_about_the_node(server, name):
    with flight.connect(f"grpc://127.0.0.1:{server.port}") as client:
        try:
            WRONG[name](client)
        except (flight.FlightError, pa.ArrowException) as error:
            _discreet(str(error) + repr(getattr(error, "extra_info", "")))
        else:
            pytest.fail("it was answered")


def test_a_schema_that_is_asked_for_is_an_empty_one(server):
    with flight.connect(f"grpc://127.0.0.1:{server.port}") as client:
        assert client.get_schema(NOWHERE, CALL).schema == pa.schema([])


@pytest.mark.parametrize("sample", [1, 2])
def test_a_sample_that_cannot_be_read_is_named_and_its_place_is_not(server, sample):
    dataset = sophon.RemoteDataset(server.url, RECIPE, credentials=sophon.Credentials(token=TOKEN))
    with pytest.raises(StoreError, match=rf"sample {sample} \('class_\d/\d+\.\w+'\)") as caught:
        dataset[sample]
    _discreet(str(caught.value) + "".join(getattr(caught.value, "__notes__", ())))


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("cannot open /data/train/a.jpg: no such file", "cannot open …/a.jpg: no such file"),
        ("'/data' and `touch /mnt/x/y`", "'…/data' and `touch …/y`"),
        ("sample 3 ('cat/1.jpg')", "sample 3 ('cat/1.jpg')"),
        ("grpc://node:7077/data and 1/2", "grpc://node:7077/data and 1/2"),
        ("./here/there", "./here/there"),
    ],
)
def test_absolute_paths_are_not_told(text, told):
    assert told_text(StoreError(text)) == told


def test_no_data_set_is_called_all_of_them(tmp_path):
    with pytest.raises(ConfigError, match="cannot be named"):
        open_store(make_images(tmp_path / "train", 3), "*")
    with pytest.raises(ConfigError, match="there is one with that name"):
        Tokens.parse("a-token-that-is-long-enough *", "here", ["*", "train"])
