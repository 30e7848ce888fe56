"""Names, files and other ways to find the nodes of a data set."""

import pytest

import sophon
from sophon.errors import ConfigError, RetryableError
from sophon.link.credentials import Credentials
from sophon.link.discovery import WAYS, is_found, open_discovery
from tests.support.servers import RECIPE, digest, make_images, serve


def found(address):
    return [node.address for node in open_discovery(address, Credentials(), 5.0).find().nodes]


def test_a_name_stands_for_all_its_addresses(monkeypatch):
    places = [
        (2, 1, 6, "", ("10.0.0.2", 7077)),
        (2, 1, 6, "", ("10.0.0.1", 7077)),
        (10, 1, 6, "", ("fd00::1", 7077, 0, 0)),
    ]
    monkeypatch.setattr("socket.getaddrinfo", lambda *_, **__: places)
    assert found("sophon+dns://train.example:7077/train") == [
        "grpc://10.0.0.1:7077/train",
        "grpc://10.0.0.2:7077/train",
        "grpc://[fd00::1]:7077/train",
    ]
    assert found("sophon+dns+tls://train.example:7077/train")[0].startswith("grpc+tls://")


def test_a_name_that_is_not_known_may_be_known_later():
    with pytest.raises(RetryableError, match="cannot be looked up"):
        found("sophon+dns://no-such-host.invalid:7077/train")


def test_a_file_is_read_again(tmp_path):
    path = tmp_path / "nodes"
    path.write_text("# all of them\ngrpc://a:1/train\n\ngrpc://b:1/train  # the second\n")
    way = open_discovery(f"sophon+file://{path}", Credentials(), 5.0)
    assert [node.address for node in way.find().nodes] == ["grpc://a:1/train", "grpc://b:1/train"]
    path.write_text("grpc://c:1/train\n")
    assert [node.address for node in way.find().nodes] == ["grpc://c:1/train"]
    path.write_text("http://c/train\n")
    with pytest.raises(ConfigError, match="expected addresses"):
        way.find()


@pytest.mark.parametrize(
    "address",
    ["sophon://host", "sophon://host/train", "sophon+dns://host/train", "sophon+file://here", "sophon://a@b:1/train"],
)
def test_an_address_of_another_form_is_refused(address):
    with pytest.raises(ConfigError, match="expected"):
        open_discovery(address, Credentials(), 5.0)


def test_every_way_has_its_scheme():
    assert all(is_found(f"{scheme}://somewhere") for scheme in WAYS)
    assert not is_found("grpc://host:1/train")
    assert not is_found(["sophon://host:1/train"])


def test_localhost_by_name_gives_the_bits_of_the_folder(tmp_path):
    images = make_images(tmp_path / "train", 12)
    settings = {"batch_size": 4, "shuffle": True, "num_workers": 2, "policy": "none"}
    with serve(images, name="train") as server:
        loader = sophon.DataLoader(f"sophon+dns://127.0.0.1:{server.port}/train", RECIPE, **settings)
        assert digest(loader) == digest(sophon.DataLoader(images, RECIPE, **settings))
