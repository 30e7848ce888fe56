"""Record batches in closed envelopes, which a trainer looks at before it opens them.

Flight unpacks the columns of a record batch as soon as it comes, and what it allocates for that is what the other side
says: 33 KB of compressed zeros become a gigabyte. So a trainer has replies sent beside the columns, as bytes that
Flight hands on as they are (``app_metadata``), in a stream whose only column is one of nulls, which has no bytes at
all. Each is either a stream's clock, in JSON, or a record batch as an Arrow IPC message. That takes one copy more on
the node.

A message is opened if its columns are not compressed; then its bytes are used where they lie, and nothing is allocated.
"""

from __future__ import annotations

import functools
import struct
from typing import Any

import pyarrow as pa

from sophon.errors import ProtocolError

CLOSED_SCHEMA = pa.schema([("closed", pa.null())])
_CONTINUATION = b"\xff\xff\xff\xff"  # how a message begins, and JSON does not
_HEADER, _COMPRESSION = 2, 3  # fields of the tables Message and RecordBatch in Arrow's Message.fbs


@functools.cache
def nothing() -> pa.RecordBatch:
    """Return the record batch that envelopes are sent with."""
    return pa.record_batch([pa.nulls(0)], schema=CLOSED_SCHEMA)


def enclosed(batch: pa.RecordBatch) -> pa.Buffer:
    """Return a record batch in an envelope."""
    # From malloc, which has such buffers used again (`process.arenas`); Arrow's own pool gives their pages back.
    return batch.serialize(memory_pool=pa.system_memory_pool())


def read_options() -> Any:
    """Return the options with which a stream of envelopes is read: whatever else is in it is not unpacked."""
    return pa.ipc.IpcReadOptions(included_fields=[0])


def is_clock(envelope: pa.Buffer) -> bool:
    """Return whether an envelope holds a clock and no record batch."""
    return bool(envelope[:4].to_pybytes() != _CONTINUATION)


def opened_batch(envelope: pa.Buffer, schema: pa.Schema) -> pa.RecordBatch:
    """Return the record batch in an envelope; its columns are views of the envelope.

    Raises:
        ProtocolError: It is none, has other columns, or is compressed.
    """
    try:
        message = pa.ipc.read_message(envelope)
        if message.type != "record batch" or _is_compressed(message.metadata.to_pybytes()):
            raise ProtocolError(f"expected a record batch that is not compressed, got another message ({message.type})")
        return pa.ipc.read_record_batch(message, schema)
    except (pa.ArrowException, OSError, ValueError, struct.error, IndexError) as error:
        raise ProtocolError(f"a damaged record batch: {str(error)[:200]}") from error


def _is_compressed(metadata: bytes) -> bool:
    """Return whether the header of a message, a flatbuffer that Arrow has verified, names a compression."""
    (root,) = struct.unpack_from("<I", metadata)
    header = _field(metadata, root, _HEADER)
    if not header:
        return True  # it cannot be told, so it is not opened
    header += struct.unpack_from("<I", metadata, header)[0]
    return _field(metadata, header, _COMPRESSION) != 0


def _field(data: bytes, table: int, number: int) -> int:
    """Return where a field of a table lies, 0 if it is not there."""
    start = table - struct.unpack_from("<i", data, table)[0]
    (length,) = struct.unpack_from("<H", data, start)
    at = 4 + 2 * number
    if start < 0 or at + 2 > length:
        return 0
    (offset,) = struct.unpack_from("<H", data, start + at)
    return table + int(offset) if offset else 0
