"""Which transport leads to an address."""

import pytest

import sophon
from sophon.errors import ConfigError
from sophon.link.credentials import Credentials
from sophon.link.flight import OPEN_S, SILENCE_S, FlightTransport
from sophon.link.schemes import SCHEMES, open_address, scheme_of
from sophon.loader.sources.local import LocalTransport
from tests.support.servers import RECIPE, digest, make_images


@pytest.mark.parametrize(
    ("address", "scheme"),
    [
        ("grpc://host:1/data", "grpc"),
        ("GRPC+TLS://host:1/data", "grpc+tls"),
        ("s3://bucket/data", "s3"),
        ("/a/path", None),
        ("data:with/colons", None),
        ("", None),
    ],
)
def test_an_address_has_a_scheme_and_a_path_has_none(address, scheme):
    assert scheme_of(address) == scheme


@pytest.mark.parametrize("scheme", ["grpc", "grpc+tls"])
def test_storage_nodes_are_reached_over_flight_within_the_deadline(scheme):
    node = open_address(f"{scheme}://127.0.0.1:1/data", Credentials(), 4.0)
    assert isinstance(node, FlightTransport)
    assert (node.dataset, node.silence_s, node._timeout_s) == ("data", 3.0, 4.0)
    patient = open_address(f"{scheme}://127.0.0.1:1/data")
    assert (patient.silence_s, patient._timeout_s) == (SILENCE_S, OPEN_S)


@pytest.mark.parametrize(
    "use",
    [
        open_address,
        lambda address: sophon.DataLoader(address, RECIPE),
        lambda one: sophon.DataLoader([one, one + "2"], RECIPE),
    ],
)
def test_a_scheme_that_nobody_knows_is_refused_with_those_that_are_known(use):
    with pytest.raises(
        ConfigError, match=r"ftp:// is not a known kind of address; expected grpc://, .*https://\) or a path$"
    ):
        use("ftp://me:secret@host/data")


def test_another_room_adds_a_scheme_by_a_row(tmp_path, monkeypatch):
    images = make_images(tmp_path / "train", 4)
    asked = []

    def open_mine(address, credentials, deadline_s):
        asked.append((address, type(credentials), deadline_s))
        return LocalTransport(sophon.open_store(images), address)

    monkeypatch.setitem(SCHEMES, "mine", open_mine)
    batches = sophon.DataLoader(
        "mine://anything",
        RECIPE,
        batch_size=2,
        faults=sophon.Faults(deadline_s=7.0),
        credentials=sophon.Credentials(token="0123456789abcdef"),
    )
    assert digest(batches) == digest(sophon.DataLoader(images, RECIPE, batch_size=2))
    assert asked == [("mine://anything", Credentials, 7.0)]
