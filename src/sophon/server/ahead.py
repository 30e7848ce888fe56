"""Make the next while the last is on its way."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")
_END = object()


def one_ahead(items: Iterator[T]) -> Iterator[T]:
    """Yield items, each of which was made while the consumer was busy with the one before it.

    Concurrency: items are made in a thread of its own, one at a time, which ends with the generator.
    """
    with ThreadPoolExecutor(1, "sophon-ahead") as pool:
        future = pool.submit(next, items, _END)
        while (item := future.result()) is not _END:
            future = pool.submit(next, items, _END)
            yield item  # type: ignore[misc]  # only the end is no item
