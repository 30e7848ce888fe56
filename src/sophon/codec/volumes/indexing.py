"""Writing the index of the foreground of a data set's labels: a small file for each sample, beside the data.

Limits:
    A file that is there already is kept where it is of a label of the same size in bytes, so that a run that was
    interrupted goes on where it was.
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
    """What was written.

    Args:
        folder: Where.
        samples: Number of files there are now.
        kept: Those of them that were there before.
        unreadable: Samples whose label cannot be read.
        index_bytes: Bytes of all files.
        sample_bytes: Bytes of all samples.
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
    """Write the index of every sample's foreground.

    Args:
        store: A data set with label volumes.
        folder: Where to write; one file for each sample, with the name of its image.
        threads: Samples to look at once.
        on_progress: Told how many samples are done, and how many there are.
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
    """Write the index of one label; return its bytes, and whether it was there."""
    file = opened_file(memoryview(data), MAX_VOXELS)
    if place.exists():
        before = place.read_bytes()
        try:
            foreground.from_bytes(before, file.header.sizes, len(data))
        except OpError:
            pass  # of another label, or damaged
        else:
            return len(before), True
    made = foreground.to_bytes(
        foreground.found_in(as_label(file.read(file.header.whole), file.header)), file.header.sizes, len(data)
    )
    place.parent.mkdir(parents=True, exist_ok=True)
    with replacing(place) as out:
        out.write(made)
    return len(made), False
