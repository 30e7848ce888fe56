"""Lists the objects below an address, many folders at once, and records the progress.

A server lists a folder sequentially, a thousand names at a time; so folders are collected, level by level, until there
are enough to list in parallel. Results are passed on in pieces, so that an interrupted listing can continue: each piece
says up to which name its folder has been listed.

Concurrency: one thread for each folder being listed; pieces are passed on in the calling thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Final

from sophon.store.bucket.client import Client, Object

AT_ONCE: Final = 32
_ENOUGH: Final = 64  # folders: two per thread, so that threads rarely wait for the last one
_DEEPEST: Final = 4  # levels searched for more folders
_PIECE: Final = 20_000  # objects


@dataclass(frozen=True)
class Piece:
    """Some of the objects below one folder.

    Args:
        folder: The folder, as a prefix of the objects' names.
        objects: Objects in the order of their names, after those of earlier pieces.
        last: Name of the last object so far; "" if there is none.
        is_done: Whether these are the last objects of the folder.
    """

    folder: str
    objects: list[Object]
    last: str
    is_done: bool


@dataclass(frozen=True)
class Known:
    """How far a folder has already been listed."""

    last: str
    is_done: bool


def walk(
    client: Client,
    prefix: str,
    known: Mapping[str, Known] | None = None,
    first_level: tuple[list[str], list[Object]] | None = None,
    on_folders: Callable[[list[str]], None] | None = None,
) -> Iterator[Piece]:
    """List all objects below a prefix.

    Args:
        client: Client of the bucket.
        prefix: Prefix with a slash at its end, or "" for the whole bucket.
        known: Folders listed earlier, fully or in part; what was listed is not listed again.
        first_level: Folders and objects directly below the prefix, if known.
        on_folders: Called with all folders that are listed separately.
    """
    folders, loose = _folders(client, first_level or client.level(prefix))
    if on_folders is not None:
        on_folders(folders)
    yield Piece("", loose, "", True)
    known = known or {}
    left = [folder for folder in folders if not (folder in known and known[folder].is_done)]

    def piece(folder: str, pages: Iterator[list[Object]]) -> tuple[Piece, Iterator[list[Object]]]:
        found: list[Object] = []
        for page in pages:
            found += page
            if len(found) >= _PIECE:
                return Piece(folder, found, found[-1].key, False), pages
        return Piece(folder, found, found[-1].key if found else "", True), pages

    with ThreadPoolExecutor(min(AT_ONCE, max(len(left), 1)), "sophon-list") as pool:
        under_way: set[Future[tuple[Piece, Iterator[list[Object]]]]] = {
            pool.submit(piece, folder, client.objects(folder, known[folder].last if folder in known else None))
            for folder in left
        }
        try:
            while under_way:
                ended, under_way = wait(under_way, return_when=FIRST_COMPLETED)
                for future in ended:
                    found, pages = future.result()
                    if not found.is_done:
                        under_way.add(pool.submit(piece, found.folder, pages))
                    yield found
        finally:
            for future in under_way:
                future.cancel()


def _folders(client: Client, level: tuple[list[str], list[Object]]) -> tuple[list[str], list[Object]]:
    """Return prefixes that together cover everything below a prefix, and the objects outside all of them."""
    folders, loose = [f"{name.rstrip('/')}/" for name in level[0]], list(level[1])
    for _ in range(_DEEPEST):
        if not folders or len(folders) >= _ENOUGH:
            break
        with ThreadPoolExecutor(min(AT_ONCE, len(folders)), "sophon-list") as pool:
            levels = list(pool.map(client.level, folders))
        deeper = [f"{name.rstrip('/')}/" for below, _ in levels for name in below]
        if not deeper:  # these contain only objects, which are known now
            return [], loose + [found for _, objects in levels for found in objects]
        loose += [found for _, objects in levels for found in objects]
        folders = deeper
    return folders, loose
