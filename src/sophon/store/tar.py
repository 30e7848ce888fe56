"""Tar shards with WebDataset's naming, indexed by offset and read in place.

Concurrency:
    A sample is read with one `pread`; a bounded number of shards is open.

Limits:
    Plain tar only: a compressed archive cannot be read at random. All `.json` and `.txt` members are kept in memory.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import ClassVar

import numpy as np
import pyarrow as pa

from sophon.bundle import head_bytes, pack
from sophon.errors import ConfigError, StoreError
from sophon.store.address import Place
from sophon.store.fields import BYTES, PICTURE, SUFFIXES, Field
from sophon.store.folder import IMAGE_SUFFIXES
from sophon.store.manifest import NO_LABEL, Manifest
from sophon.store.options import suffixes
from sophon.store.shards import ShardFiles, ShardStore, find_shards, shard_sources
from sophon.store.store import Progress, describe
from sophon.store.tar_samples import Opened, ShardSamples, opened_file, scan_shard

IMAGE = "image"
"""The field for a picture of any format, by the usual endings."""
_LOCATIONS = ("offset", "bytes")  # location arrays of each field, such as offset/image
_ENDING = re.compile(r"[\w-]+(\.[\w-]+)*")


class TarStore(ShardStore):
    """Samples in tar shards; `tar_samples` says which members make up a sample."""

    kind = "tar"
    suffix = ".tar"
    options: ClassVar[frozenset[str]] = frozenset({"files", "fields"})
    _files: ShardFiles

    def __init__(self, path: Place, name: str, manifest: Manifest) -> None:
        super().__init__(path, name, manifest)
        self._files = self._open_files(path, manifest.sources)
        self._look_up()

    @classmethod
    def scan(
        cls, path: Path, on_progress: Progress | None = None, options: Mapping[str, str] | None = None
    ) -> Manifest:
        """Return the manifest of one shard, of a folder of shards in order of their names, or of a pattern.

        Without pictures, the samples are of the next kind that is found, such as sound. With the option `files` they
        are members with other endings, or any; with `fields` a sample has several.
        """
        folder, names = find_shards(path, cls.suffix)
        sources = shard_sources(folder, names)
        others = [",".join(endings) for kind, endings in SUFFIXES.items() if kind != PICTURE]
        says_which = not {"files", "fields"}.isdisjoint(options or {})
        for files in [None] if says_which else [None, *others]:
            with ExitStack() as stack:
                # Opened one at a time, on demand: there may be more shards than open files allowed.
                shards = (_entered(stack, folder / name) for name in names)
                with suppress(NoSamples):
                    told = options if files is None else {**(options or {}), "files": files}
                    return scan_tars(path, names, sources, shards, on_progress, told)
        raise _nothing_found(path, names, (options or {}).get("files"), (options or {}).get("fields"))

    def _open_files(self, path: Place, sources: pa.Table) -> ShardFiles:
        assert isinstance(path, Path)
        return ShardFiles(path, sources)

    def _look_up(self) -> None:
        # For every field: its offset in the shard and its length.
        manifest = self.manifest
        self._places = [(manifest.locations["offset"].to_numpy(), manifest.sizes)]
        if manifest.fields:
            names = [field.name for field in manifest.fields]
            at, sizes = ([manifest.locations[f"{what}/{name}"].to_numpy() for name in names] for what in _LOCATIONS)
            self._places = list(zip(at, sizes, strict=True))

    def _read(self, index: int) -> bytes:
        shard = int(self._shards[index])
        try:
            return pack([self._files.pread(shard, int(at[index]), int(size[index])) for at, size in self._places])
        except OSError as error:
            raise self._unreadable(index, shard, error) from error

    def _read_into(self, index: int, space: memoryview) -> int:
        if len(self._places) > 1:
            return super()._read_into(index, space)
        shard = int(self._shards[index])
        try:
            return self._files.pread_into(shard, int(self._places[0][0][index]), space)
        except OSError as error:
            raise self._unreadable(index, shard, error) from error

    def _unreadable(self, index: int, shard: int, error: OSError) -> StoreError:
        problem = f"its shard {self._files.path(shard)} cannot be read: {describe(error)}"
        return self._failure(index, problem, "Restore the shard or open the data set again.")

    def close(self) -> None:
        """Close the shards."""
        super().close()
        self._files.close()


def _entered(stack: ExitStack, path: Path) -> Opened:
    stack.close()  # the previous format
    return stack.enter_context(opened_file(path))


def scan_tars(
    path: Place,
    names: list[str],
    sources: pa.Table,
    shards: Iterable[Opened],
    on_progress: Progress | None = None,
    options: Mapping[str, str] | None = None,
    each: Callable[..., Iterable[ShardSamples]] = map,
) -> Manifest:
    """Return the manifest of tar shards in any location.

    Args:
        path: The path that was opened.
        names: Names of the shards, in order.
        sources: Sizes and times of the shards.
        shards: How to read the shards, in order.
        on_progress: Called from time to time.
        options: The options after the path.
        each: A `map` over the shards, sequential or parallel.
    """
    files, said = (options or {}).get("files"), (options or {}).get("fields")
    endings = IMAGE_SUFFIXES if files is None else suffixes(files)
    fields = () if said is None else _fields(said, files)
    if fields and fields[0].name != IMAGE:
        endings = (f".{fields[0].name}",)
    others = [field.name for field in fields[1:]]
    counts = dict.fromkeys(range(len(names)), 0)

    def scanned(numbered: tuple[int, Opened]) -> ShardSamples:
        number, shard = numbered

        def report(count: int) -> None:
            counts[number] = count
            if on_progress is not None:
                on_progress(sum(counts.values()), None)

        found = scan_shard(shard, report, endings, others)
        counts[number] = len(found.sizes)
        return found

    found = list(each(scanned, enumerate(shards)))
    if not any(len(shard.sizes) for shard in found):
        raise _nothing_found(path, names, files, said)
    return _manifest(path, names, found, sources, fields)


def _fields(said: str, files: str | None) -> tuple[Field, ...]:
    """Return the fields named in the option `fields`.

    Raises:
        ConfigError: The option is not a list of endings.
    """
    names = [part.strip().lower().removeprefix(".") for part in said.split(",")]
    if files is not None:
        raise ConfigError("fields and files: give only one of them; the first field already defines what a sample is")
    if len(set(names)) < len(names) or not all(_ENDING.fullmatch(name) for name in names):
        raise ConfigError(f"fields: expected distinct member endings such as {IMAGE},seg.png,npy, got {said!r}")
    if IMAGE in names[1:]:
        raise ConfigError(f"fields: {IMAGE!r} stands for any picture and comes first; name the endings of others")
    return tuple(Field(name, PICTURE if name == IMAGE or _is_picture(name) else BYTES) for name in names)


def _is_picture(name: str) -> bool:
    return f".{name.rpartition('.')[2]}" in IMAGE_SUFFIXES


class NoSamples(StoreError):  # noqa: N818 - an answer: the next kind is looked for
    """The archive has no member of the wanted kind."""


def _nothing_found(path: Place, names: list[str], files: str | None, fields: str | None) -> NoSamples:
    shards = f"{len(names)} {'shard' if len(names) == 1 else 'shards'} of {path}"
    if fields is not None:
        return NoSamples(f"no sample with all of {fields} found in the {shards}; expected members with the same key")
    return NoSamples(
        f"no {'picture' if files is None else files} found in the {shards}; expected members such as 0001.jpg and "
        f"0001.cls; use {path}?files=.npy for files of another kind"
    )


def _manifest(
    path: Place, names: list[str], shards: list[ShardSamples], sources: pa.Table, fields: tuple[Field, ...]
) -> Manifest:
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
    sizes = np.concatenate([shard.sizes for shard in shards])
    if fields:
        own = [(locations["offset"], sizes)] + [
            tuple(np.concatenate([shard.others[place][what] for shard in shards]) for what in range(2))
            for place in range(len(fields) - 1)
        ]
        for field, (at, size) in zip(fields, own, strict=True):
            locations |= {f"offset/{field.name}": at, f"bytes/{field.name}": size}
        sizes = np.sum([size for _, size in own], axis=0) + head_bytes(len(fields))
    return Manifest(
        kind=TarStore.kind,
        ids=ids,
        sizes=sizes,
        labels=None if (labels == NO_LABEL).all() else labels,
        columns=pa.table({name: texts for name, texts in columns.items() if texts.null_count < len(texts)}),
        locations=pa.table(locations),
        sources=sources,
        notes=tuple(_notes(path, names, shards, fields, int((labels == NO_LABEL).sum()), len(labels))),
        fields=fields,
    )


def _notes(
    path: Place,
    names: list[str],
    shards: list[ShardSamples],
    fields: tuple[Field, ...],
    unlabelled: int,
    count: int,
) -> list[str]:
    notes = []
    missing = sum(shard.without_image for shard in shards)
    if missing:
        notes.append(f"{missing:,} samples in {path} have no picture and are left out")
    doubled = sum(shard.several_images for shard in shards)
    if doubled and not fields:  # otherwise the user has chosen the members
        notes.append(f"{doubled:,} pictures in {path} are left out because their sample has another one")
    lacking = sum(shard.without_field for shard in shards)
    if lacking:
        notes.append(f"{lacking:,} samples in {path} lack one of the fields and are left out")
    if 0 < unlabelled < count:
        notes.append(f"{unlabelled:,} of {count:,} samples in {path} have no label and get {NO_LABEL}")
    cut = [name for name, shard in zip(names, shards, strict=True) if not shard.ended]
    if cut:
        notes.append(f"{len(cut)} shards in {path} have no end marker and may be truncated; the first is {cut[0]}")
    return notes
