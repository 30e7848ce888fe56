"""A listing: files that a CSV, JSON lines or Parquet file names, with labels and further columns.

The user gives the listing itself, or a folder of files that has a listing inside (Hugging Face's ``metadata.csv``) or
next to it (Kaggle's ``labels.csv``). Samples are in the order of the rows. Classes are numbered over all rows, so two
selections of one listing agree on the numbers.

Limits:
    As for folders: a cached manifest is trusted as long as neither the listing nor a folder's time changes. A link in
    the data set is followed wherever it leads; a path in the listing never leads out of the data set.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import ClassVar

import numpy as np
import pyarrow as pa

from sophon.errors import StoreError
from sophon.store.folder import FolderStore, check_inside
from sophon.store.listing.beside import find_listing
from sophon.store.listing.files import Files, find_files, find_files_of
from sophon.store.listing.labels import Labels, labels_of
from sophon.store.listing.rows import Listing, read_listing
from sophon.store.listing.where import matches
from sophon.store.manifest import NO_LABEL, Manifest, decode_name, is_as_listed, sources_table
from sophon.store.pages.identity import Int64Array
from sophon.store.store import Progress


class ListingStore(FolderStore):
    """Files named in a listing, relative to the listing's folder or to the folder that was opened."""

    kind = "listing"
    options: ClassVar[frozenset[str]] = frozenset({"where", "path", "label", "listing"})

    def __init__(self, path: Path, name: str, manifest: Manifest) -> None:
        super().__init__(path if path.is_dir() else path.parent, name, manifest)
        self.path = path

    @classmethod
    def scan(
        cls, path: Path, on_progress: Progress | None = None, options: Mapping[str, str] | None = None
    ) -> Manifest:
        """Return the manifest of a listing, or of a folder and the listing that belongs to it."""
        told = dict(options or {})
        file, folder = path, None
        if path.is_dir():
            found = find_listing(path, told.get("listing"))
            if found is None:
                raise StoreError(f"{path} has no listing, neither in it nor next to it; give the listing itself")
            file, folder = found, path
        listing = read_listing(file, told.get("path"), told.get("label"))
        labels = labels_of(listing, "label" in told)
        rows = np.arange(listing.table.num_rows)
        if "where" in told:
            rows = np.flatnonzero(matches(told["where"], listing.table))
            if not len(rows):
                raise StoreError(f"{file}: no row matches where={told['where']}; check the condition")
        paths = listing.table[listing.path].cast(pa.string()).to_pylist()
        if folder is None:
            files = find_files(listing, paths, rows, file.parent, on_progress)
            return _manifest(listing, labels, files, file.parent, [])
        return _scan_folder(folder, listing, labels, paths, rows, on_progress, "listing" in told)

    @classmethod
    def unchanged(cls, path: Path, manifest: Manifest) -> bool:
        """Return whether neither the listing nor a folder that holds files has changed since the scan."""
        root = path if path.is_dir() else path.parent
        try:
            check_inside(manifest)
            for source in manifest.sources.to_pylist():
                text = decode_name(source["name"])
                # Not root/"..", which is a different folder if the root is a link.
                stat = (root.parent / text[3:] if text.startswith("../") else root / text).stat()
                if not is_as_listed(stat, source):
                    return False
        except (OSError, StoreError):
            return False
        return len(manifest.sources) > 0


def _scan_folder(
    folder: Path,
    listing: Listing,
    labels: Labels,
    paths: list[str | None],
    rows: Int64Array,
    on_progress: Progress | None,
    is_told: bool,
) -> Manifest:
    """Return the manifest of a folder and its listing; mismatches between the two are noted.

    A listing next to class folders is used only if the user names it: its labels would replace theirs.
    """
    base: Manifest | None = None
    with suppress(StoreError):  # no pictures, or empty class folders: the listing may name other files
        base = FolderStore.scan(folder, on_progress)
    is_inside = listing.file.parent == folder
    notes = [f"labels and columns of {folder} come from {listing.file}; ?listing=none ignores it"]
    if is_inside:
        files = find_files(listing, paths, rows, folder, on_progress)
    else:
        if base is None:
            return FolderStore.scan(folder)  # raises the right error
        existing = dict(zip(base.ids.to_pylist(), base.sizes.tolist(), strict=True))
        files = find_files_of(listing, paths, rows, folder, existing)
        if is_told and not files.paths:
            raise StoreError(
                f"{listing.file} names no file in {folder}; check that its paths are relative to that folder or to the "
                "listing"
            )
        if (base.classes and not is_told) or not files.paths:
            reason = "the folder has class folders" if base.classes else "it names none of its files"
            return _with_notes(base, f"{listing.file} is not used for {folder}, since {reason}")
        if files.elsewhere:
            notes.append(
                f"{files.elsewhere:,} rows of {listing.file} name files that are not in {folder}, and are left out"
            )
    if base is not None:
        left = len(set(base.ids.to_pylist()) - set(files.paths))
        if left:
            notes.append(
                f"{left:,} pictures in {folder} have no row in {listing.file}, or are not selected, and are left out"
            )
        if base.classes and labels.numbers is not None:
            notes.append(
                f"labels of {folder} come from column {listing.label!r} of {listing.file.name}, not from its class "
                "folders; ?listing=none uses the folders"
            )
        elif base.classes:
            labels = _folder_labels(base, files, len(paths), labels.note)
    return _manifest(listing, labels, files, folder, notes)


def _folder_labels(base: Manifest, files: Files, count: int, note: str) -> Labels:
    """Return labels by class folder, for a listing without labels."""
    assert base.labels is not None
    known = dict(zip(base.ids.to_pylist(), base.labels.tolist(), strict=True))
    numbers = np.full(count, NO_LABEL)
    numbers[files.rows] = [known.get(path, NO_LABEL) for path in files.paths]
    return Labels(numbers, base.classes, note=note)


def _manifest(listing: Listing, labels: Labels, files: Files, root: Path, notes: list[str]) -> Manifest:
    numbers = None if labels.numbers is None else labels.numbers[files.rows]
    if labels.note:
        notes.append(labels.note)
    missing = 0 if numbers is None else int((numbers == NO_LABEL).sum())
    if missing and numbers is not None and missing == len(numbers):
        numbers = None
    elif missing and numbers is not None:
        notes.append(f"{missing:,} of {len(numbers):,} samples in {listing.file} have no label and get {NO_LABEL}")
    columns = listing.table.drop_columns([name for name in (listing.path, labels.column) if name is not None])
    name = listing.file.name if listing.file.parent == root else f"../{listing.file.name}"
    folders = files.folders
    sizes = [listing.size_bytes, *(-1 for _ in folders)]
    mtimes_ns, ctimes_ns = zip((listing.mtime_ns, listing.ctime_ns), *folders.values(), strict=True)
    return Manifest(
        kind=ListingStore.kind,
        ids=pa.array(files.paths, pa.large_string()),
        sizes=files.sizes,
        labels=numbers,
        classes=labels.classes if numbers is not None else (),
        columns=columns.take(pa.array(files.rows)) if columns.num_columns else pa.table({}),
        sources=sources_table([name, *folders], sizes, list(mtimes_ns), list(ctimes_ns)),
        notes=tuple(notes),
    )


def _with_notes(manifest: Manifest, note: str) -> Manifest:
    return Manifest(
        kind=manifest.kind,
        ids=manifest.ids,
        sizes=manifest.sizes,
        labels=manifest.labels,
        classes=manifest.classes,
        columns=manifest.columns,
        locations=manifest.locations,
        sources=manifest.sources,
        notes=(*manifest.notes, note),
    )
