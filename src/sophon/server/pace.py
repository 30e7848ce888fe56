"""How much to send at once: as much as the link takes in a tenth of a second.

Large record batches cost less CPU per byte; on a slow link they would keep the trainer waiting for the first of their
samples, and the node's cores waiting for a stream that cannot take what they have made. Each trainer's link has a pace
of its own, found from how long its last batches took.

Concurrency: told by the threads of all streams; a lost update costs nothing but a little time.
"""

from __future__ import annotations

from collections import OrderedDict

MOST_BYTES = 4 << 20  # half the CPU per byte of what 1 MB costs on both sides
_LEAST_BYTES = 1 << 17
_SEND_S = 0.1
_TRAINERS = 256  # remembered, most recent first


class Pace:
    """Bytes in one record batch, for one trainer."""

    def __init__(self) -> None:
        self.batch_bytes = float(MOST_BYTES) / 8

    def sent(self, size_bytes: int, seconds: float) -> None:
        """Note how long a batch took."""
        fitting = _SEND_S * size_bytes / max(seconds, 1e-6)
        # A short batch says little of the link, so it may only raise the pace step by step.
        wanted = min(fitting, 2 * self.batch_bytes)
        self.batch_bytes = min(max(0.5 * (self.batch_bytes + wanted), _LEAST_BYTES), MOST_BYTES)


class Paces:
    """The pace of every trainer, by its address."""

    def __init__(self) -> None:
        self._by_host: OrderedDict[str, Pace] = OrderedDict()

    def of(self, peer: str) -> Pace:
        """Return the pace of the trainer at ``ipv4:10.0.0.7:41234``; its connections share one."""
        host = peer.rpartition(":")[0]
        pace = self._by_host.setdefault(host, Pace())
        while len(self._by_host) > _TRAINERS:
            self._by_host.popitem(last=False)
        return pace
