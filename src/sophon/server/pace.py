"""Determines how much to send at once: as much as the link takes in a tenth of a second.

Large record batches cost less CPU per byte. On a slow link, though, they would keep the trainer waiting for their first
sample, and the node's cores waiting for a stream that cannot take what they have made. Each trainer's link has its own
pace, derived from how long its last batches took.

Raw samples may be sent in larger batches: no core waits for the stream in the meantime, and reading ahead continues
(`run_bytes`). Batches get smaller towards the end of a request only if the trainer waits for no other one.

Concurrency: updated by the threads of all streams; a lost update does no harm beyond a slightly worse pace.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from cachetools import LRUCache

MOST_BYTES = 4 << 20  # costs half as much CPU per byte as 1 MB, on both sides
MOST_RUN_BYTES = 8 << 20  # as large as a whole request from a loader
_LEAST_BYTES = 1 << 17
_LAST_BYTES = 1 << 19
_SEND_S = 0.1
_RUN_S = 0.8  # for raw samples: less than the second after which a trainer expects a sign of life
_TRAINERS = 256  # remembered: the most recently active


class Pace:
    """How many bytes to put into one record batch for one trainer.

    Attributes:
        batch_bytes: Bytes in a batch of samples that ops have worked on.
        run_bytes: Bytes in a batch of raw samples; see `run`.
    """

    def __init__(self) -> None:
        self.batch_bytes = self.run_bytes = float(MOST_BYTES) / 8

    def run(self, left_bytes: int, *, is_only: bool = True) -> float:
        """Return how many of a request's remaining bytes of raw samples to send at once.

        On a slow link the last samples of a trainer's only request are sent in smaller batches: the trainer starts on a
        sample when its batch has arrived, and work after the last byte cannot overlap with the transfer. Samples that
        would leave a very small batch behind are sent in one piece, since each batch costs the node as much CPU as
        200 KB of payload.
        """
        if not is_only or (self.run_bytes >= left_bytes and self.run_bytes >= MOST_BYTES):
            return self.run_bytes
        is_end = left_bytes <= 1.5 * _LAST_BYTES
        return min(self.run_bytes, max(left_bytes if is_end else left_bytes / 2, _LAST_BYTES))

    def sent(self, size_bytes: int, seconds: float) -> None:
        """Record how long a batch took."""
        bytes_per_s = size_bytes / max(seconds, 1e-6)
        self.batch_bytes = _nearer(self.batch_bytes, _SEND_S * bytes_per_s, MOST_BYTES)
        self.run_bytes = _nearer(self.run_bytes, _RUN_S * bytes_per_s, MOST_RUN_BYTES)


def _nearer(now_bytes: float, fitting_bytes: float, most_bytes: int) -> float:
    # A short batch says little about the link, so it may only raise the pace step by step.
    wanted = min(fitting_bytes, 2 * now_bytes)
    return min(max(0.5 * (now_bytes + wanted), _LEAST_BYTES), most_bytes)


class Paces:
    """The pace of every trainer, by its address, and how many streams each of its connections has."""

    def __init__(self) -> None:
        self._by_host: LRUCache[str, Pace] = LRUCache(_TRAINERS)
        self._streams: Counter[str] = Counter()
        self._lock = threading.RLock()  # reentrant: the garbage collector may close a dropped stream at any moment

    def of(self, peer: str) -> Pace:
        """Return the pace of the trainer at ``ipv4:10.0.0.7:41234``; all its connections share one."""
        host = peer.rpartition(":")[0]
        with self._lock:
            return self._by_host.setdefault(host, Pace())

    @contextmanager
    def stream(self, peer: str) -> Iterator[StreamPace]:
        """Count a stream of a connection while it lasts."""
        with self._lock:
            self._streams[peer] += 1
        try:
            yield StreamPace(self.of(peer), peer, self)
        finally:
            with self._lock:
                self._streams[peer] -= 1
                if not self._streams[peer]:
                    del self._streams[peer]

    def streams(self, peer: str) -> int:
        """Return how many streams a connection has."""
        return self._streams.get(peer, 0)


@dataclass(frozen=True)
class StreamPace:
    """The pace of one stream.

    Args:
        trainer: Pace of its trainer.
        peer: Its connection.
        paces: What counts the streams of the connection.
    """

    trainer: Pace
    peer: str
    paces: Paces

    def run(self, left_bytes: int) -> float:
        """Return how many of the request's remaining bytes of raw samples to send at once."""
        return self.trainer.run(left_bytes, is_only=self.paces.streams(self.peer) <= 1)
