"""A folder of synthetic photos on disk, in class folders as torchvision's ImageFolder expects them.

A hidden file in the folder records what was written, so that a later run replaces only photos of an earlier run.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from sophon.bench.pictures.photos import PhotoSource
from sophon.errors import ConfigError

RECORD = ".sophon-synth.json"


@dataclass(frozen=True)
class WrittenPhotos:
    """Summary of the photos that a run wrote.

    Args:
        folder: Folder of the photos.
        sizes_bytes: Size of every file, in order.
        prepare_s: Seconds before the first photo.
        write_s: Seconds for all photos.
        replaced: Photos of an earlier run that were removed first.
    """

    folder: Path
    sizes_bytes: tuple[int, ...]
    prepare_s: float
    write_s: float
    replaced: int = 0


@dataclass(frozen=True)
class _Record:
    """The contents of the hidden file, from which the names of the run's files follow."""

    like: str
    seed: int
    count: int
    classes: int

    def places(self, folder: Path) -> list[Path]:
        classes = min(self.classes, self.count)
        return [folder / f"class_{number:03d}" for number in range(classes)] or [folder]

    def paths(self, folder: Path) -> Iterator[Path]:
        places = self.places(folder)
        for index in range(self.count):
            yield places[index % len(places)] / f"photo_{index:06d}.jpg"


def write_photos(
    folder: Path,
    like: str,
    count: int,
    seed: int = 0,
    classes: int = 10,
    on_progress: Callable[[int, int], None] | None = None,
    force: bool = False,
) -> WrittenPhotos:
    """Write photos ``0..count-1`` of (like, seed).

    Photos of an earlier run in the same folder are removed first; other files are never touched.

    Args:
        folder: Folder to write to; it is made if it does not exist.
        like: Data set to resemble.
        count: Number of photos.
        seed: Seed of the photos; different seeds give different photos.
        classes: Class folders to spread the photos over; 0 for none.
        on_progress: Called with (done, count) after each photo.
        force: Write even if the folder holds other files.

    Raises:
        ConfigError: An argument is invalid.
    """
    if count < 1:
        raise ConfigError(f"expected 1 or more photos, got {count}; try 256")
    if classes < 0:
        raise ConfigError(f"expected 1 or more classes, or 0 for photos without class folders, got {classes}")
    earlier = _earlier_run(folder, force)
    started_s = time.perf_counter()
    source = PhotoSource(like, seed)
    record = _Record(like, seed, count, classes)
    try:
        if earlier is not None:
            _remove(folder, earlier)
        for place in record.places(folder):
            place.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"cannot write {error.filename}: {error.strerror}; try a folder of your own") from error
    (folder / RECORD).write_text(json.dumps(asdict(record)) + "\n")
    prepared_s = time.perf_counter()
    sizes_bytes = []
    for index, path in enumerate(record.paths(folder)):
        data = source.photo(index)
        path.write_bytes(data)
        sizes_bytes.append(len(data))
        if on_progress is not None:
            on_progress(index + 1, count)
    write_s = time.perf_counter() - prepared_s
    replaced = 0 if earlier is None else earlier.count
    return WrittenPhotos(folder, tuple(sizes_bytes), prepared_s - started_s, write_s, replaced)


def _earlier_run(folder: Path, force: bool) -> _Record | None:
    """Return the record of an earlier run here; refuse a folder that holds anything else, unless forced."""
    if not folder.exists():
        return None
    if not folder.is_dir():
        raise ConfigError(f"{folder} is a file; expected a folder or an unused name")
    record = _read_record(folder)
    if record is None and any(folder.iterdir()) and not force:
        raise ConfigError(
            f"{folder} holds files that `sophon synth` did not write; try another folder, or --force to add to it"
        )
    return record


def _remove(folder: Path, record: _Record) -> None:
    """Remove the photos of an earlier run."""
    for path in record.paths(folder):
        path.unlink(missing_ok=True)
    for place in record.places(folder):
        if place != folder:
            with contextlib.suppress(OSError):  # the folder may hold other files, or be gone
                place.rmdir()


def _read_record(folder: Path) -> _Record | None:
    """Return the record of an earlier run here, or None."""
    try:
        found = json.loads((folder / RECORD).read_text())
        return _Record(str(found["like"]), int(found["seed"]), int(found["count"]), int(found["classes"]))
    except (OSError, ValueError, TypeError, KeyError):
        return None
