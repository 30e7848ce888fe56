"""Writes the foreground index of a data set's labels: one small file per sample, next to the data.

Limits:
    An existing file is kept if its label has the same size in bytes, so an interrupted run resumes where it stopped.
"""

from __future__ import annotations

import posixpath
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from sophon.artifact import replacing
from sophon.bundle import unpack
from sophon.errors import ConfigError, Error, OpError
from sophon.pipeline.ops.volumes import foreground
from sophon.pipeline.ops.volumes.decode import opened_file
from sophon.pipeline.ops.volumes.file import MAX_VOXELS, as_label
from sophon.store.annotations.volumes import INDEX_SUFFIX, LABEL, stem_of
from sophon.store.store import Store


@dataclass(frozen=True)
class Written:
    """Summary of the index that was written.

    Args:
        folder: Folder with the files.
        samples: Number of files in the folder now.
        kept: Number of files that existed before.
        unreadable: Samples whose labels cannot be read.
        index_bytes: Total size of all index files.
        sample_bytes: Total size of all samples.
    """

    folder: Path
    samples: int
    kept: int
    unreadable: int
    index_bytes: int
    sample_bytes: int


def write_foreground(
    store: Store,
    folder: Path,
    threads: int = 1,
    on_progress: Callable[[int, int], None] | None = None,
    label: str = LABEL,
) -> Written:
    """Write the foreground index of every sample.

    Args:
        store: A data set with label volumes.
        folder: Folder to write to; one file per sample, named after its image.
        threads: Number of samples to process at once.
        on_progress: Called with the number of samples done and the total.
        label: Name of the field that holds labels.

    Raises:
        ConfigError: The samples have no such field.
    """
    if label not in [field.name for field in store.manifest.fields[1:]]:
        raise ConfigError(f"{store.path} has no field {label!r}; open it with ?images=FOLDER&labels=FOLDER")
    narrow = store.narrowed((label,))
    names = store.manifest.ids.to_pylist()
    common = posixpath.commonpath([posixpath.dirname(name) for name in names])

    def index(sample: int) -> tuple[int, bool] | None:
        place = folder / f"{stem_of(posixpath.relpath(names[sample], common or '.'))}{INDEX_SUFFIX}"
        try:
            return _one(bytes(unpack(narrow.read(sample), 2)[1]), place)
        except (OpError, Error):
            return None

    folder.mkdir(parents=True, exist_ok=True)
    sizes, kept, unreadable = 0, 0, 0
    with ThreadPoolExecutor(threads) as pool:
        for done, found in enumerate(pool.map(index, range(len(names))), 1):
            if on_progress is not None:
                on_progress(done, len(names))
            unreadable += found is None
            if found is not None:
                sizes += found[0]
                kept += found[1]
    total = int(store.manifest.sizes.sum())
    return Written(folder, len(names) - unreadable, kept, unreadable, sizes, total)


def _one(data: bytes, place: Path) -> tuple[int, bool]:
    """Write the index of one label; return its size in bytes, and whether it existed."""
    file = opened_file(memoryview(data), MAX_VOXELS)
    # Someone with write access may have put a pipe or a huge sparse file in its place.
    if place.is_file() and place.stat().st_size <= foreground.MOST_BYTES:
        before = place.read_bytes()
        try:
            foreground.from_bytes(before, file.header.sizes, len(data))
        except OpError:
            pass  # for a different label, or damaged
        else:
            return len(before), True
    made = foreground.to_bytes(
        foreground.found_in(as_label(file.read(file.header.whole), file.header)), file.header.sizes, len(data)
    )
    place.parent.mkdir(parents=True, exist_ok=True)
    with replacing(place) as out:
        out.write(made)
    return len(made), False
