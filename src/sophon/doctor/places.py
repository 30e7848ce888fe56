"""Examines each place that samples come from, and whether several of them hold the same data set."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from sophon.doctor.bits import examine_bits
from sophon.doctor.finding import ADVICE, FAULT, FINE, NOTE, Finding
from sophon.doctor.node import Node, contents
from sophon.doctor.samples import examine_link, examine_samples, spread, take
from sophon.doctor.targets import examine_fields
from sophon.errors import ConfigError, Error
from sophon.link.schemes import SCHEMES, scheme_of
from sophon.link.transport import Opened, Transport
from sophon.loader.sources.local import open_path
from sophon.pipeline import Pipeline

_REMEDIES: Final = {
    "rights": "Let this user read it: `chmod -R o+rX PATH`, or give access to one of the user's groups.",
    "path": "Give the folder, listing, shards or address of a data set.",
    "data": "See docs/data.md for what can be opened.",
}


class Place:
    """A place to examine.

    Args:
        address: Address of a node, or path of a data set.

    Attributes:
        opened: The opened data set; None if it could not be opened.
        files: Bytes of some samples.
    """

    def __init__(self, address: str) -> None:
        self.address = address
        self.opened: Opened | None = None
        self.files: dict[int, bytes] = {}
        self._transport: Transport | None = None
        self._is_node = scheme_of(address) in SCHEMES

    def examine(self, pipeline: Pipeline, samples: int, seconds: float) -> Iterator[Finding]:
        """Open the place and read some samples.

        Args:
            pipeline: The pipeline to run.
            samples: How many samples to examine.
            seconds: How long to measure the speed of a link.
        """
        yield from self._node(pipeline) if self._is_node else self._path(pipeline)
        if self._transport is None or self.opened is None or not self.opened.samples:
            return
        chosen = spread(self.opened.samples, samples)
        try:
            taken = take(self._transport, self.opened, pipeline, chosen, seconds)
        except Error as error:
            text = f"samples cannot be read: {error}"
            yield Finding(self.address, "samples", FAULT, text, "Check the log of the node.")
            return
        self.files = taken.files
        if self._is_node:
            yield examine_link(self.address, self.opened, taken)
        yield from examine_samples(self.address, self.opened, taken, pipeline)
        yield from examine_fields(self.address, self._transport, self.opened, pipeline, chosen)

    def compare(self, pipeline: Pipeline) -> Iterator[Finding]:
        """Compare the results of cuts; all steps of the pipeline must be known to return."""
        if self._transport is not None and self.opened is not None:
            yield from examine_bits(self.address, self._transport, self.opened, pipeline, self.files)

    def close(self) -> None:
        """Release what was opened."""
        if self._transport is not None:
            self._transport.close()

    def _node(self, pipeline: Pipeline) -> Iterator[Finding]:
        node = Node(self.address)
        yield from node.examine(pipeline)
        self._transport, self.opened = node.transport, node.opened

    def _path(self, pipeline: Pipeline) -> Iterator[Finding]:
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            try:
                self._transport = open_path(self.address)
            except Error as error:
                yield self._unopened(error)
                return
        for warning in told:
            yield Finding(self.address, "data", NOTE, str(warning.message))
        self.opened = self._transport.open(pipeline)
        text = f"{contents(self.opened)} ({self.opened.store}), fingerprint {self.opened.fingerprint}"
        yield Finding(self.address, "data", FINE, text)

    def _unopened(self, error: Error) -> Finding:
        text = str(error)
        if "ermission denied" in text:
            name = "rights"
        elif isinstance(error, ConfigError) and not Path(self.address).exists():
            name = "path"
        else:
            name = "data"
        return Finding(self.address, name, FAULT, text, _REMEDIES[name])


def examine_copies(opened_at: dict[str, Opened]) -> Iterator[Finding]:
    """Check whether several places hold the same data set.

    Args:
        opened_at: The opened data sets, by address.
    """
    if len(opened_at) < 2:
        return
    (first, one), *others = opened_at.items()
    for address, other in others:
        if other.fingerprint == one.fingerprint:
            yield Finding(address, "copy", FINE, f"holds the same samples as {first}")
            continue
        text = (
            f"holds a different data set than {first}: {other.samples:,} samples here, {one.samples:,} there, with "
            "different fingerprints"
        )
        remedy = "Copies must be identical: copy the files again. Nodes that hold parts of one data set may differ."
        yield Finding(address, "copy", ADVICE, text, remedy)
