"""Pictures in one folder and their targets in others: ``data?images=train&masks=masks&boxes=instances.json``.

A sample is a picture and the files or entries of the same name. Boxes and labels are read when the data set is listed,
and kept in the manifest; masks are read with their pictures. A sample whose target is missing or damaged is still
listed; reading it raises an error that names the field, and the trainer's `on_error` policy decides what happens then.

Concurrency:
    Files are opened for each read and closed after it.

Limits:
    A manifest is trusted as long as no folder's time and no annotation file changes.
"""

from __future__ import annotations

import os
import posixpath
import stat as stat_flags
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, TypeAlias

import numpy as np
import pyarrow as pa

from sophon.bundle import head_bytes, pack
from sophon.errors import ConfigError, StoreError
from sophon.store.annotations.coco import read_coco
from sophon.store.annotations.files import VOC_SUFFIX, YOLO_SUFFIX, read_voc, read_yolo
from sophon.store.annotations.found import Found
from sophon.store.fields import MASK, PICTURE, Field
from sophon.store.folder import IMAGE_SUFFIXES, FolderStore, check_inside
from sophon.store.manifest import Manifest, decode_name, encode_name, is_as_listed, sources_table
from sophon.store.pages.identity import KEPT
from sophon.store.store import Progress, Store, describe, fill, stamp_of
from sophon.units import counted

IMAGE = "image"
ByStem: TypeAlias = tuple[dict[str, tuple[str, int]], list[str]]


class AnnotatedStore(Store):
    """Pictures with masks, boxes, or both."""

    kind = "annotated"
    options: ClassVar[frozenset[str]] = frozenset({"images", "masks", "boxes"})

    def __init__(self, path: Path, name: str, manifest: Manifest) -> None:
        super().__init__(path, name, manifest)
        check_inside(manifest)
        self._look_up()

    @classmethod
    def scan(
        cls, path: Path, on_progress: Progress | None = None, options: Mapping[str, str] | None = None
    ) -> Manifest:
        """Return the manifest of a folder with pictures and targets in it."""
        told = dict(options or {})
        if "images" not in told or not told.keys() & {"masks", "boxes"}:
            raise ConfigError(f"{path}: expected ?images=FOLDER with masks=FOLDER, boxes=FILE or FOLDER, or both")
        folder = inside(path, "images", told["images"])
        base = FolderStore.scan(path / folder, on_progress)
        if "path" in base.locations.column_names:
            raise StoreError(f"{path / folder}: the name of a picture is not valid text; rename it")
        names = base.ids.to_pylist()
        rows = list(range(len(names)))
        found = Found(())
        if "boxes" in told:
            rows, found = _boxes(path, inside(path, "boxes", told["boxes"]), names)
            if not rows:
                raise StoreError(f"{path / told['boxes']} annotates none of the pictures in {path / folder}")
        base = base.select(np.array(rows, np.int64))
        stems = [posixpath.splitext(names[row])[0] for row in rows]
        files = []
        if "masks" in told:
            there = inside(path, "masks", told["masks"])
            files.append(files_beside(path, there, stems, Field("mask", MASK), by_stem(path, there, IMAGE_SUFFIXES)))
        return manifest_of(cls.kind, path, folder, base, PICTURE, files, found)

    @classmethod
    def unchanged(cls, path: Path, manifest: Manifest) -> bool:
        """Return whether neither a folder nor an annotation file has changed since the scan."""
        sources = manifest.sources.to_pylist()
        try:
            check_inside(manifest)
            return len(sources) > 0 and all(
                is_as_listed((path / decode_name(source["name"])).stat(), source) for source in sources
            )
        except (OSError, StoreError):
            return False

    @property
    def _root(self) -> Path:
        """The folder that files are relative to."""
        assert isinstance(self.path, Path)
        return self.path

    def _look_up(self) -> None:
        manifest = self.manifest
        columns = manifest.locations.column_names
        self._kept = {}
        for field in manifest.fields:
            of_field = {
                what: manifest.locations[f"{what}/{field.name}"]
                for what in ("bytes", "file", "data", "problem")
                if f"{what}/{field.name}" in columns
            }
            self._kept[field.name] = of_field

    def changed_ns(self, index: int) -> int:
        """Return the latest modification time among a sample's files, in nanoseconds."""
        return max(stat.st_mtime_ns for stat in self._stats(index))

    def stamp(self, index: int) -> str:
        """Return the modification and change times of a sample's files."""
        return " ".join(map(stamp_of, self._stats(index)))

    def _stats(self, index: int) -> list[os.stat_result]:
        try:
            return [
                os.stat(self._path(of_field, index))  # noqa: PTH116 - a Path takes longer than the call
                for of_field in self._kept.values()
                if "file" in of_field and of_field["file"][index].as_py()
            ]
        except OSError as error:
            remedy = "Check that it exists and is readable."
            raise self._failure(index, f"its file cannot be examined: {describe(error)}", remedy) from error

    def _read(self, index: int) -> bytes:
        return pack([self._part(name, of_field, index) for name, of_field in self._kept.items()])

    def _part(self, name: str, of_field: Mapping[str, Any], index: int) -> bytes:
        """Return the bytes of one field of a sample."""
        problem = of_field["problem"][index].as_py() if "problem" in of_field else b""
        if problem:
            remedy = "Correct it, or set on_error for such samples."
            raise self._failure(index, f"field {name!r}: {problem.decode()}", remedy)
        if "data" in of_field:
            data: bytes = of_field["data"][index].as_py()
            return data
        return self._file(name, self._path(of_field, index), int(of_field["bytes"][index].as_py()), index)

    def _path(self, of_field: Mapping[str, Any], index: int) -> str:
        return f"{self._root}/{decode_name(of_field['file'][index].as_py())}"

    def _file(self, name: str, path: str, size: int, index: int) -> bytes:
        try:
            # O_NONBLOCK, so as not to wait forever if a pipe has replaced a picture.
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
            try:
                stat = os.fstat(fd)
                if stat.st_size != size or not stat_flags.S_ISREG(stat.st_mode):
                    problem = (
                        f"field {name!r}: its file has {stat.st_size:,} bytes, but had {size:,} when it was listed"
                    )
                    raise self._failure(index, problem, f"Run `touch {posixpath.dirname(path)}` and open it again.")
                space = bytearray(size)
                return bytes(space[: fill(fd, memoryview(space))])
            finally:
                os.close(fd)
        except OSError as error:
            remedy = "Check that it exists and is readable, or open the data set again without it."
            raise self._failure(index, f"field {name!r}: its file cannot be read: {describe(error)}", remedy) from error


def inside(root: Path, option: str, said: str) -> str:
    """Return an option's path in its shortest form; it must not lead out of the data set."""
    short = posixpath.normpath(said)
    if said.startswith(("/", "~")) or short == ".." or short.startswith("../") or "\0" in said:
        raise ConfigError(f"{option}: expected a name inside {root}, got {said!r:.80}")
    if not (root / short).exists():
        raise ConfigError(f"{option}: there is nothing at {root / short}; check the spelling")
    return short


def without_suffix(name: str) -> str:
    """Return a file name without its ending."""
    return posixpath.splitext(name)[0]


def by_stem(
    root: Path, folder: str, suffixes: tuple[str, ...], stem_of: Callable[[str], str] = without_suffix
) -> ByStem:
    """Return the files in a folder and all folders below it by stem, with their sizes, and the folders."""
    found: dict[str, tuple[str, int]] = {}
    folders = []
    for place, _, names in os.walk(root / folder):
        inside = posixpath.relpath(place, root)
        folders.append(inside)
        for name in sorted(names):
            if not name.lower().endswith(suffixes) or name.startswith("."):
                continue
            path = posixpath.join(inside, name)
            stem = stem_of(posixpath.relpath(path, folder))
            if stem in found:
                raise StoreError(f"{root}: {path} and {found[stem][0]} have the same name; remove one of them")
            found[stem] = (path, os.stat(f"{root}/{path}").st_size)  # noqa: PTH116 - a Path takes longer
    return found, folders


def files_beside(root: Path, folder: str, stems: list[str], field: Field, there: ByStem) -> Found:
    """Return the paths of a field's files, with their sizes as a column.

    Args:
        root: The data set.
        folder: Folder of the files, inside the data set.
        stems: Names of the samples, without endings.
        field: The field.
        there: Contents of the folder.
    """
    files, folders = there
    if files and stems and not any(stem in files for stem in stems):
        name = next(iter(files.values()))[0]
        raise StoreError(
            f"{root / folder}: no {field.name} is named after a picture: expected names such as "
            f"'{stems[0]}{posixpath.splitext(name)[1]}', found '{posixpath.basename(name)}'; rename them, or give a "
            f"listing with ?fields=image,{field.name}"
        )
    found = Found((field,), columns={"bytes": []})
    for stem in stems:
        path, size = files.get(stem, ("", 0))
        problem = "" if path else f"there is no {field.name} named {stem} in {folder}"
        found.add({field.name: encode_name(path)}, problem)
        found.columns["bytes"].append(size)
    found.sources += [source_of(root, name) for name in folders]
    return found


def _boxes(root: Path, said: str, names: list[str]) -> tuple[list[int], Found]:
    place = root / said
    if not place.is_dir():
        source = source_of(root, said)  # taken before reading: a change in between makes the manifest stale, not wrong
        listed, found = read_coco(place, names)
        found.sources.append(source)
        return listed, found
    found_files, folders = by_stem(root, said, (YOLO_SUFFIX, VOC_SUFFIX))
    sources = [source_of(root, name) for name in (*folders, *(path for path, _ in found_files.values()))]
    kinds = {posixpath.splitext(path)[1].lower() for path, _ in found_files.values()}
    if len(kinds) != 1:
        there = "both" if kinds else "none"
        raise StoreError(f"{place}: expected YOLO's .txt files or Pascal VOC's .xml files, found {there}")
    files = {stem: root / path for stem, (path, _) in found_files.items()}
    stems = [posixpath.splitext(name)[0] for name in names]
    found = (read_yolo if kinds == {YOLO_SUFFIX} else read_voc)(stems, files)
    without = sum(stem not in files for stem in stems)
    if without == len(stems):
        raise StoreError(f"{place}: no file is named after a picture")
    if without and kinds == {YOLO_SUFFIX}:
        found.notes.append(f"{without:,} pictures have no file in {place}, and therefore no boxes")
    found.sources += sources
    return list(range(len(names))), found


def manifest_of(
    kind: str, root: Path, folder: str, base: Manifest, first: str, files: Sequence[Found], boxes: Found
) -> Manifest:
    """Return the manifest of files with further files beside them.

    Args:
        kind: Kind of the store.
        root: The data set.
        folder: Folder of the first files, inside the data set.
        base: Manifest of that folder.
        first: Kind of the first field.
        files: Paths of the fields that are separate files.
        boxes: Fields that are kept in the manifest.
    """
    fields = [Field(IMAGE, first)]
    prefix = "" if folder == "." else f"{folder}/"
    ids = [f"{prefix}{name}" for name in base.ids.to_pylist()]
    binary = pa.large_binary()
    locations: dict[str, Any] = {
        f"file/{IMAGE}": pa.array([encode_name(name) for name in ids], binary),
        f"bytes/{IMAGE}": base.sizes,
    }
    total = base.sizes.astype(np.int64)
    for found in files:
        (field,) = found.fields
        fields.append(field)
        sizes = np.array(found.columns["bytes"], np.int64)
        locations |= {f"file/{field.name}": pa.array(found.values[field.name], binary), f"bytes/{field.name}": sizes}
        locations |= _problems(field.name, found)
        total = total + sizes
    for field in boxes.fields:
        fields.append(field)
        sizes = np.array([len(value) for value in boxes.values[field.name]], np.int64)
        locations |= {f"{KEPT}{field.name}": pa.array(boxes.values[field.name], binary), f"bytes/{field.name}": sizes}
        locations |= _problems(field.name, boxes)
        total = total + sizes
    sources = [
        (posixpath.normpath(posixpath.join(folder, decode_name(one["name"]))), -1, one["mtime_ns"], one["ctime_ns"])
        for one in base.sources.to_pylist()
    ]
    sources += [source for found in (*files, boxes) for source in found.sources]
    bad = sum(bool(problem) for found in (*files, boxes) for problem in found.problems)
    notes = [*base.notes, *boxes.notes]
    if bad:
        whose = counted(bad, "sample", "samples")
        notes.append(
            f"targets for {whose} in {root} are missing or damaged; on_error decides what happens to those samples"
        )
    return replace(
        base,
        kind=kind,
        ids=pa.array(ids, pa.large_string()),
        sizes=total + head_bytes(len(fields)),
        classes=base.classes or boxes.classes,
        columns=pa.table(boxes.columns) if boxes.columns else base.columns,
        locations=pa.table(locations),
        sources=sources_table(*map(list, zip(*sources, strict=True))),
        notes=tuple(notes),
        fields=tuple(fields),
    )


def source_of(root: Path, name: str) -> tuple[str, int, int, int]:
    """Return the size and times of a file or folder, by which a manifest detects changes."""
    stat = (root / name).stat()
    size = -1 if stat_flags.S_ISDIR(stat.st_mode) else stat.st_size
    return name, size, stat.st_mtime_ns, stat.st_ctime_ns


def _problems(name: str, found: Found) -> dict[str, Any]:
    if not any(found.problems):
        return {}
    return {f"problem/{name}": pa.array([text.encode() for text in found.problems], pa.large_binary())}
