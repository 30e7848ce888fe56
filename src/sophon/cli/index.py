"""`sophon index`: record where windows can be cut from the files of a data set, in a separate file."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.console import Console

from sophon.cli.options import cache_option, new_file
from sophon.cli.output import json_option, show
from sophon.cli.progress import count_bar
from sophon.errors import ConfigError
from sophon.store.address import Address
from sophon.units import format_bytes

if TYPE_CHECKING:
    from sophon.store import Store


@click.command()
@click.argument("path")
@click.option(
    "--out",
    type=click.Path(path_type=Path, dir_okay=False),
    callback=new_file,
    help="File to write; by default next to PATH, or in the cache folder if PATH's folder is not writable.",
)
@cache_option
@click.option(
    "--threads",
    default=os.cpu_count() or 1,
    show_default="all cores",
    type=click.IntRange(1, 256),
    help="Samples to index at once.",
)
@click.option(
    "--digests",
    type=click.Path(path_type=Path, dir_okay=False),
    callback=new_file,
    help="Also write the digests of all files to this file, so that trainers can check what nodes send.",
)
@json_option
def index(
    path: str,
    out: Path | None,
    cache_dir: Path | None,
    threads: int,
    digests: Path | None,
    json_target: str | None,
) -> None:
    """Index JPEG files, to cut windows from them faster.

    A server that finds the indexes of PATH cuts windows at full speed from its first sample. Files that were indexed
    before, with the same size and time, are not read again.

    PATH may be the address of an object store, such as s3://bucket/train: the index is then written next to the data,
    and only the rows that a crop needs are read. An interrupted run continues where it stopped.

    For volumes with labels (PATH?images=FOLDER&labels=FOLDER), the foreground of each label is indexed for balanced
    crops: a small file per sample, in the folder "foreground" of PATH unless --out names another.
    """
    from sophon.codec.window import available
    from sophon.codec.window.sidecar import place_to_write, write_sidecar  # Arrow takes a moment to load
    from sophon.store import open_store

    if _has_volumes(path):
        _index_volumes(path, out, cache_dir, threads, json_target)
        return
    if not available():
        raise ConfigError("the window extension was not built here; install a C compiler, then reinstall sophon")
    with count_bar("listing") as report:
        store = open_store(path, cache_dir=cache_dir, on_progress=report)
    if isinstance(store.path, Address):
        _index_objects(store, out, cache_dir, json_target)
        return
    target = place_to_write(store.path, cache_dir) if out is None else out
    with store, count_bar("indexing") as report:
        written = write_sidecar(store, target, threads, report)
    if digests is not None:
        from sophon.store.digests import write_digests

        with open_store(path, cache_dir=cache_dir) as store, count_bar("digests") as report:
            write_digests(store, digests, threads, report)
    result = {
        "path": str(written.path),
        "samples": written.samples,
        "kept": written.kept,
        "without_index": written.without,
        "unreadable": written.unreadable,
        "index_bytes": written.index_bytes,
        "index_share": written.index_bytes / written.sample_bytes if written.sample_bytes else 0.0,
    }
    show(result, json_target, _print)


def _has_volumes(path: str) -> bool:
    from sophon.store.options import split_options

    return "labels" in split_options(path)[1]


def _index_volumes(path: str, out: Path | None, cache_dir: Path | None, threads: int, json_target: str | None) -> None:
    """Index the foreground of label volumes."""
    from sophon.codec.volumes.indexing import write_foreground
    from sophon.store import open_store
    from sophon.store.fields import FOREGROUND

    with count_bar("listing") as report:
        store = open_store(path, cache_dir=cache_dir, on_progress=report)
    assert isinstance(store.path, Path)
    with store, count_bar("indexing") as report:
        written = write_foreground(store, store.path / FOREGROUND if out is None else out, threads, report)
    result = {
        "path": str(written.folder),
        "samples": written.samples,
        "kept": written.kept,
        "without_index": 0,
        "unreadable": written.unreadable,
        "index_bytes": written.index_bytes,
        "index_share": written.index_bytes / written.sample_bytes if written.sample_bytes else 0.0,
    }
    show(result, json_target, _print)


def _index_objects(store: Store, out: Path | None, cache_dir: Path | None, json_target: str | None) -> None:
    """Index the objects of a bucket, so that only the rows that a crop needs are read."""
    from sophon.codec.window.object_index import write_index

    with store, count_bar("indexing") as report:
        written = write_index(store, out, cache_dir, on_progress=report)
    result = {
        "path": written.place,
        "samples": written.samples,
        "kept": written.kept,
        "without_index": written.without,
        "unreadable": written.unreadable,
        "index_bytes": written.index_bytes,
        "index_share": written.index_bytes / written.sample_bytes if written.sample_bytes else 0.0,
    }
    show(result, json_target, _print)


def _print(result: dict[str, Any], console: Console) -> None:
    parts = [f"{result['samples']:,} samples, {format_bytes(result['index_bytes'])} of indexes"]
    parts.append(f"{result['index_share']:.1%} of their files")
    for name, words in {"kept": "as before", "without_index": "without an index", "unreadable": "unreadable"}.items():
        if result[name]:
            parts.append(f"{result[name]:,} {words}")
    console.print(f"wrote {result['path']}: {', '.join(parts)}", highlight=False, soft_wrap=True)
