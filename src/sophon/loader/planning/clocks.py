"""Measures the speed of the link, the storage node and its store with the loader's own clocks.

Time counts while at least one reply stream is open. For each stretch of about a second, the storage node reports how
long its streams waited for ops and for the store. If both waits are short, the bytes received show the link's speed. If
the node waited for ops, the CPU seconds show how many cores it really has for this loader; if it waited for the store,
the number of samples shows how fast the store can be read.

When several ranks share a link, the part that each one gets varies from second to second. So an epoch is planned with
the mean over the previous epoch, or over the last twenty seconds if that epoch was shorter. The last few seconds
replace that mean only if they differ so much that the link itself must have changed.

The time is passed in and no clock is read, so that this can be tested.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from sophon.loader.planning.replanning import differ

_STRETCH_S = 1.0  # long enough for several record batches of 50 ms, short enough to notice a change soon
_LONGEST = 4  # times that: a slow or widely shared link needs longer to deliver enough bytes
_KEPT = 5  # stretches needed for a reliable estimate
_MEMORY_S = 20.0  # of the previous epoch: by then, measured shares of ranks on one link differed by at most 4 %
_WAITS = 0.5  # share of the time: above this, the node's cores or its store are the bottleneck
_LEAST_MOVING = 0.05  # share of the time: with less, nothing can be said about a link that is never full
_LEAST_BYTES = 1 << 20  # in a stretch: with fewer, headers and turn-around dominate the measurement
_BEYOND_PROOF = 2.0  # times the highest rate seen on a link that was never full: with more, a plan would overfill it
_STEP = 1.25  # times the same rate, if an earlier plan knew the link and it was idle most of the time
_EMPTY = 6.0  # ratio of the estimated to the received rate that shows an idle link: 3.3 was measured on a full one


@dataclass
class _Stretch:
    busy_s: float = 0.0
    size_bytes: int = 0
    cpu_s: float = 0.0
    computing_s: float = 0.0
    reading_s: float = 0.0
    samples: int = 0

    @property
    def moving_s(self) -> float:
        """Seconds in which the link was in use: those left after all waits."""
        return max(self.busy_s - self.computing_s - self.reading_s, _LEAST_MOVING * self.busy_s)

    def add(self, other: _Stretch) -> None:
        """Add another stretch to the sums."""
        for name, amount in vars(other).items():
            setattr(self, name, getattr(self, name) + amount)


class LinkClock:
    """Speed of the links and of the nodes behind them, as seen by this process.

    If several ranks use one link, each sees roughly its own part of it. If one loader uses several nodes, it sees the
    sum of what they send, whether they share a link or have one each.

    Args:
        cores: Number of cores for ops that the storage nodes report for this process.
    """

    def __init__(self, cores: float) -> None:
        self.cores = cores
        self._open: dict[int, tuple[float, float]] = {}  # for each stream, how long it waited for ops and for the store
        self._since_s = 0.0
        self._now = _Stretch()
        self._all = _Stretch()
        self._usual: tuple[float, float] = (0.0, 0.0)  # bytes and seconds since the epoch began, and a little before
        self._link: deque[tuple[float, float]] = deque(maxlen=_KEPT)  # bytes and seconds
        self._storage: deque[tuple[float, float]] = deque(maxlen=_KEPT)  # CPU seconds and seconds
        self._store: deque[tuple[float, float]] = deque(maxlen=_KEPT)  # samples and seconds
        self._cutting: deque[tuple[float, float]] = deque(maxlen=_KEPT)  # the same, while waiting for ops
        self.links = 0  # stretches so far that showed the link's speed

    @property
    def link_bytes_per_s(self) -> float | None:
        """The link's speed in the last seconds; None if it was never seen."""
        if self._link:
            return _rate(self._link)
        seen = self._all if self._all.busy_s else self._now
        return seen.size_bytes / seen.moving_s if seen.busy_s > 0 and seen.size_bytes else None

    @property
    def full_link_bytes_per_s(self) -> float | None:
        """The link's speed in the last seconds in which it was the bottleneck; None if it never was."""
        return _rate(self._link) if self._link else None

    @property
    def proven_bytes_per_s(self) -> float | None:
        """Bytes per second received so far; None if the link was the bottleneck, because then its speed is known."""
        busy_s = self._all.busy_s + self._now.busy_s
        if self._link or not busy_s:
            return None
        return (self._all.size_bytes + self._now.size_bytes) / busy_s

    @property
    def usual_link_bytes_per_s(self) -> float | None:
        """The link's speed since the epoch began, or over the last few seconds if the speed has changed."""
        size_bytes, seconds = self._usual
        return size_bytes / seconds if seconds else self.link_bytes_per_s

    @property
    def storage_cores(self) -> float:
        """Cores that the storage nodes have for this process: the reported number, or fewer if they proved slower."""
        return min(_rate(self._storage), self.cores) if self._storage else self.cores

    @property
    def store_samples_per_s(self) -> float | None:
        """How fast the stores can be read; None if they were never the bottleneck."""
        if self._store:
            return _rate(self._store)
        now = self._now
        is_short = not self._link and not self._storage and now.samples > 0  # not one stretch is over
        return now.samples / now.busy_s if is_short and now.reading_s > _WAITS * now.busy_s > 0 else None

    @property
    def cut_samples_per_s(self) -> float | None:
        """How fast samples are cut near storage; None if that was never the bottleneck."""
        if self._cutting:
            return _rate(self._cutting)
        now = self._now
        is_short = not self._link and not self._store and now.samples > 0  # not one stretch is over
        return now.samples / now.busy_s if is_short and now.computing_s > _WAITS * now.busy_s > 0 else None

    def turn(self) -> None:
        """Record that an epoch starts."""
        size_bytes, seconds = self._usual
        part = min(1.0, _MEMORY_S / seconds) if seconds else 0.0
        self._usual = (part * size_bytes, part * seconds)

    def hope(self) -> None:
        """Assume that a slow node has become a quarter faster, since that goes unnoticed while it gets no requests."""
        for _ in range(len(self._storage)):
            cpu_s, seconds = self._storage.popleft()
            self._storage.append((1.25 * cpu_s, seconds))

    def began(self, request: int, now_s: float) -> None:
        """Record that a request was sent."""
        self._count_time(now_s)
        self._open[request] = (0.0, 0.0)

    def got(
        self,
        request: int,
        size_bytes: int,
        cpu_s: float,
        computing_s: float,
        now_s: float,
        reading_s: float = 0.0,
    ) -> None:
        """Record a reply.

        Args:
            request: Number of the request.
            size_bytes: Size of the payload, in bytes.
            cpu_s: CPU seconds that the storage node spent on the sample.
            computing_s: How long that stream waited for ops, since it began.
            now_s: The time.
            reading_s: How long that stream waited for the store, since it began.
        """
        self._count_time(now_s)
        stretch = self._now
        stretch.samples += 1
        stretch.size_bytes += size_bytes
        stretch.cpu_s += cpu_s
        if request in self._open:
            computed_s, read_s = self._open[request]
            stretch.computing_s += max(computing_s - computed_s, 0.0)
            stretch.reading_s += max(reading_s - read_s, 0.0)
            self._open[request] = (computing_s, reading_s)
        waited_s = max(stretch.computing_s, stretch.reading_s)
        shows = stretch.size_bytes >= _LEAST_BYTES or waited_s > _WAITS * stretch.busy_s
        if stretch.busy_s >= _STRETCH_S * (1 if shows else _LONGEST):
            self._close()

    def ended(self, request: int, now_s: float) -> None:
        """Record that a stream has ended, normally or with an error."""
        self._count_time(now_s)
        self._open.pop(request, None)

    def _count_time(self, now_s: float) -> None:
        if self._open:
            self._now.busy_s += max(now_s - self._since_s, 0.0)
        self._since_s = now_s

    def _close(self) -> None:
        stretch, self._now = self._now, _Stretch()
        self._all.add(stretch)
        cores = stretch.cpu_s / stretch.busy_s
        if stretch.reading_s > max(_WAITS * stretch.busy_s, stretch.computing_s):
            self._store.append((stretch.samples, stretch.busy_s))
            return
        if self._store:  # its files may be cached in memory by now, so the estimate decays step by step
            self._store.popleft()
        if stretch.computing_s > _WAITS * stretch.busy_s:
            self._storage.append((stretch.cpu_s, stretch.busy_s))
            self._cutting.append((stretch.samples, stretch.busy_s))
            return
        if self._cutting:  # samples may be cut differently by now
            self._cutting.popleft()
        if stretch.size_bytes < _LEAST_BYTES:
            return
        self._link.append((stretch.size_bytes, stretch.busy_s))
        self.links += 1
        self._usual = (self._usual[0] + stretch.size_bytes, self._usual[1] + stretch.busy_s)
        if len(self._link) == _KEPT and differ(_rate(self._link), self._usual[0] / self._usual[1]):
            self._usual = (sum(amount for amount, _ in self._link), sum(seconds for _, seconds in self._link))
        if self._storage and cores > self.storage_cores:
            # The node had more cores than estimated, and was not even the bottleneck.
            self._storage.append((stretch.cpu_s, stretch.busy_s))


def believed(link: float, proven: float | None, before: float | None, *, is_hasty: bool) -> float:
    """Return the speed that a plan may assume for a link, even one that was never full, in bytes per second.

    A node computes while it sends, so the time in which it did not wait for ops says little about a link that was never
    the bottleneck: in short epochs with both busy, the estimate was up to three times too high. Knowledge from an
    earlier plan counts more, and a link that has become faster shows step by step, as plans fill it.

    Args:
        link: The clock's estimate.
        proven: The rate received, if the link was never full.
        before: The previous estimate; None if there is none.
        is_hasty: Whether too little was measured for the clock's own estimate to be reliable.
    """
    if proven is None:
        return link
    if before is not None:
        return min(link, max(before, (_STEP if link > _EMPTY * proven else 1.0) * proven))
    return min(link, _BEYOND_PROOF * proven) if is_hasty else link


def _rate(stretches: deque[tuple[float, float]]) -> float:
    return sum(amount for amount, _ in stretches) / sum(seconds for _, seconds in stretches)
