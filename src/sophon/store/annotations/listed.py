"""Listings in which several columns name files: ``rows.csv?fields=image,mask``.

The first field is the picture, in the path column; each further field is a column of paths, relative to the
same folder. If such a file is missing, the sample is still listed, and reading it raises an error that names the field.

Concurrency:
    Files are opened for each read and closed after it.

Limits:
    As for listings: a manifest is trusted as long as neither the listing nor a folder's time changes.
"""

from __future__ import annotations

import os
import posixpath
import stat as stat_flags
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa

from sophon.bundle import head_bytes
from sophon.errors import ConfigError
from sophon.store.annotations.store import IMAGE, AnnotatedStore
from sophon.store.fields import BYTES, MASK, PICTURE, Field, named_columns
from sophon.store.folder import IMAGE_SUFFIXES
from sophon.store.listing.store import ListingStore
from sophon.store.manifest import Manifest, encode_name, sources_table
from sophon.store.store import Progress
from sophon.units import counted


class ListedStore(AnnotatedStore):
    """Pictures with additional files, which a listing names in separate columns."""

    kind = "listed"
    options: ClassVar[frozenset[str]] = ListingStore.options | {"fields"}

    @property
    def _root(self) -> Path:
        assert isinstance(self.path, Path)
        return _root_of(self.path)

    @classmethod
    def scan(
        cls, path: Path, on_progress: Progress | None = None, options: Mapping[str, str] | None = None
    ) -> Manifest:
        """Return the manifest of a listing and the files in several of its columns."""
        told = dict(options or {})
        names = named_columns(told.pop("fields", ""))
        if names[0] != IMAGE:
            told["path"] = names[0]
        base = ListingStore.scan(path, on_progress, told)
        columns, root = base.columns, _root_of(path)
        for name in names[1:]:
            if name not in columns.column_names:
                there_is = ", ".join(map(repr, columns.column_names)) or "none"
                raise ConfigError(f"fields: {path} has no further column {name!r}; choose from {there_is}")
            if not (pa.types.is_string(columns[name].type) or pa.types.is_large_string(columns[name].type)):
                raise ConfigError(f"fields: column {name!r} of {path} holds {columns[name].type}, expected paths")
        fields, sizes = [Field(IMAGE, PICTURE)], [base.sizes.astype(np.int64)]
        binary = pa.large_binary()
        ids = base.ids.to_pylist()
        locations: dict[str, Any] = {f"file/{IMAGE}": pa.array(list(map(encode_name, ids)), binary)}
        folders: set[str] = set()
        bad = 0
        for name in names[1:]:
            found = [_examined(root, said) for said in columns[name].to_pylist()]
            sizes.append(np.array([size for _, size, _ in found], np.int64))
            problems = [problem for _, _, problem in found]
            locations[f"file/{name}"] = pa.array([encode_name(file) for file, _, _ in found], binary)
            if any(problems):
                locations[f"problem/{name}"] = pa.array([problem.encode() for problem in problems], binary)
            folders |= {posixpath.dirname(file) for file, _, problem in found if not problem}
            fields.append(Field(name, _kind_of(name, [file for file, _, problem in found if not problem])))
            bad += sum(map(bool, problems))
        locations |= {f"bytes/{field.name}": each for field, each in zip(fields, sizes, strict=True)}
        notes = list(base.notes)
        if bad:
            whose = counted(bad, "sample", "samples")
            notes.append(f"files for {whose} in {path} are missing; on_error decides what happens to those samples")
        return replace(
            base,
            kind=cls.kind,
            sizes=np.sum(sizes, axis=0) + head_bytes(len(fields)),
            columns=columns.drop_columns(names[1:]) if columns.num_columns >= len(names) else pa.table({}),
            locations=pa.table(locations),
            sources=_with_folders(base.sources, root, sorted(folders)),
            notes=tuple(notes),
            fields=tuple(fields),
        )

    @classmethod
    def unchanged(cls, path: Path, manifest: Manifest) -> bool:
        """Return whether neither the listing nor a folder that holds files has changed since the scan."""
        return ListingStore.unchanged(path, manifest)


def _root_of(path: Path) -> Path:
    return path if path.is_dir() else path.parent


def _kind_of(name: str, files: list[str]) -> str:
    """Return the kind of a column of files, judged by their names."""
    if name == MASK:
        return MASK
    return PICTURE if files and all(file.lower().endswith(IMAGE_SUFFIXES) for file in files) else BYTES


def _examined(root: Path, said: str | None) -> tuple[str, int, str]:
    """Return a file's path in its shortest form, its size, and what is wrong with it; "" if nothing is."""
    if said is None or not said.strip() or "\0" in said:
        return "", 0, "its row names no file"
    short = posixpath.normpath(said)
    if said.startswith(("/", "~")) or short in ("..", ".") or short.startswith("../"):
        return "", 0, f"{said!r:.80} is outside the data set"
    try:
        stat = os.stat(f"{root}/{short}")  # noqa: PTH116 - a Path takes longer than the call
    except (OSError, ValueError):
        return "", 0, f"there is no file {short!r:.200}"
    return (short, stat.st_size, "") if stat_flags.S_ISREG(stat.st_mode) else ("", 0, f"{short!r:.200} is not a file")


def _with_folders(sources: pa.Table, root: Path, folders: list[str]) -> pa.Table:
    """Return the sources of a manifest, with more folders added."""
    known = set(sources["name"].to_pylist())
    more = [name for name in folders if encode_name(name) not in known]
    stats = [(root / name).stat() for name in more]
    added = sources_table(
        more, [-1] * len(more), [stat.st_mtime_ns for stat in stats], [stat.st_ctime_ns for stat in stats]
    )
    return pa.concat_tables([sources, added]) if more else sources
