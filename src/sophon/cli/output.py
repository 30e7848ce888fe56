"""Shared by all commands: JSON to a file or to standard output."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import click
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from sophon.errors import printable

STDOUT = "-"


class _PlainConsole(Console):
    """A console that escapes control characters, since names and messages come from others."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterator[Segment]:
        """Yield rich's segments, with control characters in their text escaped."""
        for part in super().render(renderable, options):
            yield part if part.control else Segment(printable(part.text), part.style)


def console_for(**settings: Any) -> Console:
    """Return a console that escapes control characters in text from nodes, files or tenants."""
    return _PlainConsole(**{"markup": False, **settings})  # brackets in a name are not markup


_Command = TypeVar("_Command", bound=Callable[..., Any])


def json_option(command: _Command) -> _Command:
    """Add ``--json [FILE]``: on its own it prints JSON instead of tables, with a file it writes JSON there as well."""
    return click.option(
        "--json",
        "json_target",
        is_flag=False,
        flag_value=STDOUT,
        default=None,
        metavar="[FILE]",
        callback=_checked,
        help="Print JSON instead of text, or write it to FILE.",
    )(command)


def _checked(_ctx: click.Context, _param: click.Parameter, value: str | None) -> str | None:
    # Before minutes are spent on something that could not be written.
    if value is not None and value != STDOUT:
        if Path(value).is_dir():
            raise click.BadParameter(f"{value} is a folder; give a file.")
        if not Path(value).absolute().parent.is_dir():
            raise click.BadParameter(f"there is no folder {Path(value).parent}; create it, or choose another place.")
    return value


def write_json(target: str, data: object) -> None:
    """Write `data` to the file `target`, or to standard output for ``-``; infinite numbers become null."""
    text = json.dumps(_plain(data), indent=2, allow_nan=False)
    if target == STDOUT:
        click.echo(text)
        return
    try:
        Path(target).write_text(text + "\n", encoding="utf-8")
    except OSError as error:
        raise click.ClickException(f"{target}: cannot be written ({error.strerror}).") from error


def show(result: dict[str, Any], json_target: str | None, render: Callable[[dict[str, Any], Console], None]) -> None:
    """Print a result as tables, and write it to the ``--json`` file; JSON on standard output replaces the tables."""
    if json_target is not None:
        write_json(json_target, result)
    if json_target != STDOUT:
        render(result, console_for())


def _plain(data: object) -> object:
    if isinstance(data, dict):
        return {key: _plain(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [_plain(value) for value in data]
    if isinstance(data, float) and not math.isfinite(data):
        return None
    return data
