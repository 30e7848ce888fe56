"""Record batches in closed envelopes, which a trainer checks before it opens them.

Flight unpacks the columns of a record batch as soon as it arrives, and allocates whatever the other side declares: 33
KB of compressed zeros become a gigabyte. So a trainer has replies sent outside the columns, as bytes that Flight passes
on unchanged (``app_metadata``), in a stream whose only column consists of nulls and has no bytes at all. Each is either
a stream's clock, in JSON, or a record batch as an Arrow IPC message.

Flight copies such bytes once. To avoid a second copy, payloads are put into memory with free space around them
(`Room`), into which the rest of the message is written: the parts before and after the payloads.

A message is opened if its columns are not compressed; then its bytes are used in place, and nothing is allocated.
"""

from __future__ import annotations

import functools
import io
import struct
from typing import Any

import pyarrow as pa

from sophon.errors import ProtocolError

CLOSED_SCHEMA = pa.schema([("closed", pa.null())])
_CONTINUATION = b"\xff\xff\xff\xff"  # how a message begins, and JSON does not
_EDGE_BYTES, _ROW_BYTES = 4096, 128  # space on each side of payloads: for the header of a message, and for each row
_HEADER, _COMPRESSION = 2, 3  # fields of the tables Message and RecordBatch in Arrow's Message.fbs


@functools.cache
def nothing() -> pa.RecordBatch:
    """Return the record batch that envelopes are sent with."""
    return pa.record_batch([pa.nulls(0)], schema=CLOSED_SCHEMA)


class Room:
    """Memory for the payloads of a record batch, with space for the rest of an envelope.

    Args:
        rows: How many payloads.
        size_bytes: Size of all of them, in bytes.

    Attributes:
        payloads: Buffer of the payloads, side by side from its start.
        memory: The same, to be written to.
    """

    def __init__(self, rows: int, size_bytes: int) -> None:
        self._edge_bytes = _EDGE_BYTES + _ROW_BYTES * rows
        # From malloc, which reuses such buffers (`process.arenas`); Arrow's own pool returns their pages.
        self._all = pa.allocate_buffer(size_bytes + 2 * self._edge_bytes, memory_pool=pa.system_memory_pool())
        self.payloads: pa.Buffer = self._all.slice(self._edge_bytes, size_bytes)
        self.memory = memoryview(self._all).cast("B")[self._edge_bytes : self._edge_bytes + size_bytes]

    def enclosed(self, batch: pa.RecordBatch) -> pa.Buffer:
        """Return a record batch whose payloads are here in an envelope that is built around them."""
        parts = _parts(batch)
        at = next((at for at, part in enumerate(parts) if part.address == self.payloads.address and part.size), None)
        if at is None:  # there are no payloads
            return enclosed(batch)
        before, after = b"".join(parts[:at]), b"".join(parts[at + 1 :])
        if max(len(before), len(after) + parts[at].size - self.payloads.size) > self._edge_bytes:
            return enclosed(batch)
        start, end = self._edge_bytes - len(before), self._edge_bytes + parts[at].size
        memory = memoryview(self._all).cast("B")
        memory[start : self._edge_bytes] = before
        memory[end : end + len(after)] = after
        return self._all.slice(start, len(before) + parts[at].size + len(after))


class _Parts(io.RawIOBase):
    """A file that Arrow writes a stream to; it keeps the parts unchanged."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[pa.Buffer] = []

    def writable(self) -> bool:
        """Return True: it can be written to."""
        return True

    def write(self, part: Any) -> int:
        """Append one part of the message."""
        self.found.append(part if isinstance(part, pa.Buffer) else pa.py_buffer(part))
        return len(part)


def _parts(batch: pa.RecordBatch) -> list[pa.Buffer]:
    """Return the message of a record batch in parts; columns are not copied."""
    sink = _Parts()
    with pa.PythonFile(sink, "w") as file:
        stream = pa.ipc.new_stream(file, batch.schema)
        stream.write_batch(batch)
    schema_bytes, at = _schema_bytes(batch.schema), 0  # which comes first
    while schema_bytes > 0:
        schema_bytes -= len(sink.found[at])
        at += 1
    return sink.found[at:]


@functools.cache
def _schema_bytes(schema: pa.Schema) -> int:
    return int(schema.serialize().size)


def enclosed(batch: pa.RecordBatch) -> pa.Buffer:
    """Return a record batch in an envelope."""
    return batch.serialize(memory_pool=pa.system_memory_pool())


def read_options() -> Any:
    """Return the options with which a stream of envelopes is read: nothing else in it is unpacked."""
    return pa.ipc.IpcReadOptions(included_fields=[0])


def is_clock(envelope: pa.Buffer) -> bool:
    """Return whether an envelope contains a clock rather than a record batch."""
    return bool(envelope[:4].to_pybytes() != _CONTINUATION)


def opened_batch(envelope: pa.Buffer, schema: pa.Schema) -> pa.RecordBatch:
    """Return the record batch in an envelope; its columns are views of the envelope.

    Raises:
        ProtocolError: It is not a record batch, has other columns, or is compressed.
    """
    try:
        message = pa.ipc.read_message(envelope)
        if message.type != "record batch" or _is_compressed(message.metadata.to_pybytes()):
            raise ProtocolError(f"expected a record batch that is not compressed, got another message ({message.type})")
        return pa.ipc.read_record_batch(message, schema)
    except (pa.ArrowException, EOFError, OSError, ValueError, struct.error, IndexError) as error:
        raise ProtocolError(f"a damaged record batch: {str(error)[:200]}") from error


def _is_compressed(metadata: bytes) -> bool:
    """Return whether the header of a message, a flatbuffer that Arrow has verified, names a compression."""
    (root,) = struct.unpack_from("<I", metadata)
    header = _field(metadata, root, _HEADER)
    if not header:
        return True  # it cannot be determined, so it is not opened
    header += struct.unpack_from("<I", metadata, header)[0]
    return _field(metadata, header, _COMPRESSION) != 0


def _field(data: bytes, table: int, number: int) -> int:
    """Return the offset of a field of a table; 0 if it is absent."""
    start = table - struct.unpack_from("<i", data, table)[0]
    (length,) = struct.unpack_from("<H", data, start)
    at = 4 + 2 * number
    if start < 0 or at + 2 > length:
        return 0
    (offset,) = struct.unpack_from("<H", data, start + at)
    return table + int(offset) if offset else 0
