"""What nodes tell a registry: bounded, and what was told is what is read."""

import json

import pytest

from sophon.errors import ProtocolError
from sophon.link.membership import Held, NodeRecord

RECORD = NodeRecord("n1", "grpc://10.0.0.4:7077", "storage", 4.0, "1", {"train": Held("f" * 32, 100, "1/4", "e" * 32)})


def test_a_record_comes_back_as_it_was():
    assert NodeRecord.from_json(RECORD.to_json()) == RECORD


@pytest.mark.parametrize(
    "change",
    [
        {"url": "http://10.0.0.4:7077"},
        {"url": "grpc://user@host:1"},
        {"url": "grpc://host:1/other"},
        {"role": "king"},
        {"cores": -1},
        {"cores": "many"},
        {"cores": 10**400},
        {"datasets": []},
        {"datasets": {str(n): {} for n in range(300)}},
        {"datasets": {"a/b": {}}},
        {"datasets": {"train~1": {}}},  # only relays have such names
        {"datasets": {"~1": {}}, "role": "relay"},
        {"datasets": {"train~": {}}, "role": "relay"},
        {"datasets": {"train~1=x": {}}, "role": "relay"},
        {"datasets": {"train=x": {}}},
        {"datasets": {"train:x": {}}},
        {"datasets": {"train?x": {}}},
        {"datasets": {"--debug": {}}},
        {"datasets": {"train": {"samples": -1}}},
        {"datasets": {"train": {"fingerprint": "f" * 300}}},
        {"datasets": {"train": 3}},
        {"node": 7},
        {"node": "a\nb"},
    ],
)
def test_what_no_node_would_say_is_refused(change):
    with pytest.raises(ProtocolError):
        NodeRecord.from_json(json.dumps(json.loads(RECORD.to_json()) | change).encode())


def test_a_record_of_any_length_is_refused_before_it_is_parsed():
    with pytest.raises(ProtocolError, match="at most"):
        NodeRecord.from_json(b" " * (1 << 20))


@pytest.mark.parametrize("name", ["train", "été 2024", "a.b_c-d (1), e+f", "[x] & {y}"])
def test_names_that_folders_have_can_be_announced_and_relays_have_one_for_each_part(name):
    for role, told in (("storage", name), ("relay", name), ("relay", f"{name}~12")):
        said = json.loads(RECORD.to_json()) | {"role": role, "datasets": {told: {}}}
        assert list(NodeRecord.from_json(json.dumps(said).encode()).datasets) == [told]
