"""Envelopes: the same bytes as Arrow's own writer makes, whatever is in them and however little blank there is."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sophon.errors import ProtocolError, StoreError
from sophon.link.closed import Envelope, clock_and_message, enclosed, opened_batch
from sophon.link.wire import REPLY_SCHEMA, Reply, StreamClock, batch_of, raw_batch

PAYLOADS = st.lists(st.binary(max_size=300), min_size=1, max_size=8)


@given(PAYLOADS, st.integers(0, 20_000))
def test_an_envelope_around_replies_is_what_arrow_writes(payloads, text_size):
    problem = StoreError("x" * text_size) if text_size else None
    replies = [Reply(position, payload=data, error=problem) for position, data in enumerate(payloads)]
    blank = Envelope(len(replies), sum(map(len, payloads)))
    batch = batch_of(replies, blank)
    assert batch.equals(batch_of(replies))
    envelope = blank.enclosed(batch)
    assert envelope.to_pybytes() == batch.serialize().to_pybytes()
    assert opened_batch(envelope, REPLY_SCHEMA).equals(batch)
    assert blank.memory.tobytes() == b"".join(payloads)


@given(PAYLOADS, st.integers(0, 5000))
def test_so_is_one_around_a_run_some_of_which_could_not_be_read(payloads, unused):
    read = b"".join(payloads)
    blank = Envelope(len(payloads), len(read) + unused)
    blank.memory[: len(read)] = read
    ends = np.cumsum([len(data) for data in payloads], dtype=np.int32)
    batch = raw_batch(np.arange(len(payloads), dtype=np.int32), ends, blank.payloads, None)
    envelope = blank.enclosed(batch)
    assert envelope.to_pybytes() == batch.serialize().to_pybytes()
    assert opened_batch(envelope, REPLY_SCHEMA).column("payload").to_pylist() == payloads


def test_payloads_are_not_copied():
    blank = Envelope(2, 1 << 20)
    blank.memory[:] = bytes(1 << 20)
    batch = raw_batch(np.arange(2, dtype=np.int32), np.array([5, 1 << 20], np.int32), blank.payloads, None)
    envelope = blank.enclosed(batch)
    assert envelope.address < blank.payloads.address < envelope.address + envelope.size
    opened = opened_batch(envelope, REPLY_SCHEMA)
    assert opened.column("payload").buffers()[2].address == blank.payloads.address


@given(PAYLOADS, st.sampled_from([b"", StreamClock().to_bytes(), StreamClock(1 / 3, 2e9, 7, 1 << 60, 0.1).to_bytes()]))
def test_a_clock_and_a_batch_in_one_envelope_are_told_apart(payloads, clock):
    replies = [Reply(position, payload=data) for position, data in enumerate(payloads)]
    blank = Envelope(len(replies), sum(map(len, payloads)))
    batch = batch_of(replies, blank)
    for envelope in (blank.enclosed(batch, clock), enclosed(batch, clock)):
        found, message = clock_and_message(envelope)
        assert found.rstrip() == clock
        assert message.to_pybytes() == batch.serialize().to_pybytes()
        assert opened_batch(message, REPLY_SCHEMA).equals(batch)
    if clock:
        assert clock_and_message(pa.py_buffer(clock)) == (clock, None)


@pytest.mark.parametrize("codec", ["zstd", "lz4"])
def test_what_is_compressed_stays_closed(codec):
    batch = batch_of([Reply(0, payload=bytes(100_000))])
    options = pa.ipc.IpcWriteOptions(compression=codec)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, REPLY_SCHEMA, options=options) as stream:
        stream.write_batch(batch)
    reader = pa.ipc.MessageReader.open_stream(sink.getvalue())
    reader.read_next_message()  # the schema
    with pytest.raises(ProtocolError, match="uncompressed record batch"):
        opened_batch(reader.read_next_message().serialize(), REPLY_SCHEMA)


@pytest.mark.parametrize("data", [b"", b"\xff\xff\xff\xff", b"\xff\xff\xff\xff" + bytes(4), b"\xff" * 200])
def test_what_is_no_message_is_a_protocol_error(data):
    with pytest.raises(ProtocolError):
        opened_batch(pa.py_buffer(data), REPLY_SCHEMA)
