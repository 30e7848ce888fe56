"""Lists of the samples that a node holds, used to tell the parts of a data set apart and to put them together.

Listings are requested only if nodes turn out to hold different samples. A listing is sent in pieces, each the answer to
a Flight action ``listing`` with the body ``{"dataset": "train", "fingerprint": "…", "start": 50000}``: a JSON header
``{"rows": 50000, "id_bytes": 1250000, "has_labels": true, "kind": "folder"}``, and a zstd frame of

    lengths of the ids in bytes, uint32 | the ids, UTF-8 | sizes of the files, int64 | labels, int64, if there are any
    | digests of the data that the manifest stores for a sample, such as boxes, int64, if any ("has_kept")

all little-endian. A million samples with names like ImageNet's take 20 pieces and about 9 MB. The other side is not
trusted: rows and bytes are bounded before anything is unpacked, and the whole must have the fingerprint that the node
announced.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from sophon.errors import ProtocolError
from sophon.link.wire import parse_json
from sophon.store.manifest import Manifest, fingerprint_of
from sophon.store.pages.columns import whole

_ROWS = 50_000  # rows in one piece: at a megabit per second it takes a few seconds, and a call may take ten
_PIECE_ID_BYTES = 16 << 20  # bytes of ids in one piece; a single longer id is still sent
_MAX_ID_BYTES = _PIECE_ID_BYTES + (1 << 20)  # longest id that is accepted
_MOST_ID_BYTES = 512 << 20  # of all ids together: 32 bytes for each of the most samples that are accepted
_MOST_TRUSTED_BYTES = 16 << 30
_LEAST_SHARE = 8  # a piece other than the last has at least this share of a full piece's rows or id bytes
_MAX_KIND = 64


@dataclass(frozen=True, eq=False)
class Listing:
    """The samples of one source, in its own order.

    Args:
        kind: Kind of the store.
        ids: Id of each sample.
        sizes: Bytes of each sample's file.
        labels: Label of each sample, as the source numbers them; None if there are none.
        kept: Digest of the data that the manifest itself stores for each sample; None if there is none.
    """

    kind: str
    ids: pa.LargeStringArray
    sizes: NDArray[np.int64]
    labels: NDArray[np.int64] | None
    kept: NDArray[np.int64] | None = None

    def __len__(self) -> int:
        return len(self.sizes)

    @classmethod
    def of(cls, manifest: Manifest) -> Listing:
        """Return the listing of a manifest."""
        return cls(manifest.kind, whole(manifest.ids), manifest.sizes, manifest.labels, manifest.kept)


def piece_of(manifest: Manifest, start: int) -> list[bytes]:
    """Return a piece of a listing as it is sent: a header, and as many rows from `start` on as fit."""
    start = min(max(start, 0), len(manifest))
    ids = manifest.ids.slice(start, _ROWS)
    lengths = np.diff(_offsets(ids))
    rows = max(1, int(np.searchsorted(np.cumsum(lengths), _PIECE_ID_BYTES, side="right"))) if len(ids) else 0
    ids, lengths = ids.slice(0, rows), lengths[:rows]
    part = slice(start, start + rows)
    header = {
        "rows": rows,
        "id_bytes": int(lengths.sum()),
        "has_labels": manifest.labels is not None,
        "has_kept": manifest.kept is not None,
        "kind": manifest.kind,
    }
    packed = [lengths.astype("<u4").tobytes(), _text(ids), manifest.sizes[part].astype("<i8").tobytes()]
    for column in (manifest.labels, manifest.kept):
        if column is not None:
            packed.append(column[part].astype("<i8").tobytes())
    return [json.dumps(header).encode(), pa.Codec("zstd").compress(b"".join(packed), asbytes=True)]


def _offsets(ids: pa.LargeStringArray) -> NDArray[np.int64]:
    if not len(ids):
        return np.zeros(1, np.int64)
    return np.frombuffer(ids.buffers()[1], np.int64)[ids.offset : ids.offset + len(ids) + 1]


def _text(ids: pa.LargeStringArray) -> bytes:
    offsets, data = _offsets(ids), ids.buffers()[2] if len(ids) else None
    return b"" if data is None else bytes(memoryview(data)[int(offsets[0]) : int(offsets[-1])])


def received(
    ask: Callable[[int], Sequence[bytes]], samples: int, fingerprint: str, *, trusted: bool = False
) -> Listing:
    """Return the listing of a node, requested piece by piece.

    Args:
        ask: Requests the piece that starts at a row.
        samples: How many rows the node has announced.
        fingerprint: Fingerprint that the listing must have.
        trusted: Whether the user trusts the node, so that the longest lists are accepted.

    Raises:
        ProtocolError: The node sent anything else.
    """
    pieces: list[Listing] = []
    start, left_bytes = 0, _MOST_TRUSTED_BYTES if trusted else _MOST_ID_BYTES
    while start < samples or not pieces:  # an empty node's listing still tells whether it has labels
        pieces.append(_unpacked(ask(start), samples - start))
        start += len(pieces[-1])
        left_bytes -= pieces[-1].ids.nbytes
        if left_bytes < 0:  # ids of one letter, over and over again, cost a node next to nothing
            raise ProtocolError(
                f"ids of more than {_MOST_ID_BYTES:,} bytes; accept more from your own node with "
                "Credentials(trusted=True)"
            )
    if len({(piece.kind, piece.labels is None, piece.kept is None) for piece in pieces}) > 1:
        raise ProtocolError("the pieces of the listing are of different kinds")
    listing = _joined(pieces)
    found = fingerprint_of(listing.ids, listing.sizes, listing.labels, listing.kept)
    if found != fingerprint:
        raise ProtocolError(f"expected a listing with the fingerprint {fingerprint}, got {found}")
    return listing


def _joined(pieces: list[Listing]) -> Listing:
    labels = [piece.labels for piece in pieces if piece.labels is not None]
    kept = [piece.kept for piece in pieces if piece.kept is not None]
    return Listing(
        pieces[0].kind,
        pa.concat_arrays([piece.ids for piece in pieces]),
        np.concatenate([piece.sizes for piece in pieces]),
        np.concatenate(labels) if labels else None,
        np.concatenate(kept) if kept else None,
    )


def _unpacked(parts: Sequence[bytes], most: int) -> Listing:
    """Parse a received piece, which has at most the given number of rows, and return it."""
    if len(parts) != 2:
        raise ProtocolError(f"expected a header and a frame, got {len(parts)} messages")
    header = parse_json(parts[0])
    rows, id_bytes, kind = header.get("rows"), header.get("id_bytes"), header.get("kind")
    if not _is_within(rows, min(most, 1), min(most, _ROWS)) or not _is_within(id_bytes, 0, _MAX_ID_BYTES):
        raise ProtocolError(
            f"expected 1 … {min(most, _ROWS)} rows, got {rows!r:.40} with {id_bytes!r:.40} bytes of ids"
        )
    assert isinstance(rows, int)
    assert isinstance(id_bytes, int)
    if rows < min(most, _ROWS // _LEAST_SHARE) and id_bytes < _PIECE_ID_BYTES // _LEAST_SHARE:
        raise ProtocolError(
            f"got a piece of {rows:,} rows while {most:,} are left; with pieces this small the listing would never end"
        )
    if not isinstance(kind, str) or len(kind) > _MAX_KIND:
        raise ProtocolError(f"expected a kind of store, got {kind!r:.80}")
    has_labels, has_kept = (header.get(name) is True for name in ("has_labels", "has_kept"))
    size_bytes = 12 * rows + id_bytes + 8 * rows * (has_labels + has_kept)
    try:
        data = pa.Codec("zstd").decompress(parts[1], size_bytes, asbytes=True)
    except (OSError, pa.ArrowException) as error:
        raise ProtocolError(f"the listing is damaged: {error}") from error
    if len(data) != size_bytes:
        raise ProtocolError(f"expected a listing of {size_bytes:,} bytes, got {len(data):,}")
    lengths = np.frombuffer(data, "<u4", rows)
    offsets = np.zeros(rows + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    if offsets[-1] != id_bytes:
        raise ProtocolError(f"expected ids of {id_bytes:,} bytes, got {int(offsets[-1]):,}")
    text = data[4 * rows : 4 * rows + id_bytes]
    if (
        b"\0" in text
    ):  # ids of several nodes are sorted with zeros between folders and names, as no file's name has them
        raise ProtocolError("the listing has ids with zero bytes in them")
    ids = pa.LargeStringArray.from_buffers(rows, pa.py_buffer(offsets), pa.py_buffer(text))
    try:
        ids.validate(full=True)
    except pa.ArrowInvalid as error:
        raise ProtocolError(f"the ids are not valid UTF-8: {error}") from error
    rest = np.frombuffer(data, "<i8", offset=4 * rows + id_bytes).astype(np.int64)
    sizes, labels = rest[:rows], rest[rows : 2 * rows] if has_labels else None
    kept = rest[len(rest) - rows :] if has_kept else None
    if rows and sizes.min() < 0:
        raise ProtocolError("the listing has a file of negative size")
    return Listing(kind, ids, sizes, labels, kept)


def _is_within(value: object, least: int, most: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most
