"""The interface of transports, which fetch samples, such as `link.flight` and `loader.sources.local`.

Concurrency: several threads may use a transport at the same time.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from sophon.link.listing import Listing
from sophon.link.wire import MAX_SAMPLES, PROTOCOL, Reply, Request, StreamClock
from sophon.pipeline import Pipeline
from sophon.store.fields import Field


@dataclass(frozen=True)
class Behind:
    """A relay's description of the node behind the relay.

    Args:
        max_cut: How many of the first ops can run on the node.
        digests: Digests of the built-in picture after each of these ops, as computed by the node.
        versions: Versions of the node's software.
        cores: Number of cores that the node has for ops.
        codecs: Names of the codecs that work on the node.
    """

    max_cut: int = 0
    digests: tuple[str, ...] = ()
    versions: dict[str, str] = field(default_factory=dict)
    cores: float = 0.0
    codecs: tuple[str, ...] = ()


@dataclass(frozen=True)
class Opened:
    """What is known about a data set once it has been opened.

    Args:
        name: Name of the data set.
        samples: Number of samples.
        fingerprint: Fingerprint of the data set.
        classes: Names of the classes, if there are any.
        has_labels: Whether samples have labels.
        columns: Names of further columns.
        max_cut: How many of the first ops can run near storage.
        digests: Digests of the built-in picture after each of these ops, as computed near storage.
        versions: Versions of the software near storage.
        reason: Why no more ops can run near storage.
        max_samples: Number of samples that one request may name.
        cores: Number of cores near storage for ops.
        codecs: Names of the codecs that work near storage.
        store: Kind of the store; "" if unknown.
        fields: Fields of a sample, if there are several.
        has_bands: Whether parts of objects can be read instead of whole ones.
        protocol: Version of the protocol that both sides speak.
        columns_digest: Digest of the further columns, which the fingerprint does not cover; "" if it is not known.
        state: Digest of names, sizes and times of the listed files: it differs between copies of the same data, and
            changes when files are rewritten; "" if it is not known.
        time_s: Time of the answer by the node's clock, in seconds since 1970; 0 if it is not known.
        part: Which part of a larger data set this is, such as 3/8; "" if it is not known to be a part.
        whole: Fingerprint of that larger data set.
        behind: The node behind a relay; None for a node.
    """

    name: str
    samples: int
    fingerprint: str
    classes: tuple[str, ...] = ()
    has_labels: bool = True
    columns: tuple[str, ...] = ()
    max_cut: int = 0
    digests: tuple[str, ...] = ()
    versions: dict[str, str] = field(default_factory=dict)
    reason: str = ""
    max_samples: int = MAX_SAMPLES
    cores: float = 0.0
    codecs: tuple[str, ...] = ()
    store: str = ""
    fields: tuple[Field, ...] = ()
    has_bands: bool = False
    protocol: int = PROTOCOL
    columns_digest: str = ""
    state: str = ""
    time_s: float = 0.0
    part: str = ""
    whole: str = ""
    behind: Behind | None = None

    @property
    def is_relay(self) -> bool:
        """Whether this is a relay, which holds nothing itself and passes samples on."""
        return self.behind is not None


class Fetch(ABC):
    """The replies to one request, as they arrive.

    Attributes:
        clock: How the other side has spent its time so far: how long it had nothing to send because it waited for ops
            or for the store.
    """

    clock: StreamClock = StreamClock()

    @property
    def heard_s(self) -> float:
        """When the other side last gave a sign of life, by the monotonic clock; 0 if it has not done so yet."""
        return 0.0

    @property
    def computing_s(self) -> float:
        """How long, so far, the other side has had nothing to send because it waited for ops."""
        return self.clock.computing_s

    @property
    def reading_s(self) -> float:
        """How long, so far, the other side has had nothing to send because it waited for the store."""
        return self.clock.reading_s

    @abstractmethod
    def __iter__(self) -> Iterator[Reply]: ...

    def cancel(self) -> None:  # noqa: B027 - there is nothing to stop if nothing runs elsewhere
        """Stop the fetch; may be called from any thread.

        In the iterating thread, iteration ends or raises an error.
        """


class Transport(ABC):
    """A source of samples."""

    address: str
    is_remote: bool = False

    @abstractmethod
    def open(self, pipeline: Pipeline) -> Opened:
        """Ask what the data set is and what can be done near it."""

    @abstractmethod
    def fetch(self, request: Request, timeout_s: float) -> Fetch:
        """Ask for samples; iterating fails after the timeout, even if the other side is silent."""

    def file_sizes(self, samples: int, fields: tuple[str, ...] = ()) -> NDArray[np.int64] | None:  # noqa: ARG002
        """Return the size of every sample's file; None if unknown.

        Args:
            samples: Number of samples.
            fields: Names of the fields that are sent besides the first.
        """
        return None

    def listing(self, opened: Opened) -> Listing | None:  # noqa: ARG002 - others need it
        """Return the ids, sizes and labels of all samples; None if unknown.

        Args:
            opened: The node's answer when the data set was opened.
        """
        return None

    def stamp(self, sample: int) -> str:  # noqa: ARG002 - others need it
        """Return a string that changes when a sample is rewritten; "" if not known."""
        return ""

    @abstractmethod
    def close(self) -> None:
        """Release all resources."""
