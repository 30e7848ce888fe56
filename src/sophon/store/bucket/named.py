"""Objects named in a listing: a CSV, JSON lines or Parquet object with labels and columns, as in `store.listing`."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa

from sophon.errors import ConfigError, StoreError
from sophon.process.scratch import scratch_folder
from sophon.store.address import Address
from sophon.store.bucket.client import Client, Object
from sophon.store.bucket.failures import ObjectError, Verdict
from sophon.store.bucket.objects import manifest_of
from sophon.store.folder import IMAGE_SUFFIXES
from sophon.store.listing.files import inside
from sophon.store.listing.labels import labels_of
from sophon.store.listing.rows import Listing, read_listing
from sophon.store.listing.where import matches
from sophon.store.manifest import NO_LABEL, Manifest

_HEADS = 32  # concurrent requests


def listing_manifest(
    client: Client,
    address: Address,
    existing: dict[str, Object] | None,
    options: Mapping[str, str],
    folder_labels: Manifest | None = None,
) -> Manifest:
    """Return the manifest of the objects named in a listing, relative to the listing.

    Args:
        client: Client of the bucket.
        address: Address of the listing.
        existing: Objects in the listing's folder, by name; None if the server cannot list them: each is then looked up.
        options: The options after the address.
        folder_labels: Manifest of the folder without the listing; its classes are used if the listing has no labels.

    Raises:
        StoreError: A row names an object that does not exist or that another row has already named.
    """
    listing = _read(client, address, options)
    labels = labels_of(listing, "label" in options)
    rows = np.arange(listing.table.num_rows)
    if "where" in options:
        rows = np.flatnonzero(matches(options["where"], listing.table))
        if not len(rows):
            raise StoreError(f"{address}: no row matches where={options['where']}; check the condition")
    paths = listing.table[listing.path].cast(pa.string()).to_pylist()
    wanted = [inside(paths[row] or "", listing, row) for row in rows.tolist()]
    found = _found(client, address.parent, wanted, existing)
    seen: dict[str, int] = {}
    for row, name, one in zip(rows.tolist(), wanted, found, strict=True):
        if one is None:
            raise StoreError(
                f"{listing.row(row)}: there is no object {name!r:.200} below {address.parent}; put it there, remove "
                "the row, or select others with ?where="
            )
        if one.key in seen:
            raise StoreError(f"{listing.row(row)} names {name!r} again, after {listing.row(seen[one.key])}")
        seen[one.key] = row
    objects = [one for one in found if one is not None]
    ids = [one.key[len(address.parent.root) :] for one in objects]
    numbers = None if labels.numbers is None else labels.numbers[rows]
    classes, notes = labels.classes, [labels.note] if labels.note else []
    if numbers is None and folder_labels is not None and folder_labels.labels is not None:
        known = dict(zip(folder_labels.ids.to_pylist(), folder_labels.labels.tolist(), strict=True))
        numbers, classes = np.array([known.get(name, NO_LABEL) for name in ids]), folder_labels.classes
    missing = 0 if numbers is None else int((numbers == NO_LABEL).sum())
    if numbers is not None and missing == len(numbers):
        numbers, classes = None, ()
    elif missing and numbers is not None:
        notes.append(f"{missing:,} of {len(numbers):,} samples in {address} have no label and get {NO_LABEL}")
    columns = listing.table.drop_columns([name for name in (listing.path, labels.column) if name is not None])
    taken = columns.take(pa.array(rows)) if columns.num_columns else pa.table({})
    return manifest_of(
        address.parent.root, pa.array(ids, pa.large_string()), objects, numbers, classes, taken, tuple(notes)
    )


def _read(client: Client, address: Address, options: Mapping[str, str]) -> Listing:
    try:
        data = client.read(address.key)[1]
    except ObjectError as error:
        raise ConfigError(f"{address} cannot be read: {error.strerror}") from error
    with scratch_folder() as folder:
        file = Path(folder) / address.name
        file.write_bytes(data)
        try:
            listing = read_listing(file, options.get("path"), options.get("label"))
        except (StoreError, ConfigError) as error:
            raise type(error)(str(error).replace(str(file), str(address))) from error.__cause__
    return replace(listing, file=address)


def _found(
    client: Client, folder: Address, wanted: list[str], existing: dict[str, Object] | None
) -> list[Object | None]:
    """Return the object for each name; if the first does not exist, try all names with a file name ending added."""
    if existing is None:
        with ThreadPoolExecutor(_HEADS, "sophon-head") as pool:
            return list(pool.map(lambda name: _head(client, folder.root + name), wanted))
    ending = ""
    if wanted and folder.root + wanted[0] not in existing:
        names = (folder.root + wanted[0] + suffix for suffix in IMAGE_SUFFIXES)
        found = next((name for name in names if name in existing), None)
        ending = "" if found is None else found[len(folder.root + wanted[0]) :]
    return [existing.get(folder.root + name + ending) for name in wanted]


def _head(client: Client, key: str) -> Object | None:
    try:
        return client.head(key)
    except ObjectError as error:
        if error.verdict is Verdict.MISSING:
            return None
        raise
