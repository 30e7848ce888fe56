"""Worker processes of torch's own DataLoader, after an error."""

from __future__ import annotations

from typing import Any


def end_workers(batches: Any) -> None:
    """End the workers of an iterator of torch's, if it is one and has any.

    The error holds the iterator in a reference cycle. The garbage collector closes the queues before it tells the
    workers to end, and then waits five seconds for each of them.
    """
    end = getattr(batches, "_shutdown_workers", None)
    if end is not None:
        end()
