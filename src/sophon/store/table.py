"""The table of stores: a new store is one file, one row here and one test."""

from __future__ import annotations

import os
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from sophon.artifact import ARROW_ERRORS
from sophon.errors import ConfigError, StoreError
from sophon.store.address import Place, is_address, parse_address
from sophon.store.annotations.listed import ListedStore
from sophon.store.annotations.store import AnnotatedStore
from sophon.store.annotations.volumes import VolumeStore
from sophon.store.cache import ManifestCache
from sophon.store.folder import IMAGE_SUFFIXES, FolderStore
from sophon.store.listing.beside import INSIDE, find_listing, listings_of
from sophon.store.listing.rows import SUFFIXES, may_list
from sophon.store.listing.store import ListingStore
from sophon.store.listing.where import matches
from sophon.store.manifest import Manifest
from sophon.store.options import split_options
from sophon.store.pages.columns import whole
from sophon.store.parquet import ParquetStore
from sophon.store.shards import ShardStore, find_shards, is_pattern
from sophon.store.store import Progress, Store, describe
from sophon.store.tar import TarStore

STORES: dict[str, type[Store]] = {
    "folder": FolderStore,
    "listing": ListingStore,
    "annotated": AnnotatedStore,
    "listed": ListedStore,
    "volumes": VolumeStore,
    "tar": TarStore,
    "parquet": ParquetStore,
}
"""Stores by kind. To add your own, add a row: ``STORES["mine"] = MyStore``; see `Store.opens`."""

_OWN = frozenset(STORES)  # built-in stores, whose paths are recognised here
_SHARDS = {store.suffix: kind for kind, store in STORES.items() if issubclass(store, ShardStore)}


def open_store(
    path: str | os.PathLike[str],
    name: str | None = None,
    *,
    cache_dir: str | os.PathLike[str] | None = None,
    on_progress: Progress | None = None,
) -> Store:
    """Open a data set of any kind; list it if it has not been listed before.

    Args:
        path: A folder of pictures, a listing (CSV, JSON lines or Parquet), a tar or Parquet file, a folder of these,
            a pattern such as ``data/train-*.tar``, or the address of any of these in an object store, such as
            ``s3://bucket/train``. Options may follow: ``labels.csv?where=split = 'train'``.
        name: Name of the data set; by default the last part of its path.
        cache_dir: Where manifests are kept; by default ``$XDG_CACHE_HOME/sophon`` or ``~/.cache/sophon``.
        on_progress: Called while the data set is listed, with the number of samples found so far and the total, if
            known.

    Raises:
        ConfigError: The path is empty, not a data set, or holds several kinds of data at once; or an option is wrong.
        StoreError: The data set is empty or damaged.
    """
    text = os.path.expanduser(os.fspath(path))  # noqa: PTH111 - Path raises where there is no such user
    if not text or "\0" in text:
        raise ConfigError(f"expected the path of a data set, got {text!r}")
    if name is not None and (not name or "/" in name or not name.isprintable()):
        raise ConfigError(f"expected a data set name without slashes, got {name!r}")
    if name == "*":
        raise ConfigError(
            "a data set cannot be named '*', which stands for all data sets in a token file; choose another name"
        )
    bare, options = split_options(text)
    if is_address(bare):
        return _open_bucket(bare, name, options, ManifestCache(cache_dir), on_progress)
    place = Path(bare).absolute()
    try:
        title = _title(place) if name is None else name
        manifest = _manifest(place, options, ManifestCache(cache_dir), on_progress)
    except OSError as error:
        raise StoreError(f"cannot access {place}: {describe(error)}. Check the path and its permissions.") from error
    for note in manifest.notes:
        warnings.warn(note, stacklevel=2)
    return STORES[manifest.kind](place, title, _selected(manifest, options, place))


def _open_bucket(
    text: str, name: str | None, options: dict[str, str], cache: ManifestCache, on_progress: Progress | None
) -> Store:
    # Users without object stores need neither the library nor the time to load it.
    from sophon.store.bucket.table import make_store, open_manifest

    address = parse_address(text)
    options = dict(options)
    index_at = options.pop("index", None)
    manifest = open_manifest(address, options, cache, on_progress)
    for note in manifest.notes:
        warnings.warn(note, stacklevel=3)
    title = address.parent.name if address.is_pattern else address.name
    if address.suffix in (*_SHARDS, *SUFFIXES):
        title = title.rpartition(".")[0] or title
    is_done = "where" not in options or address.suffix in SUFFIXES
    store = make_store(address, name or title, manifest if is_done else _selected(manifest, options, address))
    if index_at is not None:
        store.index_at = index_at
    return store


def _manifest(path: Path, options: dict[str, str], cache: ManifestCache, on_progress: Progress | None) -> Manifest:
    told = {name: value for name, value in options.items() if name != "where"}
    # A listing that appears or changes next to a folder changes the manifest but not the folder.
    key = _key(options, listings_of(path) if path.is_dir() else [])
    manifest = cache.load(path, key)
    if manifest is not None and manifest.kind in STORES and STORES[manifest.kind].unchanged(path, manifest):
        return manifest
    kind = recognise(path, options)
    store: Any = STORES[kind]
    unfit = sorted(set(told) - store.options)
    if unfit:
        raise ConfigError(
            f"{path}: option {unfit[0]!r} does not apply to {_ARTICLES.get(kind, f'a {kind}')}; leave it out"
        )
    listed_at_s = time.time()
    given = {name: value for name, value in options.items() if name in store.options}
    manifest = store.scan(path, on_progress, given) if given else store.scan(path, on_progress)
    assert isinstance(manifest, Manifest)
    return cache.keep(path, manifest, listed_at_s, key)


_ARTICLES = {
    "annotated": "pictures with targets",
    "listed": "a listing with fields",
    "volumes": "volumes with labels",
    "tar": "tar shards",
    "parquet": "Parquet files with pictures in them",
}


def _key(options: dict[str, str], listings: list[Path]) -> str:
    parts = [f"{name}={value}" for name, value in sorted(options.items())]
    for file in listings:
        stat = file.stat()
        parts.append(f"{file} {stat.st_size} {stat.st_mtime_ns}")
    return "\0".join(parts)


def _selected(manifest: Manifest, options: dict[str, str], path: Place) -> Manifest:
    """Return the samples that the option `where` selects, for stores that do not handle it themselves."""
    where = options.get("where")
    if where is None or (manifest.kind in STORES and "where" in STORES[manifest.kind].options):
        return manifest
    facts: dict[str, Any] = {"id": whole(manifest.ids), "bytes": manifest.sizes}
    if manifest.labels is not None:
        facts["label"] = _class_names(manifest) if manifest.classes else manifest.labels
    facts |= {name: whole(manifest.columns[name]) for name in manifest.columns.column_names}
    rows = np.flatnonzero(matches(where, pa.table(facts)))
    if not len(rows):
        raise StoreError(f"{path}: no sample matches where={where}; check the condition")
    return manifest.select(rows)


def _class_names(manifest: Manifest) -> pa.Array:
    assert manifest.labels is not None
    known = (manifest.labels >= 0) & (manifest.labels < len(manifest.classes))
    return pa.array(manifest.classes, pa.string()).take(pa.array(np.where(known, manifest.labels, 0), mask=~known))


def recognise(path: Path, options: dict[str, str] | None = None) -> str:
    """Return the key in STORES of the store that opens a path.

    Raises:
        ConfigError: No store opens the path, or several do.
        StoreError: The folder is empty or cannot be listed.
    """
    for kind, store in STORES.items():
        if kind not in _OWN and store.opens(path):
            return kind
    if path.is_dir():
        if "labels" in (options or {}):
            return VolumeStore.kind
        is_annotated = (options or {}).keys() & AnnotatedStore.options
        kind = AnnotatedStore.kind if is_annotated else _recognise_folder(path, options or {})
        return ListedStore.kind if kind == ListingStore.kind and "fields" in (options or {}) else kind
    if not path.exists() and not is_pattern(path):
        raise ConfigError(f"there is nothing at {path}; check the spelling, or whether the disk is mounted")
    suffix = path.suffix.lower()
    if path.is_file() and suffix in SUFFIXES and (suffix not in _SHARDS or _is_listing(path)):
        return ListedStore.kind if "fields" in (options or {}) else ListingStore.kind
    kind = _SHARDS.get(suffix, "")
    if not kind or not (path.is_file() or is_pattern(path)):
        raise ConfigError(
            f"{path} is not a data set; expected a folder of pictures, a listing ({', '.join(SUFFIXES)}), a .tar or "
            ".parquet file or a folder of these"
        )
    if not find_shards(path, suffix)[1]:
        raise ConfigError(f"no file matches {path}; check the pattern")
    return kind


def _is_listing(path: Path) -> bool:
    """Return whether a Parquet file contains paths and no bytes."""
    try:
        return may_list(pq.read_schema(path))
    except ARROW_ERRORS:
        return False  # the store reports what is wrong with it


def _recognise_folder(path: Path, options: dict[str, str]) -> str:
    found: set[str] = set()
    count = 0
    try:
        with os.scandir(path) as entries:
            for entry in entries:
                count += 1
                suffix = os.path.splitext(entry.name)[1].lower()  # noqa: PTH122 - a million Path objects take seconds
                if suffix in _SHARDS and not entry.name.startswith(".") and entry.is_file():
                    found |= {_SHARDS[suffix]} if entry.name not in INSIDE else set()
                elif suffix in IMAGE_SUFFIXES:
                    found.add("folder")
    except OSError as error:
        raise StoreError(f"cannot list {path}: {describe(error)}. Check its permissions.") from error
    if not count:
        raise StoreError(f"{path} is empty; expected pictures, class folders, or .tar or .parquet files")
    if len(found) > 1:
        raise ConfigError(
            f"{path} holds several kinds of data at once ({', '.join(sorted(found))}); "
            "open one file or a pattern such as *.tar, or keep them apart"
        )
    # Folders next to shards are ignored; without shards they are classes.
    kind = found.pop() if found else "folder"
    if kind == "folder" and "files" not in options and find_listing(path, options.get("listing")) is not None:
        return ListingStore.kind
    return kind


def _title(path: Path) -> str:
    if is_pattern(path):
        path = path.parent
    if path.name in ("", ".."):
        path = path.resolve()
    is_file = path.suffix.lower() in (*_SHARDS, *SUFFIXES) and path.is_file()
    return (path.stem if is_file else path.name) or "data"
