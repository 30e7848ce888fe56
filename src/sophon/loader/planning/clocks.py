"""Measures the speed of the link, the storage node and its store with the loader's own clocks.

Time counts while at least one reply stream is open. For each stretch of about a second of it the storage node says how
long its streams waited for ops, and how long for the store. Where both are little, the bytes of the stretch show the
link's speed. Where it waited for ops, the CPU seconds show how many cores the node really has for us; where it waited
for the store, the samples show how fast that can be read.

Of several ranks that share a link none gets the same part of it in every second. So what an epoch is planned with is
the mean of the epoch before, or of the last twenty seconds where that was shorter; the last few alone count where they
differ so much that the link itself has changed.

The time is passed in and no clock is read, so that it can be tested.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from sophon.loader.planning.replanning import differ

_STRETCH_S = 1.0  # long enough for several record batches of 50 ms, short enough to notice a change soon
_LONGEST = 4  # times that: a slow link, or one of many ranks, needs longer until enough has come
_KEPT = 5  # stretches; together they are believed
_MEMORY_S = 20.0  # of an epoch before: the parts of ranks that share a link were seen to be even to 4 % by then
_WAITS = 0.5  # of the time, and it is the node's cores, or its store, that hold everything up
_LEAST_MOVING = 0.05  # of the time: with less nothing could be said of a link that is never full
_LEAST_BYTES = 1 << 20  # in a stretch: less than that, and headers and turn-around are what is measured
_BEYOND_PROOF = 2.0  # times the most that was seen of a link which never was full, or a plan would fill it blindly
_STEP = 1.25  # times the same, where an earlier plan knew the link, and it was empty most of the time
_EMPTY = 6.0  # times what came could have come, had there been no waiting: 3.3 was seen of a link that was full


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
        """Seconds of it in which something was on the link: what is left of them after all waits."""
        return max(self.busy_s - self.computing_s - self.reading_s, _LEAST_MOVING * self.busy_s)

    def add(self, other: _Stretch) -> None:
        """Add another stretch to the sums."""
        for name, amount in vars(other).items():
            setattr(self, name, getattr(self, name) + amount)


class LinkClock:
    """Speed of the link, or links, and of the nodes behind, as far as this process has its share of them.

    Where several ranks use one link, each sees about its part of it; where one loader uses several nodes, it sees the
    sum of what they send, whether they have one link or one each.

    Args:
        cores: How many cores for ops the storage nodes say they have, as far as this process has a right to them.
    """

    def __init__(self, cores: float) -> None:
        self.cores = cores
        self._open: dict[int, tuple[float, float]] = {}  # of each stream, how long it waited for ops and for the store
        self._since_s = 0.0
        self._now = _Stretch()
        self._all = _Stretch()
        self._usual: tuple[float, float] = (0.0, 0.0)  # bytes and seconds since the epoch began, and some before
        self._link: deque[tuple[float, float]] = deque(maxlen=_KEPT)  # bytes and seconds
        self._storage: deque[tuple[float, float]] = deque(maxlen=_KEPT)  # CPU seconds and seconds
        self._store: deque[tuple[float, float]] = deque(maxlen=_KEPT)  # samples and seconds
        self._cutting: deque[tuple[float, float]] = deque(maxlen=_KEPT)  # the same, where ops were waited for

    @property
    def link_bytes_per_s(self) -> float | None:
        """The link's speed in the last seconds; None if it was never seen."""
        if self._link:
            return _rate(self._link)
        seen = self._all if self._all.busy_s else self._now
        return seen.size_bytes / seen.moving_s if seen.busy_s > 0 and seen.size_bytes else None

    @property
    def full_link_bytes_per_s(self) -> float | None:
        """The link's speed in the last seconds in which it was what held things up; None if it never was."""
        return _rate(self._link) if self._link else None

    @property
    def proven_bytes_per_s(self) -> float | None:
        """Bytes per second received so far; None if the link was the bottleneck, so that its speed is known."""
        busy_s = self._all.busy_s + self._now.busy_s
        if self._link or not busy_s:
            return None
        return (self._all.size_bytes + self._now.size_bytes) / busy_s

    @property
    def usual_link_bytes_per_s(self) -> float | None:
        """The link's speed since the epoch began, or in the last seconds if it has become another."""
        size_bytes, seconds = self._usual
        return size_bytes / seconds if seconds else self.link_bytes_per_s

    @property
    def storage_cores(self) -> float:
        """Cores that the storage nodes have for us: what they say, or less where they were seen to be slower."""
        return min(_rate(self._storage), self.cores) if self._storage else self.cores

    @property
    def store_samples_per_s(self) -> float | None:
        """How fast the store, or stores, can be read; None if they never held anything up."""
        if self._store:
            return _rate(self._store)
        now = self._now
        is_short = not self._link and not self._storage and now.samples > 0  # not one stretch is over
        return now.samples / now.busy_s if is_short and now.reading_s > _WAITS * now.busy_s > 0 else None

    @property
    def cut_samples_per_s(self) -> float | None:
        """How fast samples are cut near storage; None where that was never what was waited for."""
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
        """Assume that a slow node has become a quarter faster, since that goes unnoticed while it is not asked."""
        for _ in range(len(self._storage)):
            cpu_s, seconds = self._storage.popleft()
            self._storage.append((1.25 * cpu_s, seconds))

    def began(self, request: int, now_s: float) -> None:
        """Note that a request was sent."""
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
        """Note a reply.

        Args:
            request: Number of the request.
            size_bytes: Size of its payload, in bytes.
            cpu_s: CPU seconds that the storage node spent on it.
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
        """Note that a stream has ended, well or badly."""
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
        if self._store:  # its files may lie in memory by now: it is forgotten step by step
            self._store.popleft()
        if stretch.computing_s > _WAITS * stretch.busy_s:
            self._storage.append((stretch.cpu_s, stretch.busy_s))
            self._cutting.append((stretch.samples, stretch.busy_s))
            return
        if self._cutting:  # samples may be cut otherwise by now
            self._cutting.popleft()
        if stretch.size_bytes < _LEAST_BYTES:
            return
        self._link.append((stretch.size_bytes, stretch.busy_s))
        self._usual = (self._usual[0] + stretch.size_bytes, self._usual[1] + stretch.busy_s)
        if len(self._link) == _KEPT and differ(_rate(self._link), self._usual[0] / self._usual[1]):
            self._usual = (sum(amount for amount, _ in self._link), sum(seconds for _, seconds in self._link))
        if self._storage and cores > self.storage_cores:
            # It had more for us than we thought, and was not even the slower part.
            self._storage.append((stretch.cpu_s, stretch.busy_s))


def believed(link: float, proven: float | None, before: float | None, *, is_hasty: bool) -> float:
    """Return what a plan may believe of a link, which may never have been full; all in bytes per second.

    A node computes while it sends, so the time in which it did not wait for ops says little of a link that never held
    anything up: short epochs with both of them busy were seen to triple it. What an earlier plan knew counts more, and
    a link that became faster shows step by step, as plans fill it.

    Args:
        link: What the clock makes of it.
        proven: What came, if the link was never full.
        before: What was believed before; None where nothing was.
        is_hasty: Whether so little was seen that the clock's own guess is a wild one.
    """
    if proven is None:
        return link
    if before is not None:
        return min(link, max(before, (_STEP if link > _EMPTY * proven else 1.0) * proven))
    return min(link, _BEYOND_PROOF * proven) if is_hasty else link


def _rate(stretches: deque[tuple[float, float]]) -> float:
    return sum(amount for amount, _ in stretches) / sum(seconds for _, seconds in stretches)
