"""Volumes in one folder and their labels in another: ``data?images=imagesTr&labels=labelsTr``.

This is the layout of the Medical Segmentation Decathlon. A sample is an image and the label of the same name; with
``foreground=FOLDER``, also the index of the label's foreground (`sophon index`). A folder named ``foreground`` is used
by default.
"""

from __future__ import annotations

import posixpath
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

from sophon.errors import ConfigError, StoreError
from sophon.store.annotations.found import Found
from sophon.store.annotations.store import AnnotatedStore, by_stem, files_beside, inside, manifest_of, source_of
from sophon.store.fields import FOREGROUND, SUFFIXES, VOLUME, Field
from sophon.store.folder import FolderStore
from sophon.store.manifest import Manifest
from sophon.store.store import Progress

LABEL = "label"
INDEX_SUFFIX = ".json"


class VolumeStore(AnnotatedStore):
    """Volumes with labels."""

    kind = "volumes"
    options: ClassVar[frozenset[str]] = frozenset({"images", "labels", "foreground"})

    @classmethod
    def scan(
        cls, path: Path, on_progress: Progress | None = None, options: Mapping[str, str] | None = None
    ) -> Manifest:
        """Return the manifest of a folder with images and labels in it."""
        told = dict(options or {})
        if "images" not in told or "labels" not in told:
            raise ConfigError(f"{path}: expected ?images=FOLDER&labels=FOLDER")
        folder, labels = inside(path, "images", told["images"]), inside(path, "labels", told["labels"])
        base = FolderStore.scan(path / folder, on_progress, {"files": ",".join(SUFFIXES[VOLUME])})
        if "path" in base.locations.column_names:
            raise StoreError(f"{path / folder}: the name of a volume is not valid text; rename it")
        stems = [stem_of(name) for name in base.ids.to_pylist()]
        there = by_stem(path, labels, SUFFIXES[VOLUME], stem_of)
        files = [files_beside(path, labels, stems, Field(LABEL, VOLUME), there)]
        files[0].sources.append(source_of(path, "."))  # a folder of indexes may appear in it
        index = told.get("foreground", FOREGROUND if (path / FOREGROUND).is_dir() else "")
        if index:
            index = inside(path, "foreground", index)
            there = by_stem(path, index, (INDEX_SUFFIX,), stem_of)
            files.append(files_beside(path, index, stems, Field(FOREGROUND, FOREGROUND), there))
        return manifest_of(cls.kind, path, folder, base, VOLUME, files, Found(()))


def stem_of(name: str) -> str:
    """Return the name of a volume file or its index, without its ending."""
    lower = name.lower()
    for suffix in (*sorted(SUFFIXES[VOLUME], key=len, reverse=True), INDEX_SUFFIX):
        if lower.endswith(suffix):
            return name[: -len(suffix)]
    return posixpath.splitext(name)[0]
