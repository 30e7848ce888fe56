"""Asks several nodes what they hold when a data set is opened.

Nodes with equal fingerprints hold copies, and nothing more has to be known. If they differ, each lists its samples, and
`union` combines them into one data set.

A node that does not answer may hold a copy, or samples that no other node has. So the census waits for it: a few
seconds if the others hold copies, and until the deadline if they hold parts. After that a run continues without it only
if nothing can be missing, or with a warning if all others hold copies; if it later turns out that the node holds
something else, the run ends with an error.

Concurrency: nodes are asked by threads, all of which end before the calling function returns.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import zip_longest

from sophon.errors import ConfigError, Error, RetryableError, UnavailableError
from sophon.link.deadline import until
from sophon.link.listing import Listing
from sophon.link.membership import part_numbers
from sophon.link.transport import Opened
from sophon.loader.sources.away import LOG
from sophon.loader.sources.source import Source, check_same, explained
from sophon.loader.sources.union import Told, Union, unite
from sophon.pipeline import Pipeline

_LATE_S = 5.0  # how much later than the first a node may answer, if those that have answered hold copies
_PAUSE_S = 0.2  # between two tries
_LEAST_S = 1.0  # for all other nodes, if the first has answered just before the deadline
_THREADS = 128  # most of them only wait: nodes that are silent must not keep the others from being asked
_MOSTLY = 0.5  # share of all samples at every node: parts that overlap this much are hardly intended


class AbsentWarning(UserWarning):
    """One of several nodes does not answer when a data set is opened, and is assumed to hold a copy."""


class PartsWarning(UserWarning):
    """Nodes hold nearly the same samples: parts of one data set, or copies that are not up to date."""


class Census:
    """What all nodes of a data set hold.

    Args:
        nodes: All nodes; those that have been opened know what they hold.
        fallback: The path to fall back on, if there is one.
        pipeline: The pipeline to divide.
        deadline_s: Seconds that opening may take, for messages.
        end_s: When it has to be over.
        expected: Fingerprints of the nodes' data sets, by number, if discovery has provided them. The census does not
            wait for a silent node if another holds the same data.
        keep_ids: Whether to keep ids, for nodes that are found later.
    """

    def __init__(
        self,
        nodes: Sequence[Source],
        fallback: Source | None,
        pipeline: Pipeline,
        deadline_s: float,
        end_s: float,
        expected: Sequence[str] = (),
        *,
        keep_ids: bool = False,
    ) -> None:
        self._nodes = nodes
        self._fallback = fallback
        self._pipeline = pipeline
        self._deadline_s = deadline_s
        # A node that answers at the last moment does not keep the others from being asked at all.
        self._end_s = max(end_s, time.monotonic() + min(_LEAST_S, deadline_s))
        self._problems: dict[int, Error] = {}
        self._expected = tuple(expected) or ("",) * len(nodes)
        self._keep_ids = keep_ids

    def take(self, opened: Opened) -> tuple[Opened, Union | None, tuple[tuple[int, ...], ...]]:
        """Return the description of the data set, its division, and the nodes that hold each part.

        Args:
            opened: The first node's answer.

        Returns:
            The division is None if all nodes hold copies.

        Raises:
            ConfigError: The contents of the nodes and the fallback do not fit together.
            UnavailableError: A node that may hold unique samples does not answer.
        """
        self._open_all()
        absent = [node.address for number, node in enumerate(self._nodes) if self._is_unknown(number)]
        found = list(dict.fromkeys(node.opened.fingerprint for node in self._nodes if node.opened is not None))
        check_numbers([node.opened for node in self._nodes if node.opened is not None])
        if len(found) == 1 and not opened.part:
            self._check_copies(opened, absent)
            return replace(opened, state=self._state()), None, (tuple(range(len(self._nodes))),)
        union = unite([self._told(fingerprint) for fingerprint in found], keep_ids=self._keep_ids)
        whole = self._whole(opened, union)
        self._check_parts(union, absent)
        its_own = [self._fingerprint(number) for number in range(len(self._nodes))]
        holders = tuple(
            tuple(n for n, fingerprint in enumerate(its_own) if fingerprint in its)
            for its in ({found[number] for number in numbers} for numbers in union.holders)
        )
        self._tell_of_parts(union, holders)
        for node, fingerprint in zip(self._nodes, its_own, strict=True):
            if fingerprint in found:
                node.hold(union.holdings[found.index(fingerprint)], union.labels)
                node.expected = fingerprint
        return whole, union, holders

    def _fingerprint(self, number: int) -> str:
        """Return the fingerprint of a node's data, as reported by the node or by discovery; "" if not known."""
        opened = self._nodes[number].opened
        return self._expected[number] if opened is None else opened.fingerprint

    def _is_unknown(self, number: int) -> bool:
        """Return whether a node may hold samples that no answering node holds."""
        answered = {node.opened.fingerprint for node in self._nodes if node.opened is not None}
        return self._nodes[number].opened is None and self._fingerprint(number) not in answered

    # --- asking -------------------------------------------------------------------------------------------------------

    def _open_all(self) -> None:
        """Open the data set at all nodes, and wait a while for those that do not answer."""
        start_s = time.monotonic()
        with ThreadPoolExecutor(min(len(self._nodes), _THREADS), "sophon-open") as pool:
            while True:
                left = [number for number, node in enumerate(self._nodes) if node.opened is None]
                list(pool.map(self._try, left))
                found = {node.opened.fingerprint for node in self._nodes if node.opened is not None}
                end_s = self._end_s if len(found) > 1 else min(start_s + _LATE_S, self._end_s)
                is_known = not any(self._is_unknown(number) for number in range(len(self._nodes)))
                if is_known or time.monotonic() >= end_s:
                    return
                time.sleep(_PAUSE_S)

    def _try(self, number: int) -> None:
        node = self._nodes[number]
        if time.monotonic() >= self._end_s:  # nodes that do not answer would be waited for one after another
            self._problems.setdefault(number, RetryableError("not asked before the deadline"))
            return
        try:
            with until(self._end_s):
                node.open(self._pipeline)
        except RetryableError as error:
            self._problems[number] = error
        except Error as error:
            raise explained(error, node.address) from error

    def _told(self, fingerprint: str) -> Told:
        """Return what nodes with this fingerprint hold, from the first one that answers."""
        copies = [node for node in self._nodes if node.opened is not None and node.opened.fingerprint == fingerprint]
        while True:
            for node in copies:
                assert node.opened is not None
                try:
                    with until(self._end_s):
                        listing = node.listing(node.opened)
                except RetryableError as error:
                    problem = error
                    continue
                except Error as error:
                    raise explained(error, node.address) from error
                return self._checked(node, listing)
            if time.monotonic() >= self._end_s:
                raise explained(UnavailableError(str(problem)), copies[0].address)
            time.sleep(_PAUSE_S)

    def _checked(self, node: Source, listing: Listing | None) -> Told:
        if listing is None:
            raise ConfigError(f"{node.address} does not list its samples; it cannot hold a part of a data set")
        assert node.opened is not None
        return Told(node.address, listing, node.opened.classes)

    # --- what must fit together ---------------------------------------------------------------------------------------

    def _whole(self, opened: Opened, union: Union) -> Opened:
        told = [node.opened for node in self._nodes if node.opened is not None]
        self._check_fields(opened)
        for node in self._nodes:
            if node.opened is not None and set(node.opened.columns) != set(opened.columns):
                raise ConfigError(
                    f"{node.address} has the columns {', '.join(node.opened.columns)}, but another node has "
                    f"{', '.join(opened.columns)}; parts of one data set must have the same columns"
                )
        return replace(
            opened,
            samples=len(union),
            fingerprint=union.fingerprint,
            classes=union.classes,
            has_labels=union.labels is not None,
            max_samples=min(one.max_samples for one in told),
            columns_digest=" ".join(sorted({f"{one.fingerprint}:{one.columns_digest}" for one in told})),
            state=self._state(),
        )

    def _check_fields(self, opened: Opened) -> None:
        for node in self._nodes:
            if node.opened is not None and node.opened.fields != opened.fields:
                raise ConfigError(
                    f"samples at {node.address} consist of {_names(node.opened)}, and at another node of "
                    f"{_names(opened)}; copies and parts of one data set have the same fields"
                )

    def _state(self) -> str:
        """Return a digest of the files that the answering nodes hold."""
        return " ".join(sorted({node.opened.state for node in self._nodes if node.opened is not None})).strip()

    def _check_copies(self, opened: Opened, absent: list[str]) -> None:
        self._check_fields(opened)
        named = {node.opened.classes: node.address for node in self._nodes if node.opened and node.opened.classes}
        if len(named) > 1:
            (some, here), (others, other) = list(named.items())[:2]
            raise ConfigError(
                f"{here} and {other} hold the same files and class numbers, but with different class names: "
                f"{_first_other(some, others)}; serve the same data set at both, or leave one out"
            )
        if self._fallback is not None:
            there = self._fallback.open(self._pipeline)
            if absent and there.fingerprint != opened.fingerprint:
                raise UnavailableError(self._missing(opened.samples, absent))
            check_same(there, opened.fingerprint, f"fallback {self._fallback.address}")
        elif absent:
            warnings.warn(
                f"no answer from {', '.join(absent)}: assumed to hold a copy like the other nodes, which have "
                f"{opened.samples:,} samples. If samples are missing, stop this run and start it when all nodes answer",
                AbsentWarning,
                stacklevel=6,
            )

    def _check_parts(self, union: Union, absent: list[str]) -> None:
        """Raise if samples may be missing; give the fallback the indexes of its samples in the whole."""
        if self._fallback is None:
            if absent:
                raise UnavailableError(
                    f"no answer for {self._deadline_s:g} s from {', '.join(absent)} "
                    f"({next(iter(self._problems.values()))}). The other nodes hold different parts of a data set, "
                    f"{len(union):,} samples together, and samples may be missing. Start all nodes, or leave out "
                    "those that hold no unique samples"
                )
            return
        there = self._fallback.open(self._pipeline)
        listing = self._fallback.listing(there)
        assert listing is not None
        path = f"fallback {self._fallback.address}"
        alone = unite([Told(path, listing, there.classes)])
        if absent and alone.fingerprint != union.fingerprint:
            raise UnavailableError(self._missing(len(union), absent))
        check_same(replace(there, fingerprint=alone.fingerprint), union.fingerprint, path)
        self._fallback.hold(alone.holdings[0], union.labels)

    def _tell_of_parts(self, union: Union, holders: Sequence[tuple[int, ...]]) -> None:
        """Log that nodes hold different samples, and warn if they look like copies, some of them stale."""
        held = [f"{node.address} {node.opened.samples:,}" for node in self._nodes if node.opened is not None]
        text = f"the nodes hold different samples, {len(union):,} together: {', '.join(held)}"
        LOG.info("%s", text, extra={"event": "parts", "fields": {"samples": len(union)}})
        everybody = tuple(number for number, node in enumerate(self._nodes) if node.opened is not None)
        shared = sum(
            int((union.part_of == part).sum()) for part, its in enumerate(holders) if tuple(sorted(its)) == everybody
        )
        if shared >= _MOSTLY * len(union):
            warnings.warn(
                f"{text}. {shared:,} of them are at every node, so the nodes look like copies, some of which lack "
                "files; if so, copy the missing files",
                PartsWarning,
                stacklevel=6,
            )

    def _missing(self, samples: int, absent: list[str]) -> str:
        assert self._fallback is not None
        return (
            f"no answer from {', '.join(absent)}, and the other nodes hold {samples:,} samples, which differ from "
            f"those of the fallback {self._fallback.address}. Start all nodes, or give only the fallback's path"
        )


def check_numbers(told: Sequence[Opened]) -> None:
    """Raise unless nodes that say which part they hold, such as 3/8, hold all parts of one data set together.

    Raises:
        ConfigError: The nodes hold parts of different data sets, or of one that was divided in several ways.
        UnavailableError: A part is held by no node.
    """
    parts = [one for one in told if one.part]
    wholes = {one.whole for one in parts}
    numbers = [part_numbers(one.part) for one in parts]
    counts = {of for _, of in numbers}
    if len(wholes) > 1 or len(counts) > 1:
        shown = ", ".join(sorted({f"{one.part} of {one.whole[:12]}" for one in parts}))
        raise ConfigError(f"the nodes serve parts of different data sets, or divide one differently: {shown}")
    if not parts or not all(one.whole != one.fingerprint for one in parts):
        return
    if any(not one.part for one in told):
        return  # a node holds data without a part number: maybe the whole
    of = counts.pop()
    seen = {number for number, _ in numbers}
    missing = [f"{number}/{of}" for number in range(1, of + 1) if number not in seen]
    if missing:
        raise UnavailableError(
            f"no node that answers holds part {', '.join(missing[:8])}{' …' if len(missing) > 8 else ''} of the data "
            "set; start `sophon serve --part` for it, or give its address too"
        )


def _first_other(some: Sequence[str], others: Sequence[str]) -> str:
    """Return the first name that differs between two lists."""
    for number, (one, other) in enumerate(zip_longest(some, others, fillvalue="")):
        if one != other:
            return f"class {number} is {one!r:.40} and {other!r:.40}"
    return "no difference"


def _names(opened: Opened) -> str:
    return ", ".join(f"{field.name} ({field.kind})" for field in opened.fields) or "one file"
