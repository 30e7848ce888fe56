"""`sophon cache`: list and remove the contents of the cache folder."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from sophon.cli.options import cache_option
from sophon.cli.output import json_option, show
from sophon.errors import ConfigError
from sophon.process.caches import KINDS, Entry, entries, most_bytes, remove, sweep, unused
from sophon.process.folders import user_folder
from sophon.units import counted, format_bytes, format_seconds


@click.group()
def cache() -> None:
    """List or clear the cache folder.

    It holds lists of samples, window indexes, measured costs and results of the first ops, all of which can be
    recreated. The user's folder is bounded by SOPHON_CACHE_BYTES, 20 GB by default; the least recently used entries are
    removed first.
    """


@cache.command("list")
@cache_option
@json_option
def list_command(cache_dir: Path | None, json_target: str | None) -> None:
    """List cached entries, the most recently used first."""
    base = _folder(cache_dir)
    rows = [_row(entry) for entry in entries(base)]
    bound = most_bytes() if cache_dir is None else None
    show({"folder": str(base), "most_bytes": bound, "entries": rows}, json_target, _print)


@cache.command()
@click.argument("kinds", nargs=-1, type=click.Choice(list(KINDS)))
@click.option(
    "--older-than",
    "days",
    default=0.0,
    type=click.FloatRange(0),
    metavar="DAYS",
    help="Only entries that were not used for this many days.",
)
@cache_option
@json_option
def clear(kinds: tuple[str, ...], days: float, cache_dir: Path | None, json_target: str | None) -> None:
    """Remove cached entries: all of them, or the given KINDS.

    Entries in use by a running process are kept.
    """
    base = _folder(cache_dir)
    chosen = [entry for entry in unused(base, days) if not kinds or entry.kind in kinds]
    gone = [entry for entry in chosen if remove(entry)]
    result = {
        "folder": str(base),
        "removed": len(gone),
        "removed_bytes": sum(entry.size_bytes for entry in gone),
        "in_use": len(chosen) - len(gone),
        "leftovers": sweep(base),
    }
    show(result, json_target, _print_cleared)


def _folder(cache_dir: Path | None) -> Path:
    base = cache_dir or user_folder()
    if base is None:
        raise ConfigError("this user has no home folder, and therefore no cache folder; give one with --cache-dir")
    return base


def _row(entry: Entry) -> dict[str, Any]:
    return {
        "kind": entry.kind,
        "about": entry.about,
        "bytes": entry.size_bytes,
        "unused_s": max(time.time() - entry.used_s, 0.0),
        "path": str(entry.path),
    }


def _print(result: dict[str, Any], console: Console) -> None:
    rows, bound = result["entries"], result["most_bytes"]
    most = "" if bound is None else f" of {format_bytes(bound)}"
    total = format_bytes(sum(row["bytes"] for row in rows))
    table = Table(
        title=f"{result['folder']}: {counted(len(rows), 'entry', 'entries')}, {total}{most}", title_justify="left"
    )
    for name in ("what", "of", "size", "unused for"):
        table.add_column(name, justify="right" if name in ("size", "unused for") else "left", overflow="fold")
    for row in rows:
        about = row["about"].replace("\0", " ") or Path(row["path"]).name  # keys have parts, divided by NUL
        table.add_row(KINDS[row["kind"]], about, format_bytes(row["bytes"]), format_seconds(row["unused_s"]))
    console.print(table, highlight=False)


def _print_cleared(result: dict[str, Any], console: Console) -> None:
    removed = counted(result["removed"], "entry", "entries")
    parts = [f"removed {removed}, {format_bytes(result['removed_bytes'])}, from {result['folder']}"]
    if result["leftovers"]:
        parts.append(f"{result['leftovers']} files left by killed processes")
    if result["in_use"]:
        parts.append(f"{result['in_use']} are in use or belong to others, and were kept")
    console.print("; ".join(parts), highlight=False, soft_wrap=True)
