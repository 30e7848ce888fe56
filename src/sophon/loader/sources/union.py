"""Combines the contents of several sources into one data set: the holders and the index of each sample.

A sample's index is its position among all sorted ids, regardless of its holder; folders are sorted as in torchvision.
So order, random ops, state and fingerprint do not depend on how a data set is divided: moving a part changes nothing. A
folder spread over nodes has the same fingerprint as in one piece.

Class folders may exist on some nodes only; labels are numbered over the classes of all nodes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from sophon.errors import ConfigError
from sophon.link.listing import Listing
from sophon.store.manifest import NO_LABEL, fingerprint_of

Indexes = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Holding:
    """What one source holds.

    Args:
        indexes: Indexes of its samples in the whole data set, ascending.
        own: The index of each of these samples at the source; None if these indexes are 0, 1, 2 ….
    """

    indexes: Indexes
    own: Indexes | None = None

    def own_of(self, samples: Sequence[int]) -> tuple[int, ...]:
        """Return the indexes that samples have at the source.

        Raises:
            ConfigError: The source does not hold one of them.
        """
        wanted = np.asarray(samples, np.int64)
        rows = np.searchsorted(self.indexes, wanted)
        held = rows < len(self.indexes)
        held[held] = self.indexes[rows[held]] == wanted[held]
        if not held.all():
            raise ConfigError(f"the node does not hold sample {int(wanted[~held][0])}; open the data set again")
        return tuple((rows if self.own is None else self.own[rows]).tolist())


@dataclass(frozen=True, eq=False)
class Union:
    """The whole data set.

    Args:
        fingerprint: Fingerprint of ids, sizes and labels in order, computed as for a manifest; it is the same for every
            division.
        classes: Names of all classes.
        sizes: Bytes of every sample's file.
        labels: Label of every sample; None if there are none.
        part_of: The part of every sample.
        holders: The sources that hold each part, by their position among the listings.
        holdings: What each source holds.
        ids: Id of every sample, for sources that are found later; None if ids are not kept.
        kept: Digests of the sample data that manifests keep, if any.
    """

    fingerprint: str
    classes: tuple[str, ...]
    sizes: Indexes
    labels: Indexes | None
    part_of: NDArray[np.uint16]
    holders: tuple[tuple[int, ...], ...]
    holdings: tuple[Holding, ...]
    ids: pa.LargeStringArray | None = None
    kept: Indexes | None = None

    def __len__(self) -> int:
        return len(self.sizes)

    def fitted(self, told: Told) -> Holding:
        """Return which samples of this data set another source holds; its other samples are left out.

        Raises:
            ConfigError: The source has different data under an id of this data set.
        """
        assert self.ids is not None
        rows = pc.index_in(told.listing.ids, value_set=self.ids)
        own = np.flatnonzero(pc.is_valid(rows).to_numpy(zero_copy_only=False))
        indexes = rows.take(pa.array(own)).to_numpy().astype(np.int64)
        labels = _labels_among(told, self.classes)
        columns = {
            "bytes": (self.sizes, told.listing.sizes),
            "label": (self.labels, labels),
            "targets": (self.kept, told.listing.kept),
        }
        for what, (here, there) in columns.items():
            if (here is None) != (there is None):
                raise ConfigError(f"{told.name} has samples {'without' if there is None else 'with'} {what}")
            other: Any = [] if here is None or there is None else np.flatnonzero(here[indexes] != there[own])
            if len(other):
                name = told.listing.ids[int(own[other[0]])].as_py()
                raise ConfigError(f"{name!r} differs between {told.name} and other nodes: {what}")
        order = np.argsort(indexes, kind="stable")
        indexes, own = indexes[order], own[order]
        if len(indexes) > 1 and (np.diff(indexes) == 0).any():
            raise ConfigError(f"{told.name} has several samples with the same name")
        return _holding(indexes, own)

    def divided_among(self, holdings: Sequence[Holding | None]) -> Union:
        """Return the same data set with other holders; None for a source that holds nothing."""
        nothing = Holding(np.zeros(0, np.int64))
        part_of, holders = _parts(len(self), [one or nothing for one in holdings])
        return replace(self, part_of=part_of, holders=holders)


@dataclass(frozen=True, eq=False)
class Told:
    """What a source has reported.

    Args:
        name: Its name for messages.
        listing: Its samples.
        classes: Names of its classes.
    """

    name: str
    listing: Listing
    classes: tuple[str, ...]


def whole_of(told: Told) -> Union:
    """Return the data set that one source holds, in its own order."""
    listing, everything = told.listing, Holding(np.arange(len(told.listing)))
    fingerprint = fingerprint_of(listing.ids, listing.sizes, listing.labels, listing.kept)
    nowhere = np.zeros(len(listing), np.uint16)
    columns = (listing.sizes, listing.labels, nowhere, ((0,),), (everything,), listing.ids, listing.kept)
    return Union(fingerprint, told.classes, *columns)


def unite(told: Sequence[Told], *, keep_ids: bool = False) -> Union:
    """Return the data set that some sources hold together.

    Args:
        told: Reports of the sources.
        keep_ids: Whether ids are kept, for sources that are found later.

    Raises:
        ConfigError: The sources contradict each other.
    """
    listings = [one.listing for one in told]
    if len({one.kind for one in listings if len(one)}) > 1:
        raise ConfigError(f"the nodes hold data sets of different kinds: {_each(told, lambda one: one.listing.kind)}")
    if len({one.kept is None for one in listings if len(one)}) > 1:
        raise ConfigError("only some nodes have boxes or other targets; serve the same targets everywhere")
    if len({one.labels is None for one in listings if len(one)}) > 1:
        has_labels = _each(told, lambda one: "without labels" if one.listing.labels is None else "with labels")
        raise ConfigError(f"only some nodes have labels: {has_labels}")
    classes, labels = _labels(told)
    ids = pa.concat_arrays([one.ids for one in listings])
    sizes = np.concatenate([one.sizes for one in listings])
    source = np.repeat(np.arange(len(listings)), [len(one) for one in listings])
    own = np.concatenate([np.arange(len(one)) for one in listings])
    kind = next((one.kind for one in listings if len(one)), "")
    order = _order(ids, kind)
    ids, sizes, source, own = ids.take(order), sizes[order], source[order], own[order]
    labels = None if labels is None else labels[order]
    kept = [one.kept for one in listings if one.kept is not None]
    digests = np.concatenate(kept)[order] if kept else None
    is_first = np.ones(len(ids), bool)
    if len(ids):
        is_first[1:] = pc.not_equal(ids[1:], ids[:-1]).to_numpy(zero_copy_only=False)
    index = np.cumsum(is_first) - 1
    _check(told, ids, index, np.flatnonzero(is_first), source, {"bytes": sizes, "label": labels, "targets": digests})
    holdings = [_holding(index[source == number], own[source == number]) for number in range(len(listings))]
    first = np.flatnonzero(is_first)
    ids, sizes = ids.take(first), np.ascontiguousarray(sizes[first])
    labels = None if labels is None else np.ascontiguousarray(labels[first])
    part_of, holders = _parts(len(first), holdings)
    digests = None if digests is None else np.ascontiguousarray(digests[first])
    fingerprint = fingerprint_of(pa.concat_arrays([ids]), sizes, labels, digests)
    whole = Union(fingerprint, classes, sizes, labels, part_of, holders, tuple(holdings))
    return replace(whole, ids=pa.concat_arrays([ids]), kept=digests) if keep_ids else whole


def _order(ids: pa.LargeStringArray, kind: str) -> Any:
    """Return the order of ids: by their bytes; in folders as in torchvision, by class, folder and name."""
    keys = ids
    if kind == "folder":
        # With a byte between the three that no name can contain, and that sorts before all others.
        keys = pc.replace_substring_regex(ids, r"(?s)^([^/]*)((?:/.*)?)/([^/]*)$", "\\1\0\\1\\2\0\\3")
    return pc.sort_indices(keys.cast(pa.large_binary())).to_numpy()


def _labels(told: Sequence[Told]) -> tuple[tuple[str, ...], Indexes | None]:
    """Return the names of all classes, and the labels of all samples as indexes of these names."""
    found = [one.listing.labels for one in told if one.listing.labels is not None]
    if not found:
        return (), None
    names = {one.classes for one in told if len(one.listing)}
    if len(names) <= 1:
        return next(iter(names), ()), np.concatenate(found)
    if not all(names):
        raise ConfigError(f"only some nodes have class names: {_each(told, lambda one: f'{len(one.classes):,} names')}")
    if any(list(one) != sorted(set(one)) for one in names):
        raise ConfigError(
            "the nodes number their classes differently, and not by name; use the same class names, in the same "
            f"order, everywhere: {_each(told, lambda one: f'{len(one.classes):,} names')}"
        )
    classes = tuple(sorted(set().union(*names)))
    number = {name: label for label, name in enumerate(classes)}
    renumbered = []
    for one in told:
        labels = one.listing.labels
        assert labels is not None
        table = np.array([*(number[name] for name in one.classes), NO_LABEL], np.int64)
        if len(labels) and not (labels.min() >= NO_LABEL and labels.max() < len(one.classes)):
            raise ConfigError(f"{one.name} has labels outside its {len(one.classes):,} classes")
        renumbered.append(table[labels])
    return classes, np.concatenate(renumbered)


def _labels_among(told: Told, classes: tuple[str, ...]) -> Indexes | None:
    """Return the labels of a source, renumbered by the classes of the whole data set.

    Raises:
        ConfigError: The source has classes that the data set does not have.
    """
    labels = told.listing.labels
    if labels is None or told.classes == classes:
        return labels
    number = {name: label for label, name in enumerate(classes)}
    table = np.array([*(number.get(name, NO_LABEL - 1) for name in told.classes), NO_LABEL], np.int64)
    if len(labels) and not (labels.min() >= NO_LABEL and labels.max() < len(told.classes)):
        raise ConfigError(f"{told.name} has labels outside its {len(told.classes):,} classes")
    return np.asarray(table[labels], np.int64)


def _check(
    told: Sequence[Told],
    ids: pa.LargeStringArray,
    index: Indexes,
    first: Indexes,
    source: Indexes,
    columns: Mapping[str, Indexes | None],
) -> None:
    """Raise if a source has an id twice, or two sources have different data under the same id."""
    twice = np.flatnonzero((index[1:] == index[:-1]) & (source[1:] == source[:-1]))
    if len(twice):
        row = int(twice[0])
        raise ConfigError(
            f"{told[source[row]].name} has several samples named {ids[row].as_py()!r}; only a data set with unique "
            "ids can be combined from parts"
        )
    for what, values in columns.items():
        if values is None:
            continue
        other = np.flatnonzero(values != values[first][index])
        if len(other):
            row = int(other[0])
            before = int(first[index[row]])
            found = [f"{int(values[at])} at {told[source[at]].name}" for at in (before, row)]
            raise ConfigError(
                f"{ids[row].as_py()!r} is not the same everywhere ({what}: {found[0]}, {found[1]}); copy the "
                "same file to all of them, or remove the others"
            )


def _holding(indexes: Indexes, own: Indexes) -> Holding:
    return Holding(indexes, None if np.array_equal(own, np.arange(len(own))) else own)


def _parts(samples: int, holdings: Sequence[Holding]) -> tuple[NDArray[np.uint16], tuple[tuple[int, ...], ...]]:
    """Return the part of every sample, and the holders of each part."""
    part_of = np.zeros(samples, np.int64)
    holders: list[tuple[int, ...]] = [()]
    for number, holding in enumerate(holdings):
        split = 2 * part_of
        split[holding.indexes] += 1
        used = np.flatnonzero(np.bincount(split, minlength=2 * len(holders)))
        place = np.zeros(2 * len(holders), np.int64)
        place[used] = np.arange(len(used))
        holders = [(*holders[at // 2], *([number] if at % 2 else [])) for at in used.tolist()]
        part_of = place[split]
    if len(holders) > np.iinfo(np.uint16).max:
        raise ConfigError(f"the nodes hold the samples in {len(holders):,} combinations; at most 65,535 are supported")
    return part_of.astype(np.uint16), tuple(holders)


def _each(told: Sequence[Told], say: Any) -> str:
    return ", ".join(f"{one.name} {say(one)}" for one in told)
