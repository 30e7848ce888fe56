"""Decides when to send finished samples: when a record batch is full, or its first sample has waited long enough.

A record batch for every sample would cost more than some samples take to make, but a finished sample that waits for
others keeps the trainer waiting. A stream must also not be silent for long (see `service`), so an empty batch is sent
from time to time while nothing is finished. No clock is read here; callers pass the time.
"""

from __future__ import annotations

from sophon.link.wire import Reply
from sophon.server.pace import Pace

BATCH_S = 0.05  # how long a finished sample waits for others to be sent with it
HEARTBEAT_S = 1.0  # far below any deadline, and only a hundred small messages a second for a hundred streams


class Gathering:
    """The replies of one stream that go into its next record batch.

    Args:
        pace: Determines how much to send at once.
        now_s: When the stream started.
    """

    def __init__(self, pace: Pace, now_s: float) -> None:
        self._pace = pace
        self._sent_s = now_s
        self._since_s = now_s
        self.replies: list[Reply] = []
        self.size_bytes = 0

    def add(self, reply: Reply, now_s: float) -> None:
        """Put one more reply into the batch."""
        if not self.replies:
            self._since_s = now_s
        self.replies.append(reply)
        self.size_bytes += len(reply.payload)

    def wait_s(self, now_s: float) -> float:
        """Return the longest time to wait for another reply before the batch is sent."""
        if self.size_bytes >= self._pace.batch_bytes:
            return 0.0
        due_s = self._since_s + BATCH_S if self.replies else self._sent_s + HEARTBEAT_S
        return max(due_s - now_s, 0.0)

    def is_due(self, following: Reply | None, now_s: float) -> bool:
        """Return whether to send the batch, which may be empty, before `following` is added to the next one."""
        if following is not None:
            if not self.replies:
                return False
            if self.size_bytes + len(following.payload) > self._pace.batch_bytes:
                return True
        return self.wait_s(now_s) <= 0

    def sent(self, began_s: float, now_s: float) -> None:
        """Start the next batch, and record how long the link took for this one."""
        if self.replies:
            self._pace.sent(self.size_bytes, now_s - began_s)
        self._sent_s = now_s
        self.replies, self.size_bytes = [], 0

    def sent_run(self, size_bytes: int, began_s: float, now_s: float) -> None:
        """Record how long the link took for raw samples sent alongside this batch."""
        self._pace.sent(size_bytes, now_s - began_s)
        self._sent_s = now_s
