"""Runs user code with Python's, NumPy's and torch's global generators seeded, and restores them afterwards.

Concurrency: the global generators are shared by all threads of a process, so code that seeds them holds one lock until
they are restored. A thread that draws from them without that lock in the meantime gets numbers from the seeded stream:
run such code in the iterating thread or in a worker process. Limits: generators that the code creates itself, and those
of accelerators, are not touched.
"""

from __future__ import annotations

import os
import random
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np


class _Turn:
    """The lock under which seeded code takes turns; replaced in a forked child, where its holder does not exist."""

    def __init__(self) -> None:
        self.renew()
        os.register_at_fork(after_in_child=self.renew)

    def renew(self) -> None:
        self.lock = threading.RLock()  # seeded code may itself run a pipeline


_turn = _Turn()


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed the global generators for a block, one thread at a time, and restore them however the block ends.

    Args:
        seed: 64 random bits.
    """
    torch: Any = sys.modules.get("torch")  # already loaded by any code that draws from it
    with _turn.lock:
        python_state, numpy_state = random.getstate(), np.random.get_state()
        torch_state = None if torch is None else torch.random.get_rng_state()
        random.seed(seed)
        np.random.seed(seed & 0xFFFFFFFF)
        if torch is not None:
            torch.random.default_generator.manual_seed(seed & 0x7FFFFFFFFFFFFFFF)
        try:
            yield
        finally:
            random.setstate(python_state)
            np.random.set_state(numpy_state)
            if torch is not None:
                torch.random.set_rng_state(torch_state)
