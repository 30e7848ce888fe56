"""Records the progress of listing a bucket in a file, so that an interrupted listing can continue.

A file of frames: length and CRC-32 of a piece, then the piece as an Arrow IPC stream, whose schema metadata name the
folder and say whether it is done. Reading stops at the first truncated or damaged frame.
"""

from __future__ import annotations

import json
import os
import struct
import zlib
from pathlib import Path
from typing import Final

import pyarrow as pa

from sophon.artifact import ARROW_ERRORS
from sophon.store.bucket.client import Object
from sophon.store.bucket.tree import Piece

_FRAME: Final = struct.Struct("<QI")
_META: Final = b"sophon.piece"
_SCHEMA: Final = pa.schema(
    [
        ("key", pa.string()),
        ("size", pa.int64()),
        ("etag", pa.string()),
        ("changed_ns", pa.int64()),
        ("version", pa.string()),
    ]
)


class Journal:
    """The pieces of a listing.

    Args:
        path: The file; it may not exist yet.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.pieces = self._load()
        self._file = path.open("ab")

    def add(self, piece: Piece) -> None:
        """Append a piece of the listing."""
        meta = {"folder": piece.folder, "last": piece.last, "is_done": piece.is_done}
        columns = zip(*piece.objects, strict=True) if piece.objects else [[]] * len(_SCHEMA)
        arrays = [pa.array(column, field.type) for column, field in zip(columns, _SCHEMA, strict=True)]
        sink = pa.BufferOutputStream()
        schema = _SCHEMA.with_metadata({_META: json.dumps(meta).encode()})
        with pa.ipc.new_stream(sink, schema) as writer:
            writer.write_batch(pa.record_batch(arrays, schema))
        data = sink.getvalue().to_pybytes()
        self._file.write(_FRAME.pack(len(data), zlib.crc32(data)) + data)
        self._file.flush()

    def _load(self) -> list[Piece]:
        pieces: list[Piece] = []
        if not self._path.is_file():
            return pieces
        with self._path.open("rb") as file:
            good, whole = 0, self._path.stat().st_size
            while len(head := file.read(_FRAME.size)) == _FRAME.size:
                size, crc = _FRAME.unpack(head)
                data = file.read(min(size, whole))
                if len(data) != size or zlib.crc32(data) != crc:
                    break
                try:
                    pieces.append(_piece(data))
                except ARROW_ERRORS:
                    break
                good = file.tell()
        os.truncate(self._path, good)
        return pieces

    def close(self) -> None:
        """Close the file and keep it."""
        self._file.close()

    def remove(self) -> None:
        """Remove the file: the listing is done."""
        self._file.close()
        self._path.unlink(missing_ok=True)


def _piece(data: bytes) -> Piece:
    with pa.ipc.open_stream(data) as reader:
        table = reader.read_all()
    meta = json.loads(table.schema.metadata[_META])
    objects = [Object(*row) for row in zip(*(column.to_pylist() for column in table.columns), strict=True)]
    return Piece(str(meta["folder"]), objects, str(meta["last"]), bool(meta["is_done"]))
