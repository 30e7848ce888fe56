"""Objects as samples: class folders with pictures in torchvision's order, or pictures without classes.

Objects give the same manifest as files with the same names in a folder.

Limits:
    A manifest is a list of objects with their ETags. Objects added later are not noticed until the data set is listed
    again; an object that was changed or removed cannot be read.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sophon.errors import StoreError
from sophon.store.address import Address
from sophon.store.bucket.client import Object, client_of
from sophon.store.bucket.failures import ObjectError, Verdict
from sophon.store.folder import IMAGE_SUFFIXES, leads_out
from sophon.store.manifest import Manifest, sources_table
from sophon.store.options import suffixes
from sophon.store.pages.columns import texts_of
from sophon.store.pages.identity import Int64Array
from sophon.store.store import Progress, Store

REMEDIES = {
    Verdict.MISSING: "Restore it, or list the data set again with `sophon manifest`.",
    Verdict.CHANGED: "Restore the earlier one, or list the data set again with `sophon manifest`.",
    Verdict.RENEW: "Check its permissions, and the credentials in the environment.",
    Verdict.WHOLE: "Use a server that supports range requests.",
}
_REMEDY = "Check the network and the object store."


class BucketStore(Store):
    """Pictures or other files, each a separate object.

    Args:
        path: The address that was opened.
        name: Name of the data set.
        manifest: One row per object, with its ETag.
    """

    kind = "bucket"
    options: ClassVar[frozenset[str]] = frozenset({"files", "listing", "path", "label"})

    def __init__(self, path: Address, name: str, manifest: Manifest) -> None:
        super().__init__(path, name, manifest)
        self.client = client_of(path)
        has_versions = "version" in manifest.locations.column_names
        self._ids = texts_of(manifest.ids)
        self._etags = texts_of(manifest.locations["etag"])
        self._versions = texts_of(manifest.locations["version"]) if has_versions else None
        self._root = manifest.sources["name"][0].as_py().decode()

    @classmethod
    def scan(cls, path: Address, on_progress: Progress | None = None) -> Manifest:  # type: ignore[override]
        """Raise: `bucket.table` lists data sets in buckets by their kind."""
        raise NotImplementedError(f"{path} is listed by `bucket.table`; {on_progress} is not called")

    @classmethod
    def unchanged(cls, path: Address, manifest: Manifest) -> bool:  # type: ignore[override]  # noqa: ARG003
        """Return True: opening lists nothing, and an object changed since it was listed cannot be read."""
        return True

    def key(self, index: int) -> str:
        """Return the name of a sample's object."""
        name = self._ids(index).decode()
        if leads_out(name):  # checked here, since opening does not read all names
            raise StoreError(f"the manifest names {name!r:.80}, which is outside the data set; create it again")
        return f"{self._root}{name}"

    def etag(self, index: int) -> str:
        """Return the ETag that a sample's object had when it was listed."""
        return self._etags(index).decode()

    def identity(self, index: int) -> bytes:
        """Return 8 bytes that identify the key, size and ETag of a sample's object."""
        return named(self._ids(index).decode(), int(self.manifest.sizes[index]), self.etag(index))

    def changed_ns(self, index: int) -> int:
        """Return a number derived from the ETag."""
        return int.from_bytes(hashlib.blake2b(self._etags(index), digest_size=7).digest())

    def read_part(self, index: int, start: int, length: int) -> memoryview:
        """Return some of the bytes of a sample.

        Raises:
            StoreError: As for `read`.
        """
        version = None if self._versions is None else self._versions(index).decode() or None
        size = int(self.manifest.sizes[index])
        key, etag = self.key(index), self.etag(index)
        try:
            return self.client.get(key, start, length, etag, version, of=size)
        except ObjectError as error:
            problem = f"its object {self.address_of(index)} cannot be read: {error.strerror}"
            raise self._failure(index, problem, REMEDIES.get(error.verdict, _REMEDY)) from error

    def address_of(self, index: int) -> Address:
        """Return the address of a sample's object."""
        return Address(self.client.address.scheme, self.client.address.bucket, self.key(index))

    def _read(self, index: int) -> bytes:
        return as_bytes(self.read_part(index, 0, int(self.manifest.sizes[index])))

    def _read_into(self, index: int, space: memoryview) -> int:
        data = self.read_part(index, 0, len(space))
        if len(data) == len(space):
            space.cast("B")[:] = data
        return len(data)


def as_bytes(data: memoryview) -> bytes:
    """Return the data read as bytes: unchanged if it already is bytes, since fresh memory costs more than a request.

    Copying a photo takes a few microseconds, but page faults in fresh memory take up to half a millisecond when many
    threads cause them at once.
    """
    whole = data.obj
    return whole if isinstance(whole, bytes) and len(whole) == data.nbytes else bytes(data)


def named(*parts: object) -> bytes:
    """Return 8 bytes that identify the given values."""
    return hashlib.blake2b("\0".join(map(str, parts)).encode("utf-8", "surrogatepass"), digest_size=8).digest()


def folder_manifest(address: Address, objects: Iterable[Object], options: Mapping[str, str] | None = None) -> Manifest:
    """Return the manifest of objects below an address; classes, order and labels are those of torchvision.

    Raises:
        StoreError: There is no picture, or a class folder without one.
    """
    files = (options or {}).get("files")
    endings = IMAGE_SUFFIXES if files is None else suffixes(files)
    root, kept, folders, others = address.root, [], set(), 0
    for found in objects:
        name = found.key[len(root) :]
        top, slash, _ = name.partition("/")
        if slash:
            folders.add(top)
        if _is_sample(name, endings):
            kept.append((name, found))
        else:
            others += 1
    in_folders = [(name, found) for name, found in kept if "/" in name]
    notes = []
    classes: tuple[str, ...] = ()
    if in_folders:
        classes = tuple(sorted(folders))
        empty = sorted(folders - {name.partition("/")[0] for name, _ in in_folders})
        if empty:
            raise StoreError(
                f"{address}: no picture in {len(empty)} of {len(folders)} class folders ({', '.join(empty[:5])}); "
                "remove those objects or move them elsewhere"
            )
        if len(in_folders) < len(kept):
            notes.append(
                f"{len(kept) - len(in_folders):,} pictures next to the class folders of {address} are left out"
            )
        kept = in_folders
    if not kept:
        hint = f"; {address}?files=any would use the {others:,} objects of other kinds" if others else ""
        what = "picture" if files is None else f"object {files}"
        raise StoreError(f"no {what} found below {address}{hint}")
    names = pa.array([name for name, _ in kept], pa.large_string())
    order = _order(names, bool(classes))
    chosen = [kept[row][1] for row in order]
    labels = None
    if classes:
        numbers = {name: number for number, name in enumerate(classes)}
        labels = np.array([numbers[kept[row][0].partition("/")[0]] for row in order], np.int64)
    return manifest_of(address.root, names.take(pa.array(order)), chosen, labels, classes, notes=tuple(notes))


def manifest_of(
    root: str,
    ids: pa.Array,
    objects: list[Object],
    labels: Int64Array | None,
    classes: tuple[str, ...],
    columns: pa.Table | None = None,
    notes: tuple[str, ...] = (),
) -> Manifest:
    """Return the manifest of objects whose names consist of a root and an id."""
    locations = {"etag": pa.array([found.etag.encode() for found in objects], pa.large_binary())}
    if any(found.version for found in objects):
        versions = [(found.version or "").encode() for found in objects]
        locations["version"] = pa.array(versions, pa.large_binary())
    return Manifest(
        kind=BucketStore.kind,
        ids=ids,
        sizes=np.array([found.size for found in objects], np.int64),
        labels=labels,
        classes=classes,
        columns=pa.table({}) if columns is None else columns,
        locations=pa.table(locations),
        sources=sources_of([Object(root, -1, "", 0)]),
        notes=notes,
    )


def sources_of(objects: list[Object]) -> pa.Table:
    """Return names, sizes, times and ETags of objects, in the form that a manifest stores."""
    return sources_table(
        [found.key for found in objects],
        [found.size for found in objects],
        [found.changed_ns for found in objects],
        etags=[found.etag for found in objects],
    )


def _is_sample(name: str, endings: tuple[str, ...]) -> bool:
    if endings != ("",):
        return name.lower().endswith(endings)
    base = name.rpartition("/")[2]
    return bool(base) and not base.startswith(".")


def _order(names: pa.Array, has_classes: bool) -> list[int]:
    """Return torchvision's order: by class, then by folder, then by name."""
    parts = names.to_pylist()
    folders = [name.rpartition("/")[0].encode() for name in parts]
    bases = [name.rpartition("/")[2].encode() for name in parts]
    columns = {"folder": pa.array(folders, pa.large_binary()), "base": pa.array(bases, pa.large_binary())}
    keys = [("folder", "ascending"), ("base", "ascending")]
    if has_classes:
        columns["class"] = pa.array([name.partition("/")[0].encode() for name in parts], pa.large_binary())
        keys.insert(0, ("class", "ascending"))
    return list(pc.sort_indices(pa.table(columns), sort_keys=keys).to_pylist())
