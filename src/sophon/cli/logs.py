"""Shows the package's logs and warnings on the error stream: lines for people, or JSON for machines.

A library is silent unless the program sets up logging; the command is such a program.
"""

from __future__ import annotations

import json
import logging
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

import click

from sophon.errors import one_line, printable


def say(text: str, **settings: Any) -> None:
    """Print a line that may contain untrusted text, with control characters escaped."""
    click.echo(printable(text), **settings)


INTERRUPTED = 130  # exit code after Ctrl-C, as in a shell
_ROOT = logging.getLogger("sophon")
_DATED = "%Y-%m-%d %H:%M:%S"


class _Handler(logging.Handler):
    """Writes records to whatever `sys.stderr` is at that moment."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write one line."""
        say(self.format(record), file=sys.stderr)


class _Short(logging.Formatter):
    """Formats records like the command's other lines."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line for a log record."""
        level = "warning: " if record.levelno >= logging.WARNING else ""
        return f"sophon: {level}{record.getMessage()}"


class _Dated(logging.Formatter):
    """One line per record, with its time: no name in it can look like another record."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s sophon: %(levelname)s: %(message)s", _DATED)

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's name; a traceback comes after it
        """Return the line for a log record."""
        return one_line(super().formatMessage(record))


class _Json(logging.Formatter):
    """One JSON object per line: time, level, event, message, and the facts of the event."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line for a log record."""
        told: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "event": getattr(record, "event", record.name),
            "message": record.getMessage(),
        }
        return json.dumps(told | getattr(record, "fields", {}))


@contextmanager
def shown() -> Iterator[None]:
    """Show the package's log warnings and Python's warnings while a command runs."""
    handler = _Handler()
    handler.setFormatter(_Short())
    _ROOT.addHandler(handler)
    before = warnings.showwarning
    warnings.showwarning = _show_warning
    try:
        yield
    finally:
        warnings.showwarning = before
        _ROOT.removeHandler(handler)
        _ROOT.setLevel(logging.NOTSET)


def set_format(kind: str) -> None:
    """Show all records from now on, for a long-running program: with the time, or as JSON.

    Args:
        kind: "text" or "json".
    """
    _ROOT.setLevel(logging.INFO)
    for handler in _ours():
        handler.setFormatter(_Json() if kind == "json" else _Dated())


def tell(event: str, text: str, **fields: Any) -> None:
    """Print what a command is doing on standard output, or log it if the log is JSON."""
    if any(isinstance(handler.formatter, _Json) for handler in _ours()):
        _ROOT.info("%s", text, extra={"event": event, "fields": fields})
    else:
        say(f"sophon: {text}")


def _ours() -> list[_Handler]:
    return [handler for handler in _ROOT.handlers if isinstance(handler, _Handler)]


def _show_warning(message: Warning | str, category: type[Warning], *_: Any, **__: Any) -> None:
    # The source line of a warning is of no use to someone who runs a command.
    _ROOT.warning("%s", message, extra={"event": category.__name__})
