"""Manifests kept on disk, so that a data set is listed once.

One file per data set, ``CACHE/manifests/KEY.arrow``, with a key made from the real path. A manifest is reused as long
as the store reports its sources unchanged.

Concurrency:
    Files are replaced as a whole; processes that list the same data set at once write the same file.
"""

from __future__ import annotations

import hashlib
import os
import warnings
from pathlib import Path

import pyarrow as pa

from sophon.errors import ArtifactError, ConfigError
from sophon.process.caches import tidy, used
from sophon.process.folders import make_private, not_private, user_folder
from sophon.store.address import Address, Place
from sophon.store.manifest import FORMAT, Manifest
from sophon.store.pages.file import HELD_BYTES

# A folder that changes twice within one tick of its file system's clock shows the same time twice. So a manifest is not
# kept if its sources changed less than this long before they were listed. FAT and old NFS have the longest ticks, 2 s.
_TICK_S = 2.0


def cache_file(kind: str, path: Place, version: int, folder: str | os.PathLike[str] | None = None) -> Path | None:
    """Return the path in the cache of a file about a data set; None if there is no cache folder.

    Args:
        kind: Kind of file, such as ``manifests``.
        path: Location of the data set.
        version: Version of the file's format; each version has its own file.
        folder: The cache folder; None for the user's default.
    """
    base = user_folder() if folder is None else Path(folder)
    if base is None:
        return None
    try:
        make_private(base / kind)
        if not_private(base) or not_private(base / kind):
            return None
    except OSError:
        return None
    return base / kind / _name(path, version)


class ManifestCache:
    """A folder of manifests.

    Args:
        folder: Folder for the manifests; None for the user's cache folder, or none at all if that cannot be written to.
    """

    def __init__(self, folder: str | os.PathLike[str] | None = None) -> None:
        base = user_folder() if folder is None else Path(folder)
        self._folder = None if base is None else base / "manifests"
        if base is None or self._folder is None:
            return
        tidy(base)
        problem = None
        try:
            make_private(self._folder)
            problem = not_private(base) or not_private(self._folder)
            writable = os.access(self._folder, os.W_OK | os.X_OK)
        except OSError:
            writable = False
        if writable and problem is None:
            return
        if folder is not None:
            problem = (
                problem or f"cache folder {base} cannot be written to; choose another one or change its permissions"
            )
            raise ConfigError(problem)
        if problem is not None:
            warnings.warn(f"the cache folder is not used: {problem}", stacklevel=3)
        self._folder = None

    def load(self, path: Place, options: str = "") -> Manifest | None:
        """Return the manifest kept for a path and its options, or None if no usable one exists."""
        file = self._file(path, options)
        if file is None or not file.is_file():
            return None
        try:
            manifest = Manifest.load(file)
        except ArtifactError:
            return None  # only a cache: the data set is listed again and the file replaced
        used(file, _about(path, options))
        return manifest

    def keep(self, path: Place, manifest: Manifest, listed_at_s: float, options: str = "") -> Manifest:
        """Keep a manifest, unless its sources may have changed while it was made.

        Returns:
            The same manifest; if it is large, one that reads its rows from the file, so that memory can be freed.

        Args:
            path: Path of the data set.
            manifest: The manifest of the data set.
            listed_at_s: Time at which listing began, from `time.time()`.
            options: The options after the path, and anything else that determines the result.
        """
        file = self._file(path, options)
        newest_s = max(manifest.sources["mtime_ns"].to_numpy(), default=0) / 1e9
        if file is None or newest_s > listed_at_s - _TICK_S:
            return manifest
        try:
            digest = manifest.save(file)
        except (OSError, pa.ArrowException):
            return manifest  # a full disk, or a column that Arrow cannot write: the data set is still usable
        used(file, _about(path, options))
        try:
            return Manifest.load(file, digest=digest) if file.stat().st_size > HELD_BYTES else manifest
        except (OSError, ArtifactError):
            return manifest  # another process has replaced it in the meantime

    def _file(self, path: Place, options: str) -> Path | None:
        if self._folder is None:
            return None
        return self._folder / _name(path, FORMAT, options)


def _about(path: Place, options: str) -> str:
    return f"{_real(path)} {options}".rstrip()


def _real(path: Place) -> str:
    # Not Path.resolve, which raises on a link to itself.
    return str(path) if isinstance(path, Address) else os.path.realpath(path)


def _name(path: Place, version: int, options: str = "") -> str:
    real = _real(path)
    more = f"\0{options}" if options else ""  # no path contains a zero byte
    return hashlib.sha256(f"{version}\n".encode() + os.fsencode(real + more)).hexdigest()[:32] + ".arrow"
