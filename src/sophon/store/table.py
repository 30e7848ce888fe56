"""The table of stores: a new one is one file, one row here and one test."""

from __future__ import annotations

import os
import time
import warnings
from pathlib import Path

from sophon.errors import ConfigError, StoreError
from sophon.store.cache import ManifestCache
from sophon.store.folder import IMAGE_SUFFIXES, FolderStore
from sophon.store.manifest import Manifest
from sophon.store.parquet import ParquetStore
from sophon.store.shards import ShardStore, find_shards, is_pattern
from sophon.store.store import Progress, Store, describe
from sophon.store.tar import TarStore

STORES: dict[str, type[Store]] = {"folder": FolderStore, "tar": TarStore, "parquet": ParquetStore}

_SHARDS = {store.suffix: kind for kind, store in STORES.items() if issubclass(store, ShardStore)}


def open_store(
    path: str | os.PathLike[str],
    name: str | None = None,
    *,
    cache_dir: str | os.PathLike[str] | None = None,
    on_progress: Progress | None = None,
) -> Store:
    """Open a data set of any kind; list it if that was not done before.

    Args:
        path: A folder of pictures, a tar or Parquet file, a folder of these, or a pattern such as ``data/train-*.tar``.
        name: What the data set is called; by default the last part of its path.
        cache_dir: Where manifests are kept; by default ``$XDG_CACHE_HOME/sophon`` or ``~/.cache/sophon``.
        on_progress: Called while the data set is listed: samples found so far, and how many there will be where that
            is known.

    Raises:
        ConfigError: There is nothing at the path, no data set, or several kinds of data at once.
        StoreError: The data set is empty or damaged.
    """
    text = os.path.expanduser(os.fspath(path))  # noqa: PTH111 - Path raises where there is no such user
    if not text or "\0" in text:
        raise ConfigError(f"expected the path of a data set, got {text!r}")
    place = Path(text).absolute()
    if name is not None and (not name or "/" in name or not name.isprintable()):
        raise ConfigError(f"expected the name of a data set without slashes, got {name!r}")
    try:
        title = _title(place) if name is None else name
        manifest = _manifest(place, ManifestCache(cache_dir), on_progress)
    except OSError as error:
        raise StoreError(f"cannot look at {place}: {describe(error)}. Check the path and its rights.") from error
    for note in manifest.notes:
        warnings.warn(note, stacklevel=2)
    return STORES[manifest.kind](place, title, manifest)


def _manifest(path: Path, cache: ManifestCache, on_progress: Progress | None) -> Manifest:
    manifest = cache.load(path)
    if manifest is not None and manifest.kind in STORES and STORES[manifest.kind].unchanged(path, manifest):
        return manifest
    store = STORES[recognise(path)]
    listed_at_s = time.time()
    manifest = store.scan(path, on_progress)
    cache.keep(path, manifest, listed_at_s)
    return manifest


def recognise(path: Path) -> str:
    """Return which row of STORES opens a path.

    Raises:
        ConfigError: No row does, or several do.
        StoreError: The folder is empty or cannot be listed.
    """
    if path.is_dir():
        return _recognise_folder(path)
    if not path.exists() and not is_pattern(path):
        raise ConfigError(f"there is nothing at {path}; check the spelling, or whether the disk is mounted")
    kind = _SHARDS.get(path.suffix.lower())
    if kind is None or not (path.is_file() or is_pattern(path)):
        raise ConfigError(
            f"{path} is not a data set; expected a folder of pictures, a .tar or .parquet file or a folder of these"
        )
    if not find_shards(path, path.suffix.lower())[1]:
        raise ConfigError(f"no file is named like {path}; check the pattern")
    return kind


def _recognise_folder(path: Path) -> str:
    found: set[str] = set()
    count = 0
    try:
        with os.scandir(path) as entries:
            for entry in entries:
                count += 1
                suffix = os.path.splitext(entry.name)[1].lower()  # noqa: PTH122 - a million Path objects take seconds
                if suffix in _SHARDS and not entry.name.startswith(".") and entry.is_file():
                    found.add(_SHARDS[suffix])
                elif suffix in IMAGE_SUFFIXES:
                    found.add("folder")
    except OSError as error:
        raise StoreError(f"cannot list {path}: {describe(error)}. Check that it may be read.") from error
    if not count:
        raise StoreError(f"{path} is empty; expected pictures, class folders, or .tar or .parquet files")
    if len(found) > 1:
        raise ConfigError(
            f"{path} holds several kinds of data at once ({', '.join(sorted(found))}); "
            "open one file or a pattern such as *.tar, or keep them apart"
        )
    # Folders beside shards are left alone; without shards they are classes.
    return found.pop() if found else "folder"


def _title(path: Path) -> str:
    if is_pattern(path):
        path = path.parent
    if path.name in ("", ".."):
        path = path.resolve()
    return (path.stem if path.suffix.lower() in _SHARDS and path.is_file() else path.name) or "data"
