"""Progress bars, on standard error so that the output of a command can be piped."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.progress import BarColumn, Progress, ProgressColumn, TextColumn, TimeElapsedColumn

from sophon.cli.output import console_for


def bars(*columns: ProgressColumn, transient: bool = True) -> Progress:
    """Return bars for a terminal; if standard error is a file or a pipe, nothing is written to it."""
    console = console_for(stderr=True)
    return Progress(*columns, console=console, transient=transient, disable=not console.is_terminal)


@contextmanager
def steps_bar(title: str) -> Iterator[Callable[[str, int, int], None]]:
    """Show which of several steps is running; yield the function that moves the bar."""
    count = TextColumn("{task.completed:.0f}/{task.total:.0f}")
    with bars(TextColumn("{task.description:<28}", markup=False), BarColumn(), count, TimeElapsedColumn()) as progress:
        task = progress.add_task(title, total=1)
        yield lambda name, number, count: progress.update(task, description=name, completed=number, total=count)


@contextmanager
def count_bar(title: str) -> Iterator[Callable[[int, int | None], None]]:
    """Show how many items are done, and the total if known; yield the function that moves the bar."""
    count = TextColumn("{task.completed:,.0f}")
    with bars(TextColumn("{task.description}", markup=False), BarColumn(), count, TimeElapsedColumn()) as progress:
        task = progress.add_task(title, total=None)
        yield lambda done, total: progress.update(task, completed=done, total=total)
