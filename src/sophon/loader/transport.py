"""Ways to get at samples: what they have in common. `local_transport` and `flight_transport` are two.

Concurrency: a transport may be used by several threads.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, field

from sophon.codec.wire import MAX_SAMPLES, Reply, Request
from sophon.pipeline import Pipeline


@dataclass(frozen=True)
class Opened:
    """What is known of a data set once it has been opened.

    Args:
        name: Of the data set.
        samples: How many.
        fingerprint: Of the data set.
        classes: Names of the classes, maybe none.
        has_labels: Whether samples have labels.
        columns: Names of further columns.
        max_cut: How many ops can run there, from the first.
        digests: Of what each of these ops makes of the built-in picture there.
        versions: Of the software there.
        reason: Why not more ops can run there.
        max_samples: That one request may name.
        cores: How many cores may work on ops there.
        codecs: Which codecs work there.
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


class Fetch(ABC):
    """The replies to one request, as they come.

    Attributes:
        computing_s: How long the other side had nothing to send but waited for ops, so far.
        heard_s: When it last gave a sign of life, by the monotonic clock; 0 if it has not.
    """

    computing_s: float = 0.0
    heard_s: float = 0.0

    @abstractmethod
    def __iter__(self) -> Iterator[Reply]: ...

    def cancel(self) -> None:  # noqa: B027 - there is nothing to stop where nothing runs elsewhere
        """Stop, from any thread; whoever iterates gets an error or the end."""


class Transport(ABC):
    """Where samples come from."""

    address: str
    is_remote: bool = False

    @abstractmethod
    def open(self, pipeline: Pipeline) -> Opened:
        """Ask what the data set is and what can be done near it."""

    @abstractmethod
    def fetch(self, request: Request, timeout_s: float) -> Fetch:
        """Ask for samples; iterating fails after the timeout, also where the other side is silent."""

    @abstractmethod
    def close(self) -> None:
        """Give up what is held."""
