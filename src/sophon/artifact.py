"""How files are replaced, and how versioned files are saved: Parquet columns with a JSON header.

Every file that this project keeps appears under its name only when it is whole (`replacing`).

The header of a versioned file is in the Parquet metadata under ``sophon``, with its CRC-32 next to it; pages carry
Parquet's own checksums, so a flipped bit is detected rather than planned with. The same table and header give
the same bytes: nothing here reads a clock.

Limits:
    Nothing in a file is trusted: its footer, header, column types, row count and row groups are checked
    against the bounds below before columns are read. A page header that lies can make Arrow reserve at most 2 GiB
    for one page.

Concurrency:
    Everything happens in the caller's thread. Arrow's threads would gain nothing for one column at a time, and as they
    outlive the call they may abort a short-lived process at its end (github.com/apache/arrow/issues/34314).
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import secrets
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any, BinaryIO, NoReturn

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from sophon.errors import ArtifactError
from sophon.version import __version__

MAX_ROWS = 2**28  # 27 × the ten million samples we plan for; a uint8 column of this length takes 256 MiB
MAX_COLUMNS = 4096  # four times what is needed: four columns for each of the 256 cuts a uint8 can name
MAX_HEADER_BYTES = 2**22
MAX_FOOTER_BYTES = 2**26
_ROW_GROUP_ROWS = 2**20  # 4 MiB per float32 column: what load and save hold in addition to the table itself
_MAX_ROW_GROUP_ROWS = 2**22
_MAX_ROW_GROUPS = 2**12
_MAGIC = b"PAR1"
# What Arrow raises on malformed bytes; not all of it is an ArrowException.
ARROW_ERRORS = (pa.ArrowException, OSError, ValueError, TypeError, KeyError, IndexError, OverflowError, MemoryError)
_KEY = b"sophon"
_KEY_CRC = b"sophon.crc32"


@dataclass(frozen=True)
class Header:
    """Description of a file: its contents, its origin and what it belongs to.

    Args:
        format: Name of the format, such as ``profile``.
        version: Version of that format; a reader accepts only the version it knows.
        fingerprints: What the content belongs to, such as ``pipeline`` and ``dataset``.
        provenance: How it was made: a JSON object.
        packages: Versions of the packages that wrote it.
    """

    format: str
    version: int
    fingerprints: Mapping[str, str] = field(default_factory=dict)
    provenance: Mapping[str, Any] = field(default_factory=dict)
    packages: Mapping[str, str] = field(default_factory=dict)


def package_versions() -> dict[str, str]:
    """Return the versions of the packages that determine a file's bytes."""
    return {"sophon": __version__, "numpy": metadata.version("numpy"), "pyarrow": metadata.version("pyarrow")}


@contextlib.contextmanager
def replacing(path: str | os.PathLike[str], *, sync: bool = False, beside: Path | None = None) -> Iterator[BinaryIO]:
    """Write a file that replaces `path` when the ``with`` block ends, whole or not at all.

    It is written under a temporary name in the same folder, since a rename is atomic within one file system only. The
    temporary name is new and cannot be guessed: threads, processes and hosts that share the folder never write to the
    same file, and no other process can have put a link there. If several write at once, the last one wins. The
    permissions are those that the umask leaves.

    Args:
        path: Where the file goes. An existing file is replaced; a link is replaced rather than followed.
        sync: Whether the content must be on disk before the rename. Without that a power cut may leave an empty file,
            which is acceptable if readers notice and the content can be regenerated.
        beside: Folder for the temporary file, on the same file system; by default the folder of `path`.

    Yields:
        The file, open for writing.

    Raises:
        OSError: The file cannot be written or renamed. Whatever is raised, the previous file stays and no other file is
            left. Only a killed process leaves its ``.sophon.*.partial`` behind, until `remove_leftovers` is called.
    """
    target = Path(path)
    file, partial = _begun(beside or target.parent)
    try:
        with file:
            yield file
            if sync:
                file.flush()
                os.fsync(file.fileno())
        partial.replace(target)
    except BaseException:
        with contextlib.suppress(OSError):
            partial.unlink()
        raise


def _begun(folder: Path) -> tuple[BinaryIO, Path]:
    """Return a new, locked file; the kernel releases the lock when the process ends, however it ends."""
    while True:
        partial = folder / f".sophon.{os.getpid()}.{secrets.token_hex(8)}.partial"
        file = partial.open("xb")
        with contextlib.suppress(OSError):  # a file system without locks: leftovers stay there
            fcntl.flock(file, fcntl.LOCK_SH)
        if os.fstat(file.fileno()).st_nlink:
            return file, partial
        file.close()  # another process took it for a leftover just before it was locked


def remove_leftovers(folder: Path) -> int:
    """Remove the half-written files that killed processes left in a folder; return how many there were."""
    count = 0
    try:
        partials = list(folder.glob(".sophon.*.partial"))
    except OSError:
        return 0
    for partial in partials:
        with contextlib.suppress(OSError), partial.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            partial.unlink()
            count += 1
    return count


def save(path: str | os.PathLike[str], header: Header, columns: Mapping[str, NDArray[Any]]) -> None:
    """Write `columns` under `header` to `path`, whole or not at all.

    Args:
        path: Where to write; an existing file is replaced.
        header: Header of the file; its `packages` are filled in when empty.
        columns: One-dimensional arrays of equal length. Contiguous ones are not copied.
    """
    target = Path(path)
    text = _encode(header)
    table = pa.table({name: pa.array(array) for name, array in columns.items()})
    # Floats hardly repeat, but a plan has few distinct cuts: three bits a sample instead of eight.
    repetitive = [name for name in columns if columns[name].dtype == np.uint8]
    try:
        with (
            replacing(target, sync=True) as file,
            pq.ParquetWriter(
                file,
                table.schema,
                compression="zstd",
                compression_level=1,
                use_dictionary=repetitive,
                write_statistics=False,
                write_page_checksum=True,
                store_schema=False,
            ) as writer,
        ):
            writer.write_table(table, row_group_size=_ROW_GROUP_ROWS)
            writer.add_key_value_metadata({_KEY: text, _KEY_CRC: b"%08x" % zlib.crc32(text)})
    except OSError as error:
        raise ArtifactError(
            f"{target}: cannot be written ({error.strerror or error}); choose a folder that exists, is writable and "
            "has space."
        ) from error


class Artifact:
    """An open file whose header has been checked; columns are read one at a time.

    Attributes:
        header: The file's header.
        rows: How many rows every column has.
        path: Its path.
    """

    def __init__(self, path: Path, file: pq.ParquetFile, header: Header) -> None:
        self.path = path
        self.header = header
        self.rows: int = file.metadata.num_rows
        self._file = file

    def require_columns(self, types: Mapping[str, pa.DataType]) -> None:
        """Raise unless the file has exactly these columns, of these types."""
        found = {column.name: column.type for column in self._file.schema_arrow}
        if len(found) != len(self._file.schema_arrow) or found != dict(types):
            _refuse(
                self.path,
                f"the columns are {_listed(found)}, but {_listed(types)} were expected",
                "recreate the file.",
            )

    def read(self, name: str, out: NDArray[Any]) -> None:
        """Fill `out` (one-dimensional, `rows` long) with the column `name`."""
        done = 0
        with _translated(self.path):
            for group in range(self._file.metadata.num_row_groups):
                for chunk in self._file.read_row_group(group, columns=[name], use_threads=False).column(0).chunks:
                    if chunk.null_count or done + len(chunk) > self.rows:
                        _refuse(self.path, f"column {name} has nulls or too many rows", "recreate the file.")
                    out[done : done + len(chunk)] = chunk.to_numpy(zero_copy_only=False)
                    done += len(chunk)
        if done != self.rows:
            _refuse(self.path, f"column {name} has {done} rows of {self.rows}", "recreate the file.")


@contextlib.contextmanager
def load(path: str | os.PathLike[str], *, format: str, version: int) -> Iterator[Artifact]:  # noqa: A002 - the header's word
    """Open a file written by `save` and check its header.

    Args:
        path: The file.
        format: The format that it must have.
        version: The version of the format that it must have.

    Yields:
        The open file; closed at the end of the block.

    Raises:
        ArtifactError: The file is missing or damaged, or has a different format or version.
    """
    source = Path(path)
    with _opened(source) as (parquet, header):
        if header.format != format:
            _refuse(source, f"the file is a {header.format}", f"expected a {format}: give the right file.")
        if header.version != version:
            made = header.packages.get("sophon", "?")
            _refuse(
                source,
                f"the file is {format} version {header.version}, written by sophon {made}",
                f"this is sophon {__version__}, which reads version {version}: recreate the file.",
            )
        yield Artifact(source, parquet, header)


def format_of(path: str | os.PathLike[str]) -> str:
    """Return the format that a file says it has; its columns are not read.

    Raises:
        ArtifactError: The file is missing, damaged, or was not saved by sophon.
    """
    with _opened(Path(path)) as (_, header):
        return header.format


@contextlib.contextmanager
def _opened(source: Path) -> Iterator[tuple[pq.ParquetFile, Header]]:
    try:
        with source.open("rb") as file:
            _check_frame(source, file.fileno())
            with _translated(source):
                parquet = pq.ParquetFile(
                    file,
                    pre_buffer=False,
                    page_checksum_verification=True,
                    thrift_string_size_limit=2 * MAX_HEADER_BYTES,
                    thrift_container_size_limit=2**20,
                )
                _check_shape(source, parquet.metadata)
                header = _decode(source, parquet.metadata.metadata)
            yield parquet, header
    except OSError as error:
        raise ArtifactError(
            f"{source}: cannot be read ({error.strerror or error}); check the path and its permissions."
        ) from error


def require_fingerprints(
    what: str,
    found: Mapping[str, str],
    expected: Mapping[str, str | None],
    remedy: str,
    words: Mapping[str, tuple[str, str]] | None = None,
) -> None:
    """Raise when a fingerprint differs from the expected one; the message shows both.

    Args:
        what: What carries the fingerprints, such as ``profile photos.parquet``.
        found: The fingerprints that it carries.
        expected: Those of the present job; a name whose value is None is not compared.
        remedy: What to do about it, as a full sentence.
        words: What each fingerprint stands for in the file and in this job, in words; "" if not known.
    """
    for name, value in expected.items():
        if value is not None and found.get(name) != value:
            there, here = (words or {}).get(name, ("", ""))
            if not (there and here) or there == here:
                there, here = repr(found.get(name)), repr(value)
            raise ArtifactError(f"{what} belongs to another {name}: it carries {there}, this job has {here}. {remedy}")


def _refuse(path: Path, found: str, remedy: str) -> NoReturn:
    raise ArtifactError(f"{path}: {found}; {remedy}")


def _listed(types: Mapping[str, pa.DataType]) -> str:
    names = [f"{name[:40]} {kind}" for name, kind in types.items()]
    return ", ".join(names[:6]) + (f" and {len(names) - 6} more" if len(names) > 6 else "")


@contextlib.contextmanager
def _translated(path: Path) -> Iterator[None]:
    try:
        yield
    except ARROW_ERRORS as error:  # to the user all of them mean the same
        first = str(error).splitlines()[0][:200] if str(error) else type(error).__name__
        raise ArtifactError(f"{path}: the file is damaged ({first}); recreate it or fetch an intact copy.") from error


def _check_frame(path: Path, descriptor: int) -> None:
    size = os.fstat(descriptor).st_size
    tail = os.pread(descriptor, 8, max(0, size - 8))
    if size < 12 or os.pread(descriptor, 4, 0) != _MAGIC or tail[4:] != _MAGIC:
        _refuse(path, f"the file has {size} bytes and is not a complete Parquet file", "give a file that sophon saved.")
    footer = int.from_bytes(tail[:4], "little")
    if footer > min(size - 12, MAX_FOOTER_BYTES):
        _refuse(path, f"the footer claims {footer} bytes", "the file is damaged: recreate it.")


def _check_shape(path: Path, shape: pq.FileMetaData) -> None:
    if not 0 <= shape.num_rows <= MAX_ROWS or shape.num_columns > MAX_COLUMNS:
        _refuse(
            path,
            f"the file claims {shape.num_rows} rows × {shape.num_columns} columns",
            f"at most {MAX_ROWS} × {MAX_COLUMNS} are read: split the data set.",
        )
    groups = [shape.row_group(index).num_rows for index in range(min(shape.num_row_groups, _MAX_ROW_GROUPS))]
    if any(not 0 <= rows <= _MAX_ROW_GROUP_ROWS for rows in groups) or sum(groups) != shape.num_rows:
        _refuse(path, "the row groups do not add up", "the file is damaged: recreate it.")


def _encode(header: Header) -> bytes:
    fields = {
        "format": header.format,
        "version": header.version,
        "fingerprints": dict(header.fingerprints),
        "provenance": dict(header.provenance),
        "packages": dict(header.packages) or package_versions(),
    }
    text = json.dumps(fields, sort_keys=True, allow_nan=False, separators=(",", ":")).encode()
    if len(text) > MAX_HEADER_BYTES:
        raise ArtifactError(
            f"the header has {len(text)} bytes, but at most {MAX_HEADER_BYTES} can be read back: "
            "shorten the provenance."
        )
    return text


def _decode(path: Path, raw: Mapping[bytes, bytes] | None) -> Header:
    text = (raw or {}).get(_KEY)
    if text is None:
        _refuse(path, "the Parquet file has no sophon header", "give a file that sophon saved.")
    if len(text) > MAX_HEADER_BYTES or (raw or {}).get(_KEY_CRC) != b"%08x" % zlib.crc32(text):
        _refuse(path, "the header does not match its checksum", "the file is damaged: recreate it.")
    try:
        fields = json.loads(text)
        header = Header(**fields)
    except (ValueError, TypeError, RecursionError) as error:
        raise ArtifactError(
            f"{path}: the header was not written by sophon ({error}); give a file that sophon saved."
        ) from error
    shapes = (
        isinstance(header.format, str),
        isinstance(header.version, int),
        isinstance(header.provenance, dict),
        _is_text_map(header.fingerprints),
        _is_text_map(header.packages),
    )
    if not all(shapes):
        _refuse(path, "the header has fields of the wrong type", "give a file that sophon saved.")
    return header


def _is_text_map(value: object) -> bool:
    return isinstance(value, dict) and all(isinstance(item, str) for item in value.values())
