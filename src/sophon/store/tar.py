"""Tar shards in WebDataset's naming, indexed by offset and read in place.

Concurrency:
    A sample is read with one `pread`; a bounded number of shards is open.

Limits:
    Plain tar only: a compressed archive cannot be read at random. All `.json` and `.txt` members are kept in memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

import numpy as np
import pyarrow as pa

from sophon.errors import StoreError
from sophon.store.folder import IMAGE_SUFFIXES
from sophon.store.manifest import NO_LABEL, Manifest
from sophon.store.options import suffixes
from sophon.store.shards import ShardFiles, ShardStore, find_shards, shard_sources
from sophon.store.store import Progress, describe
from sophon.store.tar_samples import ShardSamples, scan_shard


class TarStore(ShardStore):
    """Samples in tar shards; `tar_samples` says which members make up a sample."""

    kind = "tar"
    suffix = ".tar"
    options: ClassVar[frozenset[str]] = frozenset({"files"})
    _files: ShardFiles

    def __init__(self, path: Path, name: str, manifest: Manifest) -> None:
        super().__init__(path, name, manifest)
        self._files = ShardFiles(path, manifest.sources)
        self._offsets = manifest.locations["offset"].to_numpy()

    @classmethod
    def scan(
        cls, path: Path, on_progress: Progress | None = None, options: Mapping[str, str] | None = None
    ) -> Manifest:
        """Return the manifest of one shard, of a folder of shards in order of their names, or of a pattern.

        With the option `files` its samples are members with other endings, or any.
        """
        files = (options or {}).get("files")
        endings = IMAGE_SUFFIXES if files is None else suffixes(files)
        folder, names = find_shards(path, cls.suffix)
        sources = shard_sources(folder, names)
        shards: list[ShardSamples] = []
        done = 0

        def report(count: int) -> None:
            if on_progress is not None:
                on_progress(done + count, None)

        for name in names:
            shards.append(scan_shard(folder / name, report, endings))
            done += len(shards[-1].sizes)
        if not done:
            raise StoreError(
                f"no {'picture' if files is None else files} found in the {len(names)} shards of {path}; expected "
                f"members such as 0001.jpg and 0001.cls; {path}?files=.npy takes files of another kind"
            )
        return _manifest(path, names, shards, sources)

    def _read(self, index: int) -> bytes:
        shard = int(self._shards[index])
        try:
            return self._files.pread(shard, int(self._offsets[index]), int(self.manifest.sizes[index]))
        except OSError as error:
            raise self._unreadable(index, shard, error) from error

    def _read_into(self, index: int, space: memoryview) -> int:
        shard = int(self._shards[index])
        try:
            return self._files.pread_into(shard, int(self._offsets[index]), space)
        except OSError as error:
            raise self._unreadable(index, shard, error) from error

    def _unreadable(self, index: int, shard: int, error: OSError) -> StoreError:
        problem = f"its shard {self._files.path(shard)} cannot be read: {describe(error)}"
        return self._failure(index, problem, "Put the shard back or open the data set again.")

    def close(self) -> None:
        """Close the shards."""
        super().close()
        self._files.close()


def _manifest(path: Path, names: list[str], shards: list[ShardSamples], sources: pa.Table) -> Manifest:
    keys = pa.concat_arrays([shard.keys for shard in shards])
    try:
        ids = keys.cast(pa.large_string())
    except pa.ArrowInvalid:
        # For display only: samples are found by their offsets.
        ids = pa.array([key.as_py().decode("utf-8", "backslashreplace") for key in keys], pa.large_string())
    labels = np.concatenate([shard.labels for shard in shards])
    columns = {
        "json": pa.chunked_array([shard.json for shard in shards]),
        "txt": pa.chunked_array([shard.txt for shard in shards]),
    }
    counts = [len(shard.sizes) for shard in shards]
    locations = {
        "shard": np.repeat(np.arange(len(shards), dtype=np.int32), counts),
        "offset": np.concatenate([shard.offsets for shard in shards]),
    }
    return Manifest(
        kind=TarStore.kind,
        ids=ids,
        sizes=np.concatenate([shard.sizes for shard in shards]),
        labels=None if (labels == NO_LABEL).all() else labels,
        columns=pa.table({name: texts for name, texts in columns.items() if texts.null_count < len(texts)}),
        locations=pa.table(locations),
        sources=sources,
        notes=tuple(_notes(path, names, shards, int((labels == NO_LABEL).sum()), len(labels))),
    )


def _notes(path: Path, names: list[str], shards: list[ShardSamples], unlabelled: int, count: int) -> list[str]:
    notes = []
    missing = sum(shard.without_image for shard in shards)
    if missing:
        notes.append(f"{missing:,} samples in {path} have no picture and are left out")
    doubled = sum(shard.several_images for shard in shards)
    if doubled:
        notes.append(f"{doubled:,} pictures in {path} are left out since their sample has another one")
    if 0 < unlabelled < count:
        notes.append(f"{unlabelled:,} of {count:,} samples in {path} have no label and get {NO_LABEL}")
    cut = [name for name, shard in zip(names, shards, strict=True) if not shard.ended]
    if cut:
        notes.append(f"{len(cut)} shards in {path} have no end mark and may be cut short, the first is {cut[0]}")
    return notes
