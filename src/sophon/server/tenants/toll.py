"""CPU for work that cannot wait for a core: reading a message, building its pipeline, and answering it with a list.

A stream has to start at once, so the thread of the call does this work. It is short, since every length is bounded; but
a tenant may send many such messages. So a tenant's messages are read one after another, with a pause after each in
proportion to its cost, and the tenant is charged for them as for samples.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

_PAUSE = 4.0  # pause, as a multiple of the CPU spent: a tenant gets at most a fifth of a core for this
_LITTLE_S = 0.0002  # minimum charge per call: threads and HTTP/2 take this long before the clock can be read
_LEAST_S = 0.002  # charge for a long message: it was received and copied before the clock could be read


class Toll:
    """Lets every tenant do a little work at a time.

    Args:
        charge: Called with the tenant and the CPU seconds spent.
    """

    def __init__(self, charge: Callable[[int, float], None]) -> None:
        self._charge = charge
        self._lock = threading.Lock()
        self._locks: defaultdict[int, threading.Lock] = defaultdict(threading.Lock)

    @property
    def is_shared(self) -> bool:
        """Whether several tenants have been seen."""
        return len(self._locks) > 1

    def pay_little(self, tenant: int, work: Callable[[], T]) -> T:
        """Do work of less than a millisecond; like `pay` if other tenants share the node.

        A tenant may then make a thousand such calls a second, one after another.
        """
        with self._lock:
            self._locks[tenant]  # counts the tenant: the table creates its lock
        return self.pay(tenant, work, _LITTLE_S) if self.is_shared else work()

    def pay(self, tenant: int, work: Callable[[], T], least_s: float = _LEAST_S) -> T:
        """Do something in the caller's thread when it is the tenant's turn; its next call then waits for a while.

        Args:
            tenant: Number of the tenant.
            work: What to do.
            least_s: Minimum CPU seconds to charge, for costs that cannot be measured here.
        """
        with self._lock:
            turn = self._locks[tenant]
        with turn:
            start_s = time.thread_time()
            try:
                return work()
            finally:
                spent_s = max(time.thread_time() - start_s, least_s)
                self._charge(tenant, spent_s)
                time.sleep(_PAUSE * spent_s)
