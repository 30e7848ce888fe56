"""A file with the window indexes of a data set, so that a node has them as soon as it starts.

File layout, one Arrow IPC file::

    schema metadata   b"sophon.windows"   JSON: format, fingerprint of the data set's manifest
    columns           id                  large_string
                      bytes               int64, of the sample
                      mtime_ns            int64, of the file or shard that holds it
                      name                uint64, of the sample's bytes, with the user's key (`names`)
                      index               binary, `Index.to_bytes`, sealed; null without a window, or if progressive

An index is found by the name of the bytes to be cut, so a stale or damaged entry is simply not found. Sizes and times
show which entries are stale without reading the samples. Names and seals are made with a key of the user who makes the
file (`seals`); an index with a different seal, or with that of another name, is not used.

Concurrency: a sidecar does not change once it is open; any number of threads may use it, even after a fork. Files are
replaced as a whole, so a node keeps using the one that it has opened.

Limits: a sidecar takes 28 bytes of memory per sample. Indexes are read from the file rather than mapped: if a mapped
file is truncated in place, as `cp` does, the process crashes, whereas with reads the indexes are simply not found.
"""

from __future__ import annotations

import json
import mmap
import os
import secrets
import weakref
from bisect import bisect_left
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sophon.artifact import ARROW_ERRORS, remove_leftovers, replacing
from sophon.codec.window.jpeg import Index, available, build_index
from sophon.codec.window.refusal import NotWindowable
from sophon.codec.window.seals import Seals, seals_of
from sophon.errors import ArtifactError, OpError, StoreError
from sophon.pipeline.ops.decode import check_jpeg
from sophon.process.caches import used
from sophon.process.folders import not_private, secret_key
from sophon.store import Store, cache_file
from sophon.store.address import Address, Place
from sophon.store.pages.columns import whole
from sophon.store.shards import is_pattern

FORMAT: Final = 3
SUFFIX: Final = ".sophon-windows"
FOLDER: Final = "windows"  # the folder for window indexes inside the cache folder
_META: Final = b"sophon.windows"
_SCHEMA: Final = pa.schema(
    [
        ("id", pa.large_string()),
        ("bytes", pa.int64()),
        ("mtime_ns", pa.int64()),
        ("name", pa.uint64()),
        ("index", pa.binary()),
    ]
)
_TRIED: Final = 64  # entries whose seals are checked when a file is opened; the others are checked when used
_BATCH: Final = 512  # samples in memory at once while indexing: about 100 MB of large photos
_PROBED: Final = 1000  # samples whose size and time are checked to estimate how many are stale
_REMEDY: Final = "recreate it with `sophon index`."

_Names = np.ndarray[Any, np.dtype[np.uint64]]
_Offsets = np.ndarray[Any, np.dtype[np.int64]]
_Lengths = np.ndarray[Any, np.dtype[np.int32]]
OnProgress = Callable[[int, int | None], None]


class Sidecar:
    """The indexes in a file, found by the name of a sample.

    Args:
        path: The file.

    Attributes:
        names: Gives the names by which samples are found.

    Raises:
        ArtifactError: The file is missing, damaged, of a different format or not a sidecar.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        try:
            self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            weakref.finalize(self, os.close, self._fd)
            self.dataset_fingerprint, named, self._offsets, self._lengths = _opened(self.path, self._fd)
        except ARROW_ERRORS as error:
            raise ArtifactError(f"{path} cannot be read as window indexes ({error}); {_REMEDY}") from error
        self._seals = seals_of(secret_key() or secrets.token_bytes(32))  # without a key of the user's no seal fits
        self.names = self._seals.names
        self._try_seals(named)
        order = np.argsort(named, kind="stable")
        # Bisecting a memoryview takes a third of the time of np.searchsorted, which is designed for many look-ups at
        # once.
        self._named = named[order].data
        self._rows = order

    def __len__(self) -> int:
        return len(self._named)

    @property
    def held_bytes(self) -> int:
        """Memory that the look-up tables take, in bytes."""
        return 28 * len(self)

    def find(self, name: int) -> Index | None:
        """Return the index of the file with this name; None if no usable index exists."""
        at = bisect_left(self._named, name)
        if at == len(self._named) or self._named[at] != name:
            return None
        packed = self.entry(int(self._rows[at]), name)
        if not packed:
            return None
        try:
            return Index.from_bytes(packed)
        except ArtifactError:
            return None  # its checksum is wrong: treated as missing

    def entry(self, row: int, name: int) -> bytes | None:
        """Return the packed index in a row; None if no window can be cut, b"" if this user did not make it for it."""
        if self._lengths[row] < 0:
            return None
        packed, is_own = self._unsealed(row, name)
        return packed if is_own else b""

    def _unsealed(self, row: int, name: int) -> tuple[bytes, bool]:
        return self._seals.opened(name, os.pread(self._fd, int(self._lengths[row]), int(self._offsets[row])))

    def _try_seals(self, named: _Names) -> None:
        """Reject a whole file that someone else made or changed, since nothing in it can be trusted.

        An entry that is merely damaged, and so has a wrong checksum as well, does not count.
        """
        rows = np.flatnonzero(self._lengths >= 0)
        for row in rows[:: -(-len(rows) // _TRIED)].tolist() if len(rows) else ():
            packed, is_own = self._unsealed(row, int(named[row]))
            if not is_own and _whole(packed):
                raise ArtifactError(
                    f"{self.path} was not made by the user who opens it, or has changed since, so it is not used; "
                    f"{_REMEDY[:-1]}, or set SOPHON_KEY_FILE to the file with the key it was made with."
                )

    def column(self, name: str) -> pa.ChunkedArray:
        """Return a column of all rows."""
        options = pa.ipc.IpcReadOptions(included_fields=[_SCHEMA.get_field_index(name)])
        try:
            with pa.OSFile(f"/dev/fd/{self._fd}") as file:
                column = pa.ipc.open_file(file, options=options).read_all().column(name)
            column.validate(full=True)
        except ARROW_ERRORS as error:
            raise ArtifactError(f"{self.path} changed while it was being read ({error}); {_REMEDY}") from error
        return column

    def rows_of(self, store: Store) -> np.ndarray[Any, np.dtype[np.int64]]:
        """Return, for every sample of a store, the row with its id and size, or -1; times are not compared."""
        ids = self.column("id")
        listed = whole(store.manifest.ids)
        if pa.chunked_array([listed]).equals(ids):
            rows = np.arange(len(store), dtype=np.int64)  # the same listing, so row i is sample i even if ids repeat
        else:
            found = pc.index_in(listed, value_set=ids)
            rows = found.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64)
        if len(self):
            sizes = self.column("bytes").to_numpy()
            rows[sizes[rows] != store.manifest.sizes] = -1
        return rows

    def stale_share(self, store: Store) -> float:
        """Return the share of a store's samples without an entry of the same size and time, estimated from a subset."""
        rows = self.rows_of(store)
        times = self.column("mtime_ns").to_numpy()
        probed = range(0, len(store), -(-len(store) // _PROBED))
        fresh = sum(rows[sample] >= 0 and _same_time(store, sample, times[rows[sample]]) for sample in probed)
        return float(1.0 - fresh / len(probed))


def _opened(path: Path, fd: int) -> tuple[str, _Names, _Offsets, _Lengths]:
    """Return the data set's fingerprint, and for every row its name and the offset and length of its index.

    The file is mapped only while this runs.
    """
    file = pa.py_buffer(mmap.mmap(fd, 0, access=mmap.ACCESS_READ))
    reader = pa.ipc.open_file(pa.BufferReader(file))
    meta = (reader.schema.metadata or {}).get(_META)
    if meta is None:
        raise ArtifactError(f"{path} is an Arrow file without window indexes; give one that sophon wrote.")
    fields = json.loads(meta)
    if fields["format"] != FORMAT:
        raise ArtifactError(f"{path} has window indexes in format {fields['format']!r}, expected {FORMAT}; {_REMEDY}")
    if reader.schema.remove_metadata() != _SCHEMA:
        raise ArtifactError(f"{path} has columns other than {', '.join(_SCHEMA.names)}; {_REMEDY}")
    named, offsets, lengths = [np.zeros(0, np.uint64)], [np.zeros(0, np.int64)], [np.zeros(0, np.int32)]
    for number in range(reader.num_record_batches):
        batch = reader.get_batch(number)
        # Arrow does not check what it maps; an offset beyond its buffer would be read out of bounds.
        batch.validate(full=True)
        if any(batch.column(name).null_count for name in _SCHEMA.names[:-1]):
            raise ArtifactError(f"{path} has entries without id, size, time or name; {_REMEDY}")
        index = batch.column("index")
        if not len(index):
            continue
        named.append(batch.column("name").to_numpy())
        ends = np.frombuffer(index.buffers()[1], np.int32)[: len(index) + 1].astype(np.int64)
        data = index.buffers()[2]  # where there is no index at all: none, or anywhere
        start = data.address - file.address if ends[-1] else 0
        if not 0 <= start <= file.size - ends[-1]:
            raise ArtifactError(f"{path} has compressed indexes, which sophon does not write; {_REMEDY}")
        offsets.append(start + ends[:-1])
        lengths.append(np.where(index.is_valid().to_numpy(zero_copy_only=False), np.diff(ends), -1).astype(np.int32))
    return str(fields["fingerprint"]), np.concatenate(named), np.concatenate(offsets), np.concatenate(lengths)


@dataclass
class Written:
    """Summary of the sidecar that was written.

    Args:
        path: The file.
        samples: Number of entries.
        kept: Number of entries copied from an earlier file.
        without: Number of entries without an index, because no window can be cut from the sample or it is progressive.
        unreadable: Number of samples that could not be read, and have no entry.
        index_bytes: Size of all indexes.
        sample_bytes: Size of all samples that have an index.
    """

    path: Path
    samples: int = 0
    kept: int = 0
    without: int = 0
    unreadable: int = 0
    index_bytes: int = 0
    sample_bytes: int = 0


def write_sidecar(store: Store, path: Path, threads: int = 1, on_progress: OnProgress | None = None) -> Written:
    """Index all samples of a store; samples in an earlier file with the same size and time are not read again.

    Args:
        store: The data set.
        path: The file to write; an existing file is replaced at the end, as a whole.
        threads: How many samples to index at the same time.
        on_progress: Called with the number of samples done and the total.

    Raises:
        ArtifactError: There is a different kind of file at this path, or it cannot be written.
    """
    seals = _own_seals()
    remove_leftovers(path.parent)
    earlier = _earlier(path)
    meta = {"format": FORMAT, "fingerprint": store.manifest.fingerprint}
    written = Written(path)
    store = store.narrowed(())  # the picture that a pipeline works on is the first field
    try:
        with (
            replacing(path) as file,
            pa.ipc.new_file(file, _SCHEMA.with_metadata({_META: json.dumps(meta).encode()})) as writer,
            ThreadPoolExecutor(threads) as pool,
        ):
            for rows in _batches(store, earlier, seals, pool, written):
                writer.write_batch(pa.RecordBatch.from_pylist(rows, _SCHEMA))
                if on_progress is not None:
                    on_progress(written.samples + written.unreadable, len(store))
    except OSError as error:
        problem = error.strerror or error
        raise ArtifactError(f"{path} cannot be written ({problem}); choose another file with --out.") from error
    if path.parent.name == FOLDER:
        used(path, str(store.path) if isinstance(store.path, Address) else os.path.realpath(store.path))
    return written


def _batches(
    store: Store, earlier: Sidecar | None, seals: Seals, pool: ThreadPoolExecutor, written: Written
) -> Iterator[list[dict[str, Any]]]:
    known = None if earlier is None else _Known(earlier, earlier.rows_of(store))
    for start in range(0, len(store), _BATCH):
        samples = range(start, min(start + _BATCH, len(store)))
        rows = []
        for row, kept in pool.map(lambda sample: _row(store, sample, known, seals), samples):
            if row is None:
                written.unreadable += 1
                continue
            rows.append(row)
            written.samples += 1
            written.kept += kept
            if row["index"] is None:
                written.without += 1
            else:
                written.index_bytes += len(row["index"])
                written.sample_bytes += row["bytes"]
        yield rows


@dataclass(frozen=True)
class _Known:
    """An earlier file, with the row of every sample."""

    sidecar: Sidecar
    rows: np.ndarray[Any, np.dtype[np.int64]]
    times: Any = field(init=False)
    names: Any = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "times", self.sidecar.column("mtime_ns").to_numpy())
        object.__setattr__(self, "names", self.sidecar.column("name").to_numpy())


def _row(store: Store, sample: int, known: _Known | None, seals: Seals) -> tuple[dict[str, Any] | None, bool]:
    """Return the entry of a sample, and whether it was already known; None if the sample cannot be read."""
    try:
        # Taken before the sample is read: if it changes in between, its entry is stale, never wrong.
        mtime_ns = store.changed_ns(sample)
        row = {
            "id": store.manifest.ids[sample].as_py(),
            "bytes": int(store.manifest.sizes[sample]),
            "mtime_ns": mtime_ns,
        }
        at = -1 if known is None else int(known.rows[sample])
        if known is not None and at >= 0 and known.times[at] == mtime_ns:
            name = int(known.names[at])
            packed = known.sidecar.entry(at, name)
            if packed is None or _whole(packed):
                return {**row, "name": name, "index": packed and seals.sealed(name, packed)}, True
        data = store.read(sample)
    except StoreError:
        return None, False
    name = seals.names.of(data)
    try:
        check_jpeg(data)  # a file that has an index is not examined again
        index = build_index(data)
    except (NotWindowable, OpError):
        return {**row, "name": name, "index": None}, False
    return {**row, "name": name, "index": seals.sealed(name, index.to_bytes())}, False


def _own_seals() -> Seals:
    key = secret_key()
    if key is None:
        raise ArtifactError(
            "there is no key to seal window indexes with, since the user has no home folder; name a file for it in "
            "SOPHON_KEY_FILE, in a folder that only the user can write to."
        )
    return seals_of(key)


def _whole(packed: bytes) -> bool:
    try:
        Index.from_bytes(packed)
    except ArtifactError:
        return False
    return True


def _same_time(store: Store, sample: int, mtime_ns: int) -> bool:
    try:
        return store.changed_ns(sample) == mtime_ns
    except StoreError:
        return False


def _earlier(path: Path) -> Sidecar | None:
    """Return the file to be replaced; raise if it is not a sidecar."""
    if not path.exists():
        return None
    try:
        return Sidecar(path)
    except ArtifactError as error:
        if path.name.endswith(SUFFIX) or path.parent.name == FOLDER:
            return None  # damaged or from a different release, but at our own default path: it is recreated
        raise ArtifactError(f"{error} It is not overwritten; choose another file with --out.") from error


def places(path: Place, cache_dir: Path | None = None) -> list[Path]:
    """Return the possible places of a data set's sidecar: next to the data, or in the cache folder."""
    found = []
    if not isinstance(path, Address) and not is_pattern(path):
        real = Path(os.path.realpath(path))
        found.append(real.with_name(real.name + SUFFIX))
    cached = cache_file(FOLDER, path, FORMAT, cache_dir)
    return found if cached is None else [*found, cached]


def place_to_write(path: Place, cache_dir: Path | None = None) -> Path:
    """Return the first of these places that can be written to.

    Raises:
        ArtifactError: None of them can be written to.
    """
    candidates = places(path, cache_dir)
    for place in candidates:
        if os.access(place.parent, os.W_OK | os.X_OK) and (not place.exists() or os.access(place, os.W_OK)):
            return place
    raise ArtifactError(f"none of {', '.join(map(str, candidates))} can be written to; choose a file with --out.")


def find_sidecar(path: Place, cache_dir: Path | None = None) -> Sidecar | None:
    """Open the sidecar of a data set, if it has one and windows can be cut here.

    Raises:
        ArtifactError: The sidecar cannot be used.
    """
    for place in places(path, cache_dir) if available() else ():
        if place.is_file():
            problem = not_private(place)
            if problem is not None:
                raise ArtifactError(f"{problem}; or {_REMEDY}")
            return Sidecar(place)
    return None
