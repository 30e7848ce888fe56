"""A node that lies: opens as it is told to, and answers requests with whatever was made for the purpose."""

from __future__ import annotations

import functools
import io
import json
import struct
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
from PIL import Image
from pyarrow import flight

from sophon.codec.table import offered
from sophon.link.closed import CLOSED_SCHEMA, enclosed, nothing
from sophon.link.wire import PROTOCOLS, REPLY_SCHEMA, Reply, Request, StreamClock, batch_of
from sophon.pipeline.probe import versions

ANSWER = {
    "dataset": "data",
    "samples": 64,
    "fingerprint": "0" * 32,
    "classes": [],
    "has_labels": False,
    "columns": ["id"],
    "cores": 1,
    "codecs": offered(),
    "protocols": list(PROTOCOLS),
    "versions": versions(),
}
GIB = 1 << 30
Stream = Iterator[tuple[pa.RecordBatch, Any]]


class Liar(flight.FlightServerBase):
    """A node that says and sends what it is told to.

    Args:
        said: What it says at opening, besides what an honest one does.
        stream: Given a request, returns the schema of an answer and what is in it.
    """

    def __init__(self, said: dict[str, Any] | None = None, stream: Callable[[Request], Any] | None = None) -> None:
        self._answer = json.dumps({**ANSWER, **(said or {})}).encode()
        self._stream = stream
        super().__init__("grpc://127.0.0.1:0")

    @property
    def url(self) -> str:
        """Where it is."""
        return f"grpc://127.0.0.1:{self.port}/data"

    def do_action(self, _: Any, action: flight.Action) -> list[bytes]:
        """Open."""
        return [self._answer] if action.type == "open" else []

    def do_get(self, _: Any, ticket: flight.Ticket) -> flight.GeneratorStream:
        """Answer."""
        assert self._stream is not None
        return flight.GeneratorStream(*self._stream(Request.from_bytes(ticket.ticket)))


def payloads(data: bytes, *others: bytes) -> Callable[[Request], Any]:
    """Answer each sample with the same bytes, as honest nodes send them; or the first of a request, and others."""

    def stream(request: Request) -> tuple[pa.Schema, Stream]:
        sent = [data, *(others or (data,)) * len(request.samples)]
        batch = batch_of([Reply(position, payload=sent[position]) for position in range(len(request.samples))])
        parts = [(nothing(), StreamClock().to_bytes()), (nothing(), enclosed(batch))]
        return CLOSED_SCHEMA, iter(parts)

    return stream


def _zeros() -> pa.RecordBatch:
    """Return a record batch of a gigabyte of zeros."""
    offsets = np.array([0, GIB - 1], np.int32)
    column = pa.Array.from_buffers(pa.binary(), 1, [None, pa.py_buffer(offsets), pa.py_buffer(bytes(GIB - 1))])
    whole = batch_of([Reply(0)])
    return whole.set_column(REPLY_SCHEMA.get_field_index("payload"), "payload", column)


def compressed_columns(_: Request) -> tuple[pa.Schema, Any]:
    """Answer with columns of compressed zeros, where envelopes were asked for."""
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    return REPLY_SCHEMA, (batch for batch in [_zeros()] * 8), options


def compressed_envelopes(_: Request) -> tuple[pa.Schema, Stream]:
    """Answer with compressed zeros in envelopes."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, REPLY_SCHEMA, options=pa.ipc.IpcWriteOptions(compression="zstd")) as writer:
        writer.write_batch(_zeros())
    reader = pa.ipc.MessageReader.open_stream(sink.getvalue())
    reader.read_next_message()  # the schema
    envelope = reader.read_next_message().serialize()
    return CLOSED_SCHEMA, iter([(nothing(), envelope)] * 8)


def jpeg(width: int, height: int, **options: Any) -> bytes:
    """Return a picture of one colour."""
    out = io.BytesIO()
    Image.new("RGB", (width, height), (90, 120, 40)).save(out, "JPEG", **options)
    return out.getvalue()


def png_of_chunks(count: int) -> bytes:
    """Return a picture of 8 x 8 pixels with so many empty chunks, each of which Pillow looks at in Python."""

    def chunk(kind: bytes, data: bytes = b"") -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = chunk(b"IHDR", struct.pack(">IIBBBBB", 8, 8, 8, 2, 0, 0, 0))
    pixels = chunk(b"IDAT", zlib.compress(bytes(25 * 8)))
    return b"\x89PNG\r\n\x1a\n" + head + chunk(b"aaAa") * count + pixels + chunk(b"IEND")


@functools.cache
def many_scans(width: int, height: int, count: int) -> bytes:
    """Return a progressive file with one of its scans again and again."""
    data = jpeg(width, height, progressive=True)
    starts = [at for at in range(len(data) - 1) if data[at : at + 2] == b"\xff\xda"]
    end = starts[1] + 4
    while not (data[end] == 0xFF and data[end + 1] not in (0, *range(0xD0, 0xD8))):
        end += 1
    return data[:end] + data[starts[1] : end] * count + b"\xff\xd9"


def of_claimed_size(width: int, height: int) -> bytes:
    """Return a file of some hundred bytes that claims to be a large picture."""
    data = bytearray(jpeg(16, 16))
    at = data.index(b"\xff\xc0")
    data[at + 5 : at + 9] = struct.pack(">HH", height, width)
    return bytes(data)
