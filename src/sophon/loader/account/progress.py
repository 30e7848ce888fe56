"""A progress bar on the terminal for the batches of an epoch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn


def with_bar(batches: Iterator[Any], steps: int, done: int, title: str, note: Callable[[], str], console: Any) -> Any:
    """Yield batches and show the progress of the epoch.

    Args:
        batches: What to iterate over.
        steps: Number of batches in the whole epoch.
        done: How many of them came before the first one yielded here.
        title: Text next to the bar.
        note: Returns further text to show.
        console: A `rich.console.Console`; None for the error stream, so that a program's own output stays clean.
    """
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    bar = Progress(*columns, TextColumn("{task.fields[note]}"), console=console or Console(stderr=True))
    with bar:
        task = bar.add_task(title, total=steps, completed=done, note="")
        for number, batch in enumerate(batches, done):
            bar.update(task, completed=number, note=note())
            yield batch
        bar.update(task, completed=steps, note=note())
