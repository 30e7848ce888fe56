"""An image folder: class folders with pictures in torchvision's order, or pictures without labels.

Concurrency:
    Files are opened for each read and closed after it; nothing is shared.

Limits:
    A cached manifest is trusted as long as no folder's modification time changes. Overwriting a file in place does not
    change its folder's time; reading such a file raises if its size differs, and returns the new bytes otherwise.
"""

from __future__ import annotations

import os
import re
import stat as stat_flags
import sys
import time
from array import array
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sophon.errors import StoreError
from sophon.store.fields import PICTURE, SUFFIXES, kind_by_ending
from sophon.store.manifest import Manifest, decode_name, encode_name, is_as_listed, sources_table
from sophon.store.options import suffixes
from sophon.store.pages.columns import TextSpans, parts_of, plain_array
from sophon.store.pages.identity import Int64Array
from sophon.store.reading import tell_took
from sophon.store.store import Progress, Store, describe, fill, stamp_of
from sophon.units import counted

if TYPE_CHECKING:
    from sophon.store import _files as files
else:
    try:
        from sophon.store import _files as files
    except ImportError:  # built without a compiler
        files = None

_NAMES_ARE_BYTES = sys.getfilesystemencoding() == "utf-8"  # if so, names in the manifest need no conversion

IMAGE_SUFFIXES = SUFFIXES[PICTURE]

_CHUNK = 16_384  # files per step, so that Python objects exist only for the files of one step
# Names of the two folders of data sets for segmentation: as torchvision, Kaggle and Pascal VOC have them.
_PICTURE_FOLDERS = frozenset({"images", "image", "imgs", "img", "pictures", "photos", "jpegimages"})
_MASK_FOLDERS = frozenset({"masks", "mask", "annotations", "labels", "segmentation", "segmentationclass"})
_SHARD_SUFFIXES = (".tar", ".parquet")

# How often links may lead to the same real folder within one class. A link to an ancestor is recognised as a loop; but
# links between branches, as in /sys, can create more paths than could ever be walked, without forming a loop.
_MAX_VISITS = 8

_OUTSIDE = r"^/|(^|/)\.\.(/|$)|\x00"
_LEADS_OUT = re.compile(_OUTSIDE)


class FolderStore(Store):
    """Pictures in files: ``root/CLASS/…/name.jpg``, or ``root/name.jpg`` without class folders."""

    kind = "folder"
    options: ClassVar[frozenset[str]] = frozenset({"files", "listing"})

    def __init__(self, path: Path, name: str, manifest: Manifest) -> None:
        super().__init__(path, name, manifest)
        check_inside(manifest)
        self._root = f"{path}/"  # text, since creating a Path for every read takes as long as opening the file
        self._root_bytes = os.fsencode(self._root)
        self._odd_paths = manifest.locations["path"] if "path" in manifest.locations.column_names else None
        self._names = TextSpans(manifest, "ids")

    @classmethod
    def scan(
        cls, path: Path, on_progress: Progress | None = None, options: Mapping[str, str] | None = None
    ) -> Manifest:
        """Return the manifest of a folder: classes, order and labels are those of torchvision's ImageFolder.

        Without pictures, the samples are files of the most common other kind, such as sound. With the option `files`
        they are files with other endings, or any.
        """
        files = (options or {}).get("files")
        if files is not None:
            return cls._scanned(_Walk(path, on_progress, suffixes(files)))
        walk = _Walk(path, on_progress)
        try:
            return cls._scanned(walk)
        except StoreError:
            if not walk.kinds or walk.count:
                raise
        return cls._scanned(_Walk(path, on_progress, SUFFIXES[walk.kinds.most_common(1)[0][0]]))

    @classmethod
    def _scanned(cls, walk: _Walk) -> Manifest:
        path = walk.root
        root = walk.list_folder("", walk.parents(), keep=False)
        classes = root.folders
        listings: list[_Listing] = []
        counts = []
        for name in classes:
            start = walk.count
            listings += walk.list_class(name, root)
            counts.append(walk.count - start)
        if not any(counts):
            # Folders without any picture are not classes: pictures next to them are a flat data set.
            if not root.images:
                raise StoreError(walk.nothing())
            walk.visits.clear()
            return walk.manifest([walk.list_folder("", walk.parents())], None, ())
        if not all(counts):
            # As in torchvision: an empty or hidden folder would silently shift the labels of all others.
            empty = [name for name, count in zip(classes, counts, strict=True) if not count]
            raise StoreError(
                f"{path}: no picture in {len(empty)} of {len(classes)} class folders ({_some(empty)}); "
                "remove those folders or move them elsewhere"
            )
        if root.images:
            pictures = counted(root.images, "picture", "pictures")
            walk.notes.append(f"{pictures} next to the class folders of {path} {_are(root.images)} left out")
        if (pair := _pictures_and_masks(classes)) is not None:
            walk.notes.append(
                f"the folders {pair[0]!r} and {pair[1]!r} of {path} are taken for classes; if one has the masks of the "
                f"other, open '{path}?images={pair[0]}&masks={pair[1]}' instead"
            )
        return walk.manifest(listings, np.repeat(np.arange(len(classes)), counts), tuple(classes))

    @classmethod
    def unchanged(cls, path: Path, manifest: Manifest) -> bool:
        """Return whether no folder of the tree has changed since the scan; a new or removed file changes its folder."""
        sources = manifest.sources.to_pylist()
        try:
            check_inside(manifest)
            return len(sources) > 0 and all(
                is_as_listed((path / decode_name(source["name"])).stat(), source) for source in sources
            )
        except (OSError, StoreError):
            return False

    def changed_ns(self, index: int) -> int:
        """Return the modification time of a picture file, in nanoseconds."""
        return self._stat(index).st_mtime_ns

    def stamp(self, index: int) -> str:
        """Return the modification and change times of a picture file."""
        return stamp_of(self._stat(index))

    def _stat(self, index: int) -> os.stat_result:
        try:
            return os.stat(self._path(index))  # noqa: PTH116 - a Path takes longer than the call
        except OSError as error:
            remedy = "Check that it exists and is readable."
            raise self._failure(index, f"its file cannot be examined: {describe(error)}", remedy) from error

    def _read(self, index: int) -> bytes:
        size = int(self.manifest.sizes[index])
        found = None if files is None else files.read_bytes(os.fsencode(self._path(index)), size)
        if found is not None:
            return found
        with self._opened(index) as fd:  # the slow path, which raises the right error
            data = os.read(fd, size)
            while len(data) < size and (more := os.read(fd, size - len(data))):
                data += more
            return data

    def _read_into(self, index: int, space: memoryview) -> int:
        if _read_whole(self._path(index), space):
            return len(space)
        with self._opened(index) as fd:
            return fill(fd, space)

    def read_run(self, indexes: Sequence[int], space: memoryview) -> tuple[list[int], dict[int, StoreError]]:
        """Read several files with less overhead per intact file; the result is the same as from single reads."""
        if self._closed or self._odd_paths is not None:
            return super().read_run(indexes, space)
        rows = np.array(indexes, np.int64)
        sizes = self.manifest.sizes[rows]
        if files is None or not _NAMES_ARE_BYTES:
            names = self.manifest.ids.take(plain_array(pa.int64(), rows)).to_pylist()
            return self._read_one_by_one(indexes, names, sizes.tolist(), space)
        starts, stops, text = self._names.of(rows)
        ends: list[int] = []
        failed: dict[int, StoreError] = {}
        at, took_s, done = 0, 0.0, 0
        while done < len(indexes):
            found, seconds = files.read_run(
                self._root_bytes, starts[done:], stops[done:], text, sizes[done:], space[at:]
            )
            ends += (at + np.cumsum(sizes[done : done + found])).tolist()
            at, took_s, done = ends[-1] if ends else 0, took_s + seconds, done + found
            if done < len(indexes):
                start_s, size = time.monotonic(), int(sizes[done])
                try:
                    self.read_into(indexes[done], space[at : at + size])  # raises the right error, if any
                except StoreError as error:
                    failed[done] = error
                else:
                    at += size
                    ends.append(at)
                took_s, done = took_s + time.monotonic() - start_s, done + 1
        tell_took(took_s)
        return ends, failed

    def _read_one_by_one(
        self, indexes: Sequence[int], names: list[str], sizes: list[int], space: memoryview
    ) -> tuple[list[int], dict[int, StoreError]]:
        ends: list[int] = []
        failed: dict[int, StoreError] = {}
        at = 0
        for place, size in enumerate(sizes):
            part = space[at : at + size]
            if not _read_whole(self._root + names[place], part):
                try:
                    self.read_into(indexes[place], part)  # the slow path, which raises the right error
                except StoreError as error:
                    failed[place] = error
                    continue
            at += size
            ends.append(at)
        return ends, failed

    @contextmanager
    def _opened(self, index: int) -> Iterator[int]:
        """Open a picture file; errors from opening or reading it name the sample."""
        path = self._path(index)
        try:
            # O_NONBLOCK, so as not to wait forever if a pipe has replaced a picture.
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except FileNotFoundError as error:
            remedy = "Put it back, or open the data set again without it."
            raise self._failure(index, "its file no longer exists", remedy) from error
        except OSError as error:
            remedy = "Check that it exists and is readable."
            raise self._failure(index, f"its file cannot be opened: {describe(error)}", remedy) from error
        try:
            self._check_open(index, fd)
            yield fd
        except OSError as error:
            remedy = "Check the disk or the network file system."
            raise self._failure(index, f"its file cannot be read: {describe(error)}", remedy) from error
        finally:
            os.close(fd)

    def _check_open(self, index: int, fd: int) -> None:
        stat = os.fstat(fd)
        if not stat_flags.S_ISREG(stat.st_mode):
            raise self._failure(index, "it is not a regular file", "Replace it with a picture.")
        expected = int(self.manifest.sizes[index])
        if stat.st_size != expected:
            remedy = (
                f"Run `touch {Path(self._path(index)).parent}` and open the data set again, so that it is listed again."
            )
            problem = f"its file has {stat.st_size:,} bytes, but had {expected:,} when it was listed"
            raise self._failure(index, problem, remedy)

    def _path(self, index: int) -> str:
        if self._odd_paths is not None:
            return f"{self._root}{decode_name(self._odd_paths[index].as_py())}"
        return f"{self._root}{self.manifest.ids[index].as_py()}"


def check_inside(manifest: Manifest) -> None:
    """Raise if a sample's name leads out of the folder.

    Names found by walking the folder never do, but a manifest may come from a file written by someone else.
    """
    table = manifest.locations
    names = [manifest.ids, *(table[name] for name in table.column_names if name == "path" or name.startswith("file/"))]
    for part in (part for column in names for part in parts_of(column)):
        # Byte by byte: a name need not be text.
        leads_out = pc.match_substring_regex(part.cast(pa.large_binary()), _OUTSIDE)
        found = pc.index(leads_out, True).as_py()
        if found >= 0:
            raise StoreError(
                f"the manifest names {part[found].as_py()!r:.80}, which is outside the data set; delete it"
            )


def leads_out(name: str) -> bool:
    """Return whether the name of one sample leads out of the data set."""
    is_suspect = ".." in name or name.startswith("/") or "\0" in name  # a check that takes a tenth of the time
    return is_suspect and _LEADS_OUT.search(name) is not None


def _read_whole(path: str, space: memoryview) -> bool:
    """Read a file into memory, if it is a regular file of exactly the given size and one read returns all of it."""
    if files is not None:
        return files.read_into(os.fsencode(path), space)
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return False
    try:
        stat = os.fstat(fd)
        is_fine = stat.st_size == len(space) and stat_flags.S_ISREG(stat.st_mode)
        return is_fine and os.readv(fd, (space,)) == len(space)
    except OSError:
        return False
    finally:
        os.close(fd)


@dataclass(frozen=True)
class _Listing:
    """The contents of one folder: pictures and subfolders, both in order."""

    name: str  # relative to the root
    identities: frozenset[tuple[int, int]]  # identities of this folder and its ancestors
    paths: pa.LargeBinaryArray
    sizes: Int64Array
    images: int
    folders: list[str]


@dataclass
class _Walk:
    """The state of one walk through a tree."""

    root: Path
    on_progress: Progress | None
    endings: tuple[str, ...] = IMAGE_SUFFIXES
    others: Counter[str] = field(default_factory=Counter)  # endings of files that are left out
    kinds: Counter[str] = field(default_factory=Counter)  # kinds of data in files that are left out
    count: int = 0
    loops: int = 0
    lost: int = 0
    shards: int = 0
    folders: list[str] = field(default_factory=list)
    mtimes_ns: list[int] = field(default_factory=list)
    ctimes_ns: list[int] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    visits: Counter[tuple[int, int]] = field(default_factory=Counter)

    def parents(self) -> frozenset[tuple[int, int]]:
        """Return the identities of the root's ancestors, since a link to one of them leads back here."""
        found = set()
        for folder in self.root.resolve().parents:
            with suppress(OSError):  # a folder that cannot be examined cannot be walked through either
                found.add(_identity(folder.stat()))
        return frozenset(found)

    def list_class(self, name: str, root: _Listing) -> list[_Listing]:
        """Return the listings of a class folder and all folders below it, in torchvision's order of paths."""
        found = []
        self.visits.clear()
        waiting = [(name, root.identities)]
        while waiting:
            folder, above = waiting.pop()
            listing = self.list_folder(folder, above)
            waiting += [(f"{folder}/{inner}", listing.identities) for inner in reversed(listing.folders)]
            found.append(listing)
        return sorted(found, key=lambda listing: listing.name)

    def list_folder(self, name: str, above: frozenset[tuple[int, int]], *, keep: bool = True) -> _Listing:
        """List one folder, or only count its pictures if they are not needed."""
        path = self.root / name
        try:
            stat = path.stat()
            identity = _identity(stat)
            self.visits[identity] += 1
            if identity in above or self.visits[identity] > _MAX_VISITS:
                self.loops += 1
                return _Listing(name, above, pa.array([], pa.large_binary()), np.empty(0, np.int64), 0, [])
            # Its time is taken before its content: a change in between makes the manifest stale, not wrong.
            self.folders.append(name)
            self.mtimes_ns.append(stat.st_mtime_ns)
            self.ctimes_ns.append(stat.st_ctime_ns)
            return self._scan(name, path, above | {identity}, keep)
        except OSError as error:
            raise StoreError(
                f"cannot list {path}: {describe(error)}. Check its permissions, or move it out of {self.root}."
            ) from error

    def _scan(self, name: str, path: Path, identities: frozenset[tuple[int, int]], keep: bool) -> _Listing:
        prefix = f"{name}/" if name else ""
        folders: list[str] = []
        chunks: list[pa.Array] = []
        names: list[bytes] = []
        sizes = array("q")
        images = 0
        with os.scandir(path) as entries:
            for entry in entries:
                if _is_folder(entry):
                    folders.append(entry.name)
                    continue
                lower = entry.name.lower()
                if not lower.endswith(self.endings) or (lower.startswith(".") and self.endings == ("",)):
                    self.shards += lower.endswith(_SHARD_SUFFIXES)
                    self.others[os.path.splitext(lower)[1]] += 1  # noqa: PTH122 - a Path takes longer
                    if kind := kind_by_ending(lower):
                        self.kinds[kind] += 1
                    continue
                images += 1
                if keep:
                    names.append(encode_name(prefix + entry.name))
                    sizes.append(self._size(entry))
                if len(names) == _CHUNK:
                    chunks.append(_flush(names))
                    self._advance(_CHUNK)
        self._advance(len(names))
        chunks.append(_flush(names))
        paths = pa.concat_arrays(chunks)
        chunks.clear()  # freed before they are copied again
        # Bytes of UTF-8 sort as Python sorts strings. Equal prefixes do not change the order within a folder.
        order = pc.sort_indices(paths)
        sorted_sizes = np.frombuffer(sizes, np.int64)[order.to_numpy()]
        return _Listing(name, identities, paths.take(order), sorted_sizes, images, sorted(folders))

    def _advance(self, count: int) -> None:
        self.count += count
        if count and self.on_progress is not None:
            self.on_progress(self.count, None)

    def _size(self, entry: os.DirEntry[str]) -> int:
        try:
            return entry.stat().st_size
        except OSError:
            # A link to nothing. torchvision lists it, and indexes must agree; reading it says what is wrong.
            self.lost += 1
            return 0

    def nothing(self) -> str:
        """Return the error that says why this is not a data set."""
        what = "picture" if self.endings == IMAGE_SUFFIXES else f"file {' or '.join(self.endings)}".rstrip()
        hint = f"put {what}s there ({', '.join(self.endings)}), in one folder per class, or all in one folder"
        named = [(ending, count) for ending, count in self.others.most_common() if ending]
        if named and self.endings == IMAGE_SUFFIXES:
            ending, count = named[0]
            hint += f"; {self.root}?files={ending} would use the {count:,} {ending} files there"
        if self.shards:
            hint = f"there are {self.shards} .tar or .parquet files below it; open the folder that holds them"
        return f"no {what} found in {self.root} and {len(self.folders) - 1} folders below it; {hint}"

    def manifest(self, listings: list[_Listing], labels: Int64Array | None, classes: tuple[str, ...]) -> Manifest:
        """Return the manifest of everything that was listed."""
        if self.loops:
            self.notes.append(
                f"{self.loops:,} links in {self.root} form loops, or lead to one folder more than {_MAX_VISITS} times "
                "in a class, and are left out"
            )
        if self.lost:
            self.notes.append(f"{self.lost:,} pictures in {self.root} are broken links; reading them will fail")
        paths = pa.concat_arrays([listing.paths for listing in listings])
        sizes = np.concatenate([listing.sizes for listing in listings])
        listings.clear()  # holding a million paths twice would set the peak of memory
        locations = pa.table({})
        try:
            ids = paths.cast(pa.large_string())
        except pa.ArrowInvalid:
            # A name that is not UTF-8 is shown escaped; the file is opened by the path as it is.
            ids = pa.array(map(_shown, paths), pa.large_string())
            locations = pa.table({"path": paths})
        sources = sources_table(self.folders, [-1] * len(self.folders), self.mtimes_ns, self.ctimes_ns)
        return Manifest(
            kind=FolderStore.kind,
            ids=ids,
            sizes=sizes,
            labels=labels,
            classes=classes,
            locations=locations,
            sources=sources,
            notes=tuple(self.notes),
        )


def _flush(names: list[bytes]) -> pa.Array:
    chunk = pa.array(names, pa.large_binary())
    names.clear()
    return chunk


def _shown(path: pa.Scalar) -> str:
    return os.fsencode(decode_name(path.as_py())).decode("utf-8", "backslashreplace")


def _identity(stat: os.stat_result) -> tuple[int, int]:
    return stat.st_dev, stat.st_ino


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:
        return False  # as os.walk does, which torchvision uses


def _are(number: int) -> str:
    return "is" if number == 1 else "are"


def _pictures_and_masks(folders: Sequence[str]) -> tuple[str, str] | None:
    """Return the two folders of a data set for segmentation; None if their names do not look like one."""
    by_name = {name.lower(): name for name in folders}
    pictures = [by_name[name] for name in by_name if name in _PICTURE_FOLDERS]
    masks = [by_name[name] for name in by_name if name in _MASK_FOLDERS]
    return (pictures[0], masks[0]) if len(folders) == len(pictures) + len(masks) == 2 and pictures and masks else None


def _some(names: list[str], most: int = 5) -> str:
    return ", ".join(map(repr, names[:most])) + (", …" if len(names) > most else "")
