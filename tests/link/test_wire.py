import json
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sophon.codec import RAW, Cut
from sophon.errors import (
    AccessError,
    ConfigError,
    Error,
    OpError,
    ProtocolError,
    StoreError,
    TransportError,
    remote_traceback,
)
from sophon.link.wire import (
    MAX_REQUEST_BYTES,
    MAX_SAMPLES,
    REPLY_SCHEMA,
    Reply,
    Request,
    StreamClock,
    batch_of,
    error_from_json,
    error_to_json,
    raw_batch,
    replies_of,
    sizes_from_bytes,
    sizes_to_bytes,
)
from sophon.pipeline import Key
from tests.support.servers import RECIPE

CUTS = (Cut(0), Cut(2, "webp"), Cut(0))
REQUEST = Request("train", RECIPE.to_spec(), 1, 2, (5, 3, 9), CUTS, "f" * 32, True, 2.5, ("id",))


def test_a_request_survives_the_link():
    assert Request.from_bytes(REQUEST.to_bytes()) == REQUEST


def test_a_sample_of_a_part_has_two_indexes():
    request = replace(REQUEST, keys=(105, 103, 109))
    assert Request.from_bytes(request.to_bytes()) == request
    assert (request.key(1), REQUEST.key(1)) == (Key(1, 2, 103), Key(1, 2, 3))
    assert json.loads(request.to_bytes())["samples"] == [[5, 105], [3, 103], [9, 109]], "which older nodes refuse"


@pytest.mark.parametrize(
    "samples",
    [
        [[1, 2], 3, [4, 5]],
        [[1, 2], [3], [4, 5]],
        [[1, 2], [3, -1], [4, 5]],
        [[1, True], [2, 3], [4, 5]],
        [[1, 2]] * 8193,
    ],
)
def test_pairs_that_are_none_are_refused(samples):
    message = json.loads(REQUEST.to_bytes()) | {"samples": samples, "cut_of": [0] * len(samples)}
    with pytest.raises(ProtocolError):
        Request.from_bytes(json.dumps(message).encode())


def test_a_record_batch_without_replies_says_nothing():
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, REPLY_SCHEMA) as stream:
        stream.write_batch(batch_of([]))
    for batch in (batch_of([]), pa.ipc.open_stream(sink.getvalue()).read_next_batch()):
        assert list(replies_of(batch, REQUEST)) == []


def _asking_for(replies):
    """Return a request to which these replies are an answer."""
    cuts = [Cut(0)] * (max([r.position for r in replies], default=0) + 1)
    for reply in replies:
        cuts[reply.position] = reply.cut
    return replace(REQUEST, samples=(0,) * len(cuts), cuts=tuple(cuts), columns=())


@given(
    st.lists(
        st.builds(
            Reply,
            st.integers(0, 50),
            st.sampled_from([Cut(0), Cut(2, "webp"), Cut(3, "jpeg:90")]),
            st.binary(max_size=200),
            st.none() | st.integers(-(2**63), 2**63 - 1),
            st.floats(0, 10, width=32),
            columns=st.fixed_dictionaries({"one": st.integers(0, 9), "two": st.text(max_size=5)}),
            reason=st.none() | st.sampled_from(["overload", "op_failed"]),
            op_s=st.lists(st.floats(0, 10, width=32), max_size=3).map(tuple),
            raw_bytes=st.integers(0, 1 << 40),
            size=st.tuples(st.integers(0, 1 << 30), st.integers(0, 1 << 30)),
        ),
        max_size=8,
        unique_by=lambda reply: reply.position,
    )
)
def test_replies_survive_the_link(replies):
    request = replace(_asking_for(replies), columns=("one", "two"))
    assert list(replies_of(batch_of(replies), request)) == replies


@given(
    st.lists(
        st.tuples(st.integers(0, 50), st.binary(max_size=50)), min_size=1, max_size=8, unique_by=lambda row: row[0]
    ),
    st.booleans(),
)
def test_a_batch_of_raw_samples_says_what_replies_one_by_one_do(rows, has_labels):
    labels = np.arange(len(rows), dtype=np.int64) - 1 if has_labels else None
    replies = [
        Reply(position, payload=data, label=None if labels is None else int(labels[row]))
        for row, (position, data) in enumerate(rows)
    ]
    data = pa.py_buffer(b"".join(data for _, data in rows) + b"unused")
    positions = np.array([position for position, _ in rows], np.int32)
    batch = raw_batch(positions, np.cumsum([len(data) for _, data in rows], dtype=np.int32), data, labels)
    batch.validate(full=True)
    assert batch.equals(batch_of(replies))
    assert list(replies_of(batch, _asking_for(replies))) == replies
    asked = replace(_asking_for(replies), samples=(0,) * int(positions.max()), cuts=(RAW,) * int(positions.max()))
    with pytest.raises(ProtocolError, match=r"a reply to position|replies to a request"):
        list(replies_of(batch, asked))


def test_more_replies_than_samples_are_refused_before_anything_is_made_of_them():
    replies = [Reply(0)] * 3
    with pytest.raises(ProtocolError, match="got 3 replies to a request for 1 samples"):
        list(replies_of(batch_of(replies), _asking_for(replies[:1])))


def test_the_largest_request_is_small_enough():
    most, keys = (2**31 - 1,) * MAX_SAMPLES, (2**63 - 1,) * MAX_SAMPLES
    cuts = tuple(Cut(k % 9, "jxl3") for k in range(MAX_SAMPLES))
    request = Request("d" * 1000, {"ops": ["x" * 16_384]}, 2**63, 2**63, most, cuts, "f" * 64, keys=keys)
    data = request.to_bytes()
    assert len(data) < MAX_REQUEST_BYTES
    assert Request.from_bytes(data) == request


@pytest.mark.parametrize("wrong", [-1, 7, 2**31 - 1, -(2**31)])
def test_a_raw_reply_to_what_was_not_asked_for_is_refused_before_any_is_believed(wrong):
    batch = raw_batch(np.array([0, wrong], np.int32), np.array([1, 2], np.int32), pa.py_buffer(b"ab"), None)
    with pytest.raises(ProtocolError, match=f"a reply to position {wrong} of"):
        next(replies_of(batch, REQUEST))


def test_a_clock_survives_the_link_and_an_earlier_release_says_less():
    clock = StreamClock(1.5, 0.25, 7, 1 << 40, 3.0)
    assert StreamClock.from_bytes(clock.to_bytes()) == clock
    assert StreamClock.from_bytes(b'{"computing_s": 2}') == StreamClock(2.0)
    assert clock + StreamClock(1.0, 1.0, 1, 1, 1.0) == StreamClock(2.5, 1.25, 8, (1 << 40) + 1, 4.0)


@pytest.mark.parametrize(
    "told", [b'{"reading_s": -1}', b'{"reads": "7"}', b'{"read_s": NaN}', b'{"computing_s": true}', b'{"reads": 1e300}']
)
def test_a_clock_that_is_none_is_refused(told):
    with pytest.raises(ProtocolError, match="clock of a record batch is invalid"):
        StreamClock.from_bytes(told)


def test_payloads_are_views_and_slices_of_a_batch_keep_theirs():
    replies = [Reply(i, Cut(0), bytes([i]) * (i + 1)) for i in range(6)]
    batch, asked = batch_of(replies), _asking_for(replies)
    assert [bytes(r.payload) for r in replies_of(batch.slice(2, 3), asked)] == [b"\2" * 3, b"\3" * 4, b"\4" * 5]
    assert all(isinstance(r.payload, memoryview) for r in replies_of(batch, asked))


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
        _changed(protocol=3),
        _changed(protocol=0),
        _changed(protocol=True),
        _changed(protocol=[2]),
        _changed(fields=None),
        _changed(fields=[1]),
        _changed(fields=["f"] * 65),
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


def _replaced(batch, name, array):
    at = REPLY_SCHEMA.get_field_index(name)
    return batch.set_column(at, REPLY_SCHEMA.field(name), array)


def _bad_offsets():
    # Only the full validation looks at the offsets in between.
    offsets = pa.py_buffer(np.array([0, 1 << 30, 5], np.int32))
    return pa.Array.from_buffers(pa.string(), 2, [None, offsets, pa.py_buffer(b"0:raw")])


def _bad_text():
    offsets = pa.py_buffer(np.array([0, 2], np.int32))
    return pa.Array.from_buffers(pa.string(), 1, [None, offsets, pa.py_buffer(b"\xff\xfe")])


@pytest.mark.parametrize(
    "wrong",
    [
        lambda batch: batch.drop_columns(["cpu_s"]),
        lambda batch: _replaced(batch, "cut", pa.array(["9:nothing"])),
        lambda batch: _replaced(batch, "cut", pa.array([None], pa.string())),
        lambda batch: _replaced(batch, "cut", pa.array(["2:jpeg:10"])),
        lambda _: _replaced(batch_of([Reply(0), Reply(1)]), "cut", _bad_offsets()),
        lambda batch: _replaced(batch, "error", _bad_text()),
        lambda batch: _replaced(batch, "error", pa.array(["no json"])),
        lambda batch: _replaced(batch, "columns", pa.array(["[]"])),
        lambda batch: _replaced(batch, "position", pa.array([None], pa.int32())),
        lambda batch: _replaced(batch, "position", pa.array([7], pa.int32())),
        lambda batch: _replaced(batch, "position", pa.array([-1], pa.int32())),
        lambda batch: _replaced(batch, "payload", pa.array([None], pa.binary())),
    ],
)
def test_a_reply_that_no_honest_node_sends_is_a_protocol_error(wrong):
    with pytest.raises(ProtocolError):
        list(replies_of(wrong(batch_of([Reply(0)])), REQUEST))


def test_an_error_carries_its_traceback_if_that_is_wanted_unless_somebody_was_refused(monkeypatch):
    monkeypatch.setattr("sophon.link.telling._tells_all", True)
    found = []
    for kind in (StoreError, AccessError):
        try:
            raise kind("what went wrong")
        except Error as error:
            found.append(error_from_json(error_to_json(error)))
    assert [type(error) for error in found] == [StoreError, AccessError]
    assert "test_wire.py" in remote_traceback(found[0])
    assert remote_traceback(found[1]) is None
    assert "test_wire.py" not in error_to_json(AccessError("no"))


def test_sizes_of_files_come_back_as_they_were_in_parts_of_bounded_size():
    sizes = np.arange(600_000, dtype=np.int64) * 7000
    parts = list(sizes_to_bytes(sizes))
    assert len(parts) > 2
    assert max(map(len, parts)) <= 1 << 20
    assert (sizes_from_bytes(parts, len(sizes)) == sizes).all()
    assert sizes_from_bytes(sizes_to_bytes(np.array([5 << 40])), 1).tolist() == [(1 << 32) - 1]
    assert sizes_from_bytes([], 0).tolist() == []


@pytest.mark.parametrize("parts", [[], [b"1234"], [b"12345678", b"1"], [b"1234", b"12345678"]])
def test_sizes_of_another_number_of_files_are_refused(parts):
    with pytest.raises(ProtocolError, match="expected the sizes of 2 files"):
        sizes_from_bytes(parts, 2)


def test_no_more_sizes_are_read_than_there_are_files():
    def endless():
        while True:
            yield bytes(1 << 20)

    with pytest.raises(ProtocolError, match="expected the sizes of 2 files"):
        sizes_from_bytes(endless(), 2)


@pytest.mark.parametrize("sent", [{}, {"two": 1}, {"one": 1, "two": 2}])
def test_columns_are_those_that_were_asked_for(sent):
    request = replace(_asking_for([Reply(0)]), columns=("one",))
    with pytest.raises(ProtocolError, match="asked for the columns"):
        list(replies_of(batch_of([Reply(0, columns=sent)]), request))
    failed = Reply(0, columns=sent, error=StoreError("gone"))
    (reply,) = replies_of(batch_of([failed]), request)
    assert reply.columns == {name: value for name, value in sent.items() if name == "one"}


def test_sizes_are_made_part_by_part():
    sizes = np.arange(600_000)
    parts = list(sizes_to_bytes(sizes))
    assert [len(part) for part in parts] == [1 << 20, 1 << 20, 2_400_000 - (2 << 20)]
    assert (sizes_from_bytes(parts, len(sizes)) == sizes).all()


def test_offsets_may_have_a_piece_of_something_behind_them():
    batch = batch_of([Reply(0, payload=b"ab"), Reply(1, payload=b"c")])
    column = batch.column("payload")
    offsets = pa.py_buffer(column.buffers()[1].to_pybytes() + b"xyz")
    odd = pa.Array.from_buffers(pa.binary(), 2, [None, offsets, column.buffers()[2]])
    replies = [Reply(0, payload=b"ab"), Reply(1, payload=b"c")]
    assert list(replies_of(_replaced(batch, "payload", odd), _asking_for(replies))) == replies


# --- routes through relays --------------------------------------------------------------------------------------------

ROUTED = replace(REQUEST, firsts=(Cut(0), Cut(0, "window"), Cut(0)), columns=(), node_versions="v")


def test_a_request_to_a_relay_names_routes():
    assert Request.from_bytes(ROUTED.to_bytes()) == ROUTED
    assert json.loads(ROUTED.to_bytes())["cuts"] == ["0:raw/0:raw", "0:window/2:webp"]


@pytest.mark.parametrize("route", ["2:webp/0:raw", "0:raw/1:raw/2:raw", "0:raw/", "0:raw/2:nothing"])
def test_what_is_no_route_is_refused(route):
    message = json.loads(ROUTED.to_bytes()) | {"cuts": ["0:raw/0:raw", route]}
    with pytest.raises(ProtocolError):
        Request.from_bytes(json.dumps(message).encode())


@pytest.mark.parametrize(
    ("first", "cut"), [("0:window", "2:webp"), ("0:raw", "2:webp"), ("0:window", "0:window"), ("0:raw", "0:raw")]
)
def test_a_relay_may_do_less_and_says_which_route_was_made(first, cut):
    made = Reply(1, Cut.parse(cut), b"payload", 4, 0.25, first=Cut.parse(first), relay_s=0.5, first_bytes=99)
    (reply,) = replies_of(batch_of([made], schema=ROUTED.schema), ROUTED)
    assert (reply.first, reply.cut, reply.relay_s, reply.first_bytes) == (made.first, made.cut, 0.5, 99)


@pytest.mark.parametrize(("first", "cut"), [("0:raw", "0:window"), ("2:webp", "2:webp"), ("0:window", "0:raw")])
def test_a_relay_that_makes_another_route_is_refused(first, cut):
    made = Reply(1, Cut.parse(cut), b"", first=Cut.parse(first))
    with pytest.raises(ProtocolError, match="asked for 2:webp or less"):
        list(replies_of(batch_of([made], schema=ROUTED.schema), ROUTED))


def test_who_asks_a_node_is_answered_by_a_node():
    with pytest.raises(ProtocolError, match="expected replies with columns"):
        list(replies_of(batch_of([Reply(0)]), ROUTED))
