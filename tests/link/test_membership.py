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
        {"datasets": []},
        {"datasets": {str(n): {} for n in range(300)}},
        {"datasets": {"a/b": {}}},
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
