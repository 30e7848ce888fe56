import json

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sophon.codec import Cut
from sophon.codec.wire import REPLY_SCHEMA, Reply, Request, batch_of, error_from_json, error_to_json, replies_of
from sophon.errors import ConfigError, OpError, ProtocolError, StoreError, TransportError
from tests.support.servers import RECIPE

CUTS = (Cut(0), Cut(2, "webp"), Cut(0))
REQUEST = Request("train", RECIPE.to_spec(), 1, 2, (5, 3, 9), CUTS, "f" * 32, True, 2.5, ("id",))


def test_a_request_survives_the_link():
    assert Request.from_bytes(REQUEST.to_bytes()) == REQUEST


@given(
    st.lists(
        st.builds(
            Reply,
            st.integers(0, 2**31 - 1),
            st.sampled_from([Cut(0), Cut(2, "webp"), Cut(3, "jpeg:90")]),
            st.binary(max_size=200),
            st.none() | st.integers(-(2**63), 2**63 - 1),
            st.floats(0, 10, width=32),
            columns=st.dictionaries(st.text(max_size=5), st.integers(0, 9), max_size=2),
        ),
        max_size=8,
    )
)
def test_replies_survive_the_link(replies):
    assert list(replies_of(batch_of(replies))) == replies


def test_payloads_are_views_and_slices_of_a_batch_keep_theirs():
    batch = batch_of([Reply(i, Cut(0), bytes([i]) * (i + 1)) for i in range(6)])
    assert [bytes(r.payload) for r in replies_of(batch.slice(2, 3))] == [b"\2" * 3, b"\3" * 4, b"\4" * 5]
    assert all(isinstance(r.payload, memoryview) for r in replies_of(batch))


@pytest.mark.parametrize("error", [StoreError("gone"), ConfigError("no"), OpError("bad"), TransportError("x")])
def test_an_error_is_raised_as_the_same_type_on_the_other_side(error):
    copy = error_from_json(error_to_json(error))
    assert type(copy) is type(error)
    assert str(copy) == str(error)


@pytest.mark.parametrize("name", ["SystemExit", "KeyError", "no such", "__builtins__", "annotations"])
def test_a_type_that_is_not_ours_is_a_transport_error(name):
    assert type(error_from_json(json.dumps({"type": name, "message": "m"}))) is TransportError


def _changed(**changes):
    return json.dumps(json.loads(REQUEST.to_bytes()) | changes).encode()


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff\xfe",
        b"[]",
        b"{}",
        b"[" * 100_000,
        b"x" * (1 << 20) + b"x",
        _changed(protocol=2),
        _changed(samples=[-1, 0, 0]),
        _changed(samples=[2**63, 0, 0]),
        _changed(samples=[True, 0, 0]),
        _changed(samples=["1", 0, 0]),
        _changed(samples=list(range(9000))),
        _changed(cut_of=[0]),
        _changed(cut_of=[0, 9, 0]),
        _changed(cuts=["2:nothing"]),
        _changed(cuts="raw"),
        _changed(pipeline=None),
        _changed(seed=-1),
        _changed(epoch=2**64),
        _changed(patience_s=-1),
        _changed(patience_s=float("nan")),
        _changed(columns=[1]),
        _changed(dataset=None),
        _changed(dataset="x" * 2000),
    ],
)
def test_a_message_that_is_no_request_is_a_protocol_error(data):
    with pytest.raises(ProtocolError):
        Request.from_bytes(data)


def test_mutated_requests_end_in_a_protocol_error_or_a_request():
    rng = np.random.default_rng(5)
    good = REQUEST.to_bytes()
    for _ in range(2000):
        data = bytearray(good)
        for at in rng.integers(0, len(data), int(rng.integers(1, 8))):
            data[at] = rng.integers(256)
        try:
            Request.from_bytes(bytes(data))
        except ProtocolError:
            continue


def test_a_reply_with_other_columns_or_an_unknown_cut_is_refused():
    batch = batch_of([Reply(0)])
    with pytest.raises(ProtocolError, match="expected replies with columns"):
        list(replies_of(batch.drop_columns(["cpu_s"])))
    wrong = batch.set_column(1, REPLY_SCHEMA.field("cut"), pa.array(["9:nothing"]))
    with pytest.raises(ProtocolError, match="unknown cut"):
        list(replies_of(wrong))
