"""What a loader has done and how it spent its time."""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from sophon.codec.cut import Cut
from sophon.link.wire import WHOLE, Reply
from sophon.process.renewal import renew_after_fork


@dataclass(eq=False)
class Stats:
    """Counts since the loader was made.

    Args:
        samples: Samples received.
        link_bytes: Bytes of payload that crossed the link; files of a local path do not.
        cuts: Samples by the cut actually made.
        smaller_cuts: Samples for which storage did less than requested, although there was something to do.
        cached: Samples whose first steps were read from the trainer's own disk.
        fallback: Samples read from the fallback path because no node answered.
        retries: Requests that failed and were tried again.
        hedges: Second requests for samples that were late.
        waited_s: Seconds that the consumer waited for batches.
        consumer_s: Seconds that the consumer took between batches.
        fetch_s: Seconds spent waiting for replies, summed over the fetching threads.
        fetch_cpu_s: CPU seconds that the fetching threads used.
        finish_cpu_s: CPU seconds spent on decoding payloads and running the rest of the ops.
        collate_s: Seconds spent on making batches.
        storage_cpu_s: CPU seconds that the storage node reports.
        relayed: Samples that came through relays.
        relay_cpu_s: CPU seconds that relays report.
        first_bytes: Bytes of payload that nodes sent to relays.
        reads: Samples that were read from a store, by the node or here.
        read_bytes: Bytes of the samples that were read.
        read_s: Seconds that the reads took, summed over concurrent ones.
        reading_s: Total seconds in which requests had nothing to send because they waited for the store.
        sources: Samples by the address of the node or path they came from.
        source_bytes: Bytes of payload by that address.
    """

    samples: int = 0
    link_bytes: int = 0
    cuts: Counter[str] = field(default_factory=Counter)
    smaller_cuts: int = 0
    cached: int = 0
    fallback: int = 0
    retries: int = 0
    hedges: int = 0
    waited_s: float = 0.0
    consumer_s: float = 0.0
    fetch_s: float = 0.0
    fetch_cpu_s: float = 0.0
    finish_cpu_s: float = 0.0
    collate_s: float = 0.0
    storage_cpu_s: float = 0.0
    relayed: int = 0
    relay_cpu_s: float = 0.0
    first_bytes: int = 0
    reads: int = 0
    read_bytes: int = 0
    read_s: float = 0.0
    reading_s: float = 0.0
    sources: Counter[str] = field(default_factory=Counter)
    source_bytes: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.renew()
        renew_after_fork(self)

    def renew(self) -> None:
        """Replace the lock in a forked child."""
        # Reentrant: the garbage collector may close a dropped iterator in a thread that holds this lock.
        self._lock = threading.RLock()

    def received(
        self, reply: Reply, asked: Cut, is_fallback: bool = False, source: str = "", *, is_local: bool = False
    ) -> None:
        """Count a reply, and where it came from.

        Args:
            reply: The reply.
            asked: The requested cut.
            is_fallback: Whether it was read from the fallback path.
            source: Address of the node or path.
            is_local: Whether that is a path on this machine, to which there is no link.
        """
        with self._lock:
            self.samples += 1
            self.cached += reply.is_cached
            self.link_bytes += 0 if reply.is_cached or is_fallback or is_local else len(reply.payload)
            self.cuts[str(reply.cut)] += 1
            self.fallback += is_fallback
            self.smaller_cuts += reply.cut != asked and reply.reason != WHOLE and not is_fallback
            self.storage_cpu_s += reply.cpu_s
            if reply.first is not None:
                self.relayed += 1
                self.relay_cpu_s += reply.relay_s
                self.first_bytes += reply.first_bytes
            if source and not reply.is_cached:
                self.sources[source] += 1
                self.source_bytes[source] += len(reply.payload)

    def add(self, **amounts: float) -> None:
        """Add to some of the sums."""
        with self._lock:
            for name, amount in amounts.items():
                setattr(self, name, getattr(self, name) + amount)

    def merge(self, counts: dict[str, Any]) -> None:
        """Add the counts of another object, as returned by `to_dict`."""
        with self._lock:
            for name, value in counts.items():
                if isinstance(value, dict):
                    getattr(self, name).update(value)
                else:
                    setattr(self, name, getattr(self, name) + value)

    def clear(self) -> None:
        """Reset all counts."""
        with self._lock:
            for name, value in vars(Stats()).items():
                if not name.startswith("_"):
                    setattr(self, name, value)

    def since(self, before: dict[str, Any]) -> Stats:
        """Return the counts since an earlier `to_dict`."""
        found: dict[str, Any] = {}
        for name, value in self.to_dict().items():
            found[name] = Counter(value) - Counter(before[name]) if isinstance(value, dict) else value - before[name]
        return Stats(**found)

    def to_dict(self) -> dict[str, Any]:
        """Return all counts as JSON values."""
        with self._lock:
            return {
                name: dict(value) if isinstance(value, Counter) else value
                for name, value in vars(self).items()
                if not name.startswith("_")
            }

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_lock"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.__post_init__()
