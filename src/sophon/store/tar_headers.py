r"""The tar format: finds each member of an archive without unpacking it.

Byte layout: blocks of 512 bytes. Each member is a header block, then its data padded to whole blocks; a block of zeros
ends the archive. ::

    0    name      100   may be continued by a GNU long name (type L) or a pax header (type x) before this one
    124  size       12   octal, or base 256 with the top bit set
    148  checksum    8   octal: sum of the block with this field as spaces
    156  type        1   0 or NUL: file; 1 … 6: links, devices, folders, which have no data; x, g: pax; L, K: GNU
    257  magic       6   "ustar\0": the prefix below counts
    345  prefix    155

Python's `tarfile` reads the same format and is the oracle in tests; it is slower per member, and keeps all members in
memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from sophon.errors import StoreError

_BLOCK = 512
_WINDOW = 4096  # bytes per read: a page, which often contains a small member and the next header too
_MAX_HEADER_BYTES = 1 << 20  # bytes of a long name or pax header; real ones have a few hundred
_NO_DATA = b"123456"
_EXTENSIONS = b"xXgLK"  # X is what Solaris writes for x
_FILES = b"0\0" + b"7"
_COMPRESSIONS = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd", b"BZh": "bzip2", b"\xfd7zXZ": "xz"}
_KEYS = (b"path", b"size")  # keys of a pax header, and those of sparse files
_SPARSE = b"GNU.sparse"
_REPACK = "Copy or pack the shard again, or remove it from the folder."


@dataclass(frozen=True, slots=True)
class Member:
    """One file in an archive."""

    name: bytes
    offset: int
    size: int


class Archive:
    """An open archive.

    Args:
        read_at: Returns a number of bytes, starting at an offset; fewer at the end of the archive.
        size: Size of the archive in bytes.
        where: Name of the archive in messages.
    """

    def __init__(self, read_at: Callable[[int, int], bytes], size: int, where: str) -> None:
        self._read_at = read_at
        self._size = size
        self._where = where
        self._start = 0
        self._window = b""
        self.ended = False  # a block of zeros was found; without one the archive may be truncated

    def members(self) -> Iterator[Member]:
        """Return the files in the archive, in order.

        Raises:
            StoreError: The archive is damaged or cut short.
        """
        if self._size < _BLOCK:
            raise self._no_archive(self.read(0, self._size))
        position = 0
        shared: dict[bytes, bytes] = {}
        own: dict[bytes, bytes] = {}
        while position < self._size:
            block = self.read(position, _BLOCK)
            if not any(block):
                self.ended = True
                return
            name, kind, size = self._parse(block, position)
            if b"size" in own and kind not in _EXTENSIONS:
                size = self._number(own[b"size"], position)
            data = position + _BLOCK
            length = 0 if kind in _NO_DATA else size
            end = data + -(-length // _BLOCK) * _BLOCK
            if end > self._size:
                raise self._damaged(f"a member of {size:,} bytes at byte {position:,} extends beyond its end")
            position = end
            if kind in _EXTENSIONS:
                (shared if kind == b"g" else own).update(self._extension(kind, data, length))
                continue
            extra, own = shared | own, {}
            if kind == b"S" or any(key.startswith(_SPARSE) for key in extra):
                raise self._damaged(f"member {name!r} is sparse", "Pack it again without --sparse.")
            name = extra.get(b"path", name)
            if kind in _FILES and not name.endswith(b"/"):
                yield Member(name, data, length)

    def read(self, position: int, size: int) -> bytes:
        """Return exactly the requested bytes of the archive."""
        if not self._start <= position <= position + size <= self._start + len(self._window):
            self._start, self._window = position, self._read_at(position, max(size, _WINDOW))
        start = position - self._start
        data = self._window[start : start + size]
        if len(data) < size:
            raise self._damaged(f"expected {size} bytes at byte {position:,}, got {len(data)}")
        return data

    def _parse(self, block: bytes, position: int) -> tuple[bytes, bytes, int]:
        checksum = block[148:156]
        found = _octal(checksum)
        if found is None or (found != sum(block) - sum(checksum) + 256 and found != _signed_sum(block)):
            raise self._damaged(f"no valid header at byte {position:,}") if position else self._no_archive(block)
        name = _text(block[:100])
        prefix = _text(block[345:500]) if block[257:263] == b"ustar\0" else b""
        size = self._base256(block, position) if block[124] & 0x80 else _octal(block[124:136])
        if size is None:
            raise self._damaged(f"the header at byte {position:,} has no valid size")
        return (prefix + b"/" + name if prefix else name), block[156:157], size

    def _base256(self, block: bytes, position: int) -> int:
        if block[124] != 0x80:
            raise self._damaged(f"the header at byte {position:,} has a negative size")
        return int.from_bytes(block[125:136], "big")

    def _extension(self, kind: bytes, data: int, length: int) -> dict[bytes, bytes]:
        """Return the attributes that a long name or pax header declares for the member after it."""
        if length > _MAX_HEADER_BYTES:
            raise self._damaged(f"the extended header at byte {data:,} has {length:,} bytes")
        content = self.read(data, length)
        if kind == b"L":
            return {b"path": _text(content)}
        if kind == b"K":
            return {}
        found = {}
        start = 0
        while start < length:
            # Each record is "LENGTH KEY=VALUE\n", where LENGTH counts the whole record.
            space = content.find(b" ", start, start + 10)
            digits = content[start:space] if space > 0 else b""
            total = int(digits) if digits.isdigit() else 0
            record = content[space + 1 : start + total] if total > len(digits) else b""
            key, equals, value = record[:-1].partition(b"=")
            if not equals or start + total > length or record[-1:] != b"\n":
                raise self._damaged(f"the pax header at byte {data:,} does not consist of records")
            if key in _KEYS or key.startswith(_SPARSE):  # a hostile archive may have very many others
                found[key] = value
            start += total
        return found

    def _number(self, digits: bytes, position: int) -> int:
        if not digits.isdigit() or len(digits) > 18:
            raise self._damaged(f"the pax header before byte {position:,} has no valid size")
        return int(digits)

    def _damaged(self, problem: str, remedy: str = "") -> StoreError:
        return StoreError(f"{self._where} is damaged or cut short: {problem}. {remedy or _REPACK}")

    def _no_archive(self, start: bytes) -> StoreError:
        form = next((name for magic, name in _COMPRESSIONS.items() if start.startswith(magic)), None)
        remedy = f"It is compressed with {form}; decompress it, since samples are read in place." if form else _REPACK
        return StoreError(f"{self._where} is not a tar archive. {remedy}")


def _text(field: bytes) -> bytes:
    return field.partition(b"\0")[0]


def _octal(field: bytes) -> int | None:
    digits = field.strip(b" \0")
    if not digits.isdigit():
        digits = digits.partition(b"\0")[0].rstrip() or b"0"
    try:
        return int(digits, 8) if digits.isdigit() else None
    except ValueError:
        return None


def _signed_sum(block: bytes) -> int:
    # Some old archivers summed signed characters.
    fields = block[:148] + b" " * 8 + block[156:]
    return sum(fields) - 256 * sum(byte > 127 for byte in fields)
