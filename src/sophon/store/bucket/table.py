"""Recognises the data set at an address in an object store, and gets its manifest from the cache or by listing."""

from __future__ import annotations

import fnmatch
import logging
import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from sophon.errors import ConfigError, StoreError
from sophon.store.address import Address, is_address, parse_address
from sophon.store.bucket.client import Client, Object, client_of
from sophon.store.bucket.credentials import endpoint_of
from sophon.store.bucket.exchange import beside, read_manifest
from sophon.store.bucket.failures import ObjectError, Verdict
from sophon.store.bucket.inventory import read_inventory
from sophon.store.bucket.journal import Journal
from sophon.store.bucket.named import listing_manifest
from sophon.store.bucket.objects import BucketStore, folder_manifest
from sophon.store.bucket.shards import BucketParquetStore, BucketTarStore, ObjectFile, scan_shard_objects
from sophon.store.bucket.tree import Known, walk
from sophon.store.cache import ManifestCache
from sophon.store.folder import leads_out
from sophon.store.listing.beside import INSIDE
from sophon.store.listing.rows import SUFFIXES
from sophon.store.manifest import Manifest, decode_name
from sophon.store.options import NONE
from sophon.store.store import Progress, Store

LOG = logging.getLogger("sophon.store")
KINDS: Final[dict[str, Any]] = {
    "bucket": BucketStore,
    "bucket-tar": BucketTarStore,
    "bucket-parquet": BucketParquetStore,
}
_SHARDS: Final = {".tar": "tar", ".parquet": "parquet"}
_TICK_NS: Final = 2_000_000_000  # as in `store.cache`
_MANY: Final = 10_000  # samples above which a listing takes noticeably long
_SPLIT: Final = re.compile(r"(.+)-\d+-of-\d+\.\w+")
_BRACES: Final = re.compile(r"\{(\d+)\.\.(\d+)\}")


def open_manifest(
    address: Address, options: Mapping[str, str], cache: ManifestCache, on_progress: Progress | None = None
) -> Manifest:
    """Return the manifest of the data set at an address: a stored one, or a new one made by listing.

    Raises:
        ConfigError: There is nothing at the address, or no data set, or an option is wrong.
        StoreError: The data set is empty or damaged, or the object store cannot be reached.
    """
    told = dict(options)
    place: str | Address | None = told.pop("manifest", None)
    key, found = cache_key(address, told), None
    selects = "where" in told and not _is_listing(address)  # rows are selected afterwards
    if place is None and len(told) == selects:  # with further options the manifest would differ
        found = _beside(address)
        place = None if found is None else beside(address)
    if place is not None:
        found = found or _told(place)
        key += f"\0manifest={place} {'' if found is None else f'{found.etag} {found.size} {found.changed_ns}'}"
    known = cache.load(address, key) if place is None or found is not None else None
    if known is not None and known.kind in KINDS:
        return known
    if place is not None:
        manifest = read_manifest(place, found)
        if manifest.kind not in KINDS:
            raise ConfigError(f"{place} is the manifest of a {manifest.kind}, not of an object store")
    else:
        manifest = scan(address, told, _telling(address, on_progress))
    return cache.keep(address, manifest, float("inf"), key)


def _beside(address: Address) -> Object | None:
    """Return the manifest in the bucket, if there is one and the bucket can be reached."""
    try:
        return client_of(address).exists(beside(address).key)
    except ObjectError:
        return None  # the next use of the bucket reports the problem


def _told(place: str | Address) -> Object | None:
    """Return the size and times, or ETag, that distinguish a manifest from an earlier one at the same place."""
    try:
        if isinstance(place, str) and not is_address(place):
            stat = Path(place).stat()
            if time.time_ns() - stat.st_mtime_ns < _TICK_NS:
                return None  # it may change again undetected
            return Object(place, stat.st_size, str(stat.st_ctime_ns), stat.st_mtime_ns)
        address = parse_address(place) if isinstance(place, str) else place
        return client_of(address).exists(address.key)
    except (OSError, ObjectError):
        return None  # the reader reports the problem


def _telling(address: Address, on_progress: Progress | None) -> Progress:
    """Return a progress callback that logs, once, that a large data set is being listed and how long that takes."""
    started_s = time.monotonic()
    said: list[bool] = []

    def report(done: int, total: int | None) -> None:
        if done >= _MANY and not said:
            said.append(True)
            seconds = 1e6 * (time.monotonic() - started_s) / done
            LOG.warning(
                "%s has no manifest and is being listed, which takes about %.0f s per million samples; run `sophon "
                "manifest %s` to do this only once",
                *(address, seconds, address),
            )
        if on_progress is not None:
            on_progress(done, total)

    return report


def list_manifest(
    address: Address, journal: Path, inventory: str | None = None, on_progress: Progress | None = None
) -> tuple[Manifest, int]:
    """List a data set again, ignoring caches; return its manifest, and how many objects the journal already had.

    Args:
        address: The data set.
        journal: File that records the progress of the listing; removed when the listing is complete.
        inventory: Path or address of the ``manifest.json`` of an S3 Inventory, which is read instead of listing.
        on_progress: Called from time to time.
    """
    if inventory is not None:
        objects = read_inventory(inventory, address.root, address.bucket, on_progress)
        found = _shards_in(address, [one for one in objects if "/" not in one.key[len(address.root) :]])
        if found:
            return scan_shard_objects(found[0], address, found[1], on_progress), 0
        return folder_manifest(address, objects), 0
    kept = Journal(journal)
    try:
        manifest = scan(address, {}, on_progress, kept)
    except BaseException:
        kept.close()
        raise
    kept.remove()
    return manifest, sum(len(piece.objects) for piece in kept.pieces)


def cache_key(address: Address, options: Mapping[str, str]) -> str:
    """Return the settings that determine the manifest besides the address: the options and the server."""
    parts = [f"{name}={value}" for name, value in sorted(options.items()) if name != "where" or _is_listing(address)]
    return "\0".join([*parts, f"endpoint={endpoint_of(address.scheme)}"])


def _is_listing(address: Address) -> bool:
    return address.suffix in SUFFIXES


def scan(
    address: Address,
    options: Mapping[str, str],
    on_progress: Progress | None = None,
    journal: Journal | None = None,
) -> Manifest:
    """List the data set at an address."""
    try:
        return _scan(client_of(address), address, dict(options), on_progress, journal)
    except ObjectError as error:
        if error.verdict is Verdict.MISSING:
            raise ConfigError(f"there is nothing at {address}; check the spelling") from error
        remedy = "check the address, the credentials and the region or endpoint in the environment"
        raise StoreError(f"cannot access {address}: {error.strerror}; {remedy}") from error


def _scan(
    client: Client,
    address: Address,
    options: dict[str, str],
    on_progress: Progress | None,
    journal: Journal | None = None,
) -> Manifest:
    told = {name: value for name, value in options.items() if name != "where"}
    shards = _named_shards(client, address)
    if shards:
        kind = _SHARDS[address.suffix]
        return scan_shard_objects(kind, address, shards, on_progress, told)
    if address.suffix in SUFFIXES and client.exists(address.key) is not None:
        return listing_manifest(client, address, _existing(client, address.parent, on_progress), options)
    if address.scheme in ("http", "https"):
        raise ConfigError(
            f"{address}: an HTTP server cannot be listed; give a listing ({', '.join(SUFFIXES)}), or a .tar or "
            ".parquet file, possibly as train-{000..099}.tar; the address of a node begins with grpc://"
        )
    level = client.level(address.root.rstrip("/"))
    if not level[0] and not level[1]:
        raise ConfigError(f"there is nothing below {address}; check the spelling")
    found = _shards_in(address, level[1])
    if found:
        return scan_shard_objects(found[0], address, found[1], on_progress, told)
    listing = _listing_in(address, options, level[1])
    objects = _objects(client, address, level, on_progress, journal)
    if listing is None:
        unfit = sorted(set(options) & {"path", "label"})
        if unfit:
            raise ConfigError(f"{address}: option {unfit[0]!r} does not apply to a folder; leave it out")
        return folder_manifest(address, objects, options)
    base = None
    try:
        base = folder_manifest(address, objects)
    except StoreError:  # no pictures, or empty folders: the listing may name other objects
        base = None
    return listing_manifest(client, listing, {found.key: found for found in objects}, options, base)


def _objects(
    client: Client,
    address: Address,
    level: tuple[list[str], list[Object]],
    on_progress: Progress | None,
    journal: Journal | None,
) -> list[Object]:
    """Return all objects below an address; objects that a journal already has are not listed again."""
    known: dict[str, Known] = {}
    for piece in journal.pieces if journal is not None else ():
        last = piece.last or (known[piece.folder].last if piece.folder in known else "")
        known[piece.folder] = Known(last, piece.is_done)
    objects: list[Object] = []

    def take_over(folders: list[str]) -> None:
        wanted = set(folders)  # other objects may have moved since
        for piece in journal.pieces if journal is not None else ():
            objects.extend(piece.objects if piece.folder in wanted else ())

    for piece in walk(client, address.root, known, level, take_over):
        objects += piece.objects
        if journal is not None and piece.folder:
            journal.add(piece)
        if on_progress is not None:
            on_progress(len(objects), None)
    return objects


def _listing_in(address: Address, options: Mapping[str, str], objects: list[Object]) -> Address | None:
    """Return the listing in a folder of objects."""
    told = options.get("listing")
    if told == NONE or "files" in options:
        return None
    names = {found.key[len(address.root) :] for found in objects}
    if told is not None:
        if told not in names:
            raise ConfigError(f"listing: there is no {told!r:.80} directly below {address}; check the spelling")
        return address.below(told)
    found = [name for name in INSIDE if name in names]
    if len(found) > 1:
        raise ConfigError(f"{address} has several listings: {', '.join(found)}; write {address}?listing={found[0]}")
    return address.below(found[0]) if found else None


def _existing(client: Client, folder: Address, on_progress: Progress | None) -> dict[str, Object] | None:
    if folder.scheme in ("http", "https"):
        return None
    found: dict[str, Object] = {}
    for piece in walk(client, folder.root):
        found |= {one.key: one for one in piece.objects}
        if on_progress is not None:
            on_progress(len(found), None)
    return found


def _named_shards(client: Client, address: Address) -> list[Object]:
    """Return the shards that an address names directly: one name, numbers in braces or a pattern."""
    if address.suffix not in _SHARDS:
        return []
    numbers = _BRACES.search(address.key)
    if numbers is not None:
        first, last = numbers[1], numbers[2]
        keys = [
            f"{address.key[: numbers.start()]}{number:0{len(first)}}{address.key[numbers.end() :]}"
            for number in range(int(first), int(last) + 1)
        ]
        return [client.head(key) for key in keys]
    if address.is_pattern:
        _, objects = client.level(address.parent.root.rstrip("/"))
        found = [one for one in objects if fnmatch.fnmatchcase(one.key, address.key)]
        if not found:
            raise ConfigError(f"no object matches {address}; check the pattern")
        return sorted(found)
    one = client.exists(address.key)
    if one is None or (address.suffix == ".parquet" and _names_files(client, one)):
        return []
    return [one]


def _names_files(client: Client, found: Object) -> bool:
    """Return whether a Parquet object contains paths and no bytes."""
    import pyarrow.parquet as pq

    from sophon.artifact import ARROW_ERRORS
    from sophon.store.listing.rows import may_list

    try:
        return may_list(pq.read_schema(ObjectFile(client, found)))
    except ARROW_ERRORS:
        return False  # the store reports what is wrong with it


def _shards_in(address: Address, objects: list[Object]) -> tuple[str, list[Object]] | None:
    """Return the kind and the shards directly below an address."""
    by_kind: dict[str, list[Object]] = {}
    for one in sorted(objects):
        name = one.key[len(address.root) :]
        suffix = f".{name.lower().rpartition('.')[2]}"
        if suffix in _SHARDS and not name.startswith(".") and name not in INSIDE:
            by_kind.setdefault(_SHARDS[suffix], []).append(one)
    if len(by_kind) > 1:
        raise ConfigError(f"{address} contains both tar and parquet files; open a pattern such as {address}/*.tar")
    for kind, found in by_kind.items():
        matches = [_SPLIT.fullmatch(one.key[len(address.root) :]) for one in found]
        splits = sorted({match[1] for match in matches if match})
        if len(splits) > 1:
            raise ConfigError(
                f"{address} holds the splits {', '.join(splits)}, expected one; open {address}/{splits[0]}-*.{kind}"
            )
        return kind, found
    return None


def _root_of(address: Address) -> str:
    """Return the common prefix of a data set's keys; its address may be a pattern, or one of its files."""
    fixed = re.split(r"[{*?\[]", address.key, maxsplit=1)[0]
    if fixed != address.key or address.suffix in (*_SHARDS, *SUFFIXES):
        return fixed.rpartition("/")[0] + "/" if "/" in fixed else ""
    return address.root


def make_store(address: Address, name: str, manifest: Manifest) -> Store:
    """Return the store of a manifest.

    Raises:
        StoreError: The manifest names objects outside the data set: it may be forged.
    """
    root = _root_of(address)
    for text in map(decode_name, manifest.sources["name"].to_pylist()):
        if not text.startswith(root) or leads_out(text):
            raise StoreError(f"{address}: the manifest names {text!r:.80}, which is outside the data set; recreate it")
    needed = {"bucket": {"etag"}}.get(manifest.kind, {"shard"}) - set(manifest.locations.column_names)
    if needed or not len(manifest.sources):
        raise StoreError(f"{address}: the manifest lacks the identities of its objects; recreate it")
    store: Store = KINDS[manifest.kind](address, name, manifest)
    return store
