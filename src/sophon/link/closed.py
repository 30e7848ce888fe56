"""Record batches in closed envelopes, which a trainer checks before it opens them.

Flight unpacks the columns of a record batch as soon as it arrives, and allocates whatever the other side declares: 33
KB of compressed zeros would become a gigabyte. So a trainer has replies sent outside the columns, as bytes that Flight
passes on unchanged (``app_metadata``), in a stream whose only column consists of nulls and has no bytes at all. Each
envelope contains the stream's clock, in JSON, or a record batch as an Arrow IPC message, or the clock followed by a
record batch, since every message costs the node some 0.1 ms of CPU, however short it is.

Flight copies such bytes once. To avoid a second copy, payloads are put into memory with free space around them
(`Envelope`), into which the rest of the message is written: the parts before and after the payloads.

A message is opened only if its columns are not compressed; its bytes are then used in place, and nothing is allocated.
"""

from __future__ import annotations

import functools
import struct
from typing import Any

import numpy as np
import pyarrow as pa

from sophon.errors import ProtocolError
from sophon.link.slabs import lend

CLOSED_SCHEMA = pa.schema([("closed", pa.null())])
_CONTINUATION = b"\xff\xff\xff\xff"  # how a message begins; no byte of it can be in JSON
_MOST_CLOCK_BYTES = 1024
_CLOCK_ALIGNMENT = 64  # a message after a clock is aligned like one without
_EDGE_BYTES, _ROW_BYTES = 4096, 128  # space on each side of payloads: for the header of a message, and for each row
_PREFIX_BYTES, _ALIGNMENT = 8, 8  # bytes before the header of a message; parts of a message start at multiples of 8
# Fields of the tables Message and RecordBatch in Arrow's Message.fbs.
_HEADER, _BODY_LENGTH = 2, 3
_BUFFERS, _COMPRESSION = 2, 3
_NO_BYTES = pa.py_buffer(b"")


@functools.cache
def nothing() -> pa.RecordBatch:
    """Return the record batch that envelopes are sent with."""
    return pa.record_batch([pa.nulls(0)], schema=CLOSED_SCHEMA)


class Envelope:
    """Memory for the payloads of a record batch, with space around them for the rest of an envelope.

    Args:
        rows: Number of payloads.
        size_bytes: Total size of the payloads, in bytes.

    Attributes:
        payloads: Buffer of the payloads, side by side from its start.
        memory: The same memory, writable.
    """

    def __init__(self, rows: int, size_bytes: int) -> None:
        self._edge_bytes = _EDGE_BYTES + _ROW_BYTES * rows
        self._all = pa.py_buffer(lend(size_bytes + 2 * self._edge_bytes))
        self.payloads: pa.Buffer = self._all.slice(self._edge_bytes, size_bytes)
        self.memory = memoryview(self._all).cast("B")[self._edge_bytes : self._edge_bytes + size_bytes]

    def enclosed(self, batch: pa.RecordBatch, clock: bytes = b"") -> pa.Buffer:
        """Return an envelope with a clock and a record batch, built around the payloads here."""
        around = _around(batch, self.payloads)
        if around is None:
            return enclosed(batch, clock)
        before, size_bytes, after = around
        clock = _padded(clock)
        head_bytes = len(clock) + len(before)
        if max(head_bytes, len(after) + size_bytes - self.payloads.size) > self._edge_bytes:
            return enclosed(batch, clock)
        start, end = self._edge_bytes - head_bytes, self._edge_bytes + size_bytes
        memory = memoryview(self._all).cast("B")
        memory[start : start + len(clock)] = clock
        memory[start + len(clock) : self._edge_bytes] = before
        memory[end : end + len(after)] = after
        return self._all.slice(start, head_bytes + size_bytes + len(after))


def _around(batch: pa.RecordBatch, payloads: pa.Buffer) -> tuple[memoryview, int, bytes] | None:
    """Return a record batch message without its payloads: the part before them, their size and the part after.

    Arrow writes the message as if there were no payloads. Then they are let in: their offsets are inserted, and
    the offsets of everything after them are increased. Return None if the payloads are not in that buffer.
    """
    number, column, found = 2, 0, batch.column(0)
    while not pa.types.is_binary(found.type):
        number += len(found.buffers())  # index of the payloads' buffer among all buffers
        column += 1
        found = batch.column(column)
    _, offsets, data = found.buffers()
    if not batch.num_rows or data is None or data.address != payloads.address or found.offset:
        return None
    starts = np.frombuffer(offsets, np.int32, batch.num_rows + 1)
    size_bytes = int(starts[-1])
    if starts[0] or not size_bytes:
        return None
    none = pa.Array.from_buffers(pa.binary(), batch.num_rows, [None, pa.py_buffer(bytes(starts.nbytes)), _NO_BYTES])
    message = bytearray(batch.set_column(column, batch.schema.field(column), none).serialize())
    header_end = _PREFIX_BYTES + struct.unpack_from("<i", message, 4)[0]
    length_at, buffers_at = _places(message)
    count = struct.unpack_from("<I", message, buffers_at)[0]
    # Structs of an offset and a length each.
    buffers = np.frombuffer(message, "<i8", 2 * count, buffers_at + 4).reshape(count, 2)
    end = header_end + int(buffers[number, 0])
    offsets_at = header_end + int(buffers[number - 1, 0])
    message[offsets_at : offsets_at + starts.nbytes] = starts.tobytes()
    padding_bytes = -size_bytes % _ALIGNMENT
    buffers[number, 1] = size_bytes
    buffers[number + 1 :, 0] += size_bytes + padding_bytes
    (body_bytes,) = struct.unpack_from("<q", message, length_at)
    struct.pack_into("<q", message, length_at, body_bytes + size_bytes + padding_bytes)
    return memoryview(message)[:end], size_bytes, bytes(padding_bytes) + message[end:]


def _places(message: bytearray) -> tuple[int, int]:
    """Return the offsets of the body length and of the buffer list in a record batch message."""
    root = _PREFIX_BYTES + struct.unpack_from("<I", message, _PREFIX_BYTES)[0]
    header = _field(message, root, _HEADER)
    header += struct.unpack_from("<I", message, header)[0]
    buffers = _field(message, header, _BUFFERS)
    return _field(message, root, _BODY_LENGTH), buffers + struct.unpack_from("<I", message, buffers)[0]


def enclosed(batch: pa.RecordBatch, clock: bytes = b"") -> pa.Buffer:
    """Return an envelope with a clock and a record batch."""
    message = batch.serialize(memory_pool=pa.system_memory_pool())
    return pa.py_buffer(_padded(clock) + message.to_pybytes()) if clock else message


def _padded(clock: bytes) -> bytes:
    return clock + b" " * (-len(clock) % _CLOCK_ALIGNMENT)


def read_options() -> Any:
    """Return the options for reading a stream of envelopes: nothing else in the stream is unpacked."""
    return pa.ipc.IpcReadOptions(included_fields=[0])


def clock_and_message(envelope: pa.Buffer) -> tuple[bytes, pa.Buffer | None]:
    """Return the clock in an envelope, or no bytes, and the message of its record batch, or None."""
    head = envelope[:_MOST_CLOCK_BYTES].to_pybytes()
    at = head.find(_CONTINUATION[:1])
    return (head, None) if at < 0 else (head[:at], envelope.slice(at))


def opened_batch(message: pa.Buffer, schema: pa.Schema) -> pa.RecordBatch:
    """Return the record batch of a message from an envelope; its columns are views of the envelope.

    Raises:
        ProtocolError: The message is not a record batch, has different columns, or is compressed.
    """
    try:
        found = pa.ipc.read_message(message)
        if found.type != "record batch" or _is_compressed(found.metadata.to_pybytes()):
            raise ProtocolError(f"expected an uncompressed record batch, got a different message ({found.type})")
        return pa.ipc.read_record_batch(found, schema)
    except (pa.ArrowException, EOFError, OSError, ValueError, struct.error, IndexError) as error:
        raise ProtocolError(f"the record batch is damaged: {str(error)[:200]}") from error


def _is_compressed(metadata: bytes) -> bool:
    """Return whether the header of a message, a flatbuffer that Arrow has verified, names a compression."""
    (root,) = struct.unpack_from("<I", metadata)
    header = _field(metadata, root, _HEADER)
    if not header:
        return True  # cannot be determined, so the message is not opened
    header += struct.unpack_from("<I", metadata, header)[0]
    return _field(metadata, header, _COMPRESSION) != 0


def _field(data: bytes | bytearray, table: int, number: int) -> int:
    """Return the offset of a table's field; 0 if it is absent."""
    start = table - struct.unpack_from("<i", data, table)[0]
    (length,) = struct.unpack_from("<H", data, start)
    at = 4 + 2 * number
    if start < 0 or at + 2 > length:
        return 0
    (offset,) = struct.unpack_from("<H", data, start + at)
    return table + int(offset) if offset else 0
