"""The user's own folders, where the platform keeps them, and the key of what is this user's own.

What lies in a folder that others can write to may be theirs: a forged list of files would have this process read, or
serve, whatever it names. So nothing is kept in such a folder and nothing is read from it.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import stat as stat_flags
from pathlib import Path

from platformdirs import user_cache_path

_KEY_FILE = "SOPHON_KEY_FILE"  # names the file with the key, for a service without a home or for several users
_KEY_BYTES = 32
_OTHERS_WRITE = stat_flags.S_IWGRP | stat_flags.S_IWOTH


def user_folder() -> Path | None:
    """Return this project's folder in the user's cache, which may not exist yet; None if the user has no home."""
    try:
        return user_cache_path("sophon")
    except RuntimeError:
        return None  # no variable names a folder, and the user has no home


def make_private(folder: Path) -> None:
    """Make a folder that only this user can write to, if there is none yet.

    Raises:
        OSError: It cannot be made.
    """
    for parent in reversed(folder.parents):
        if not parent.is_dir():
            parent.mkdir(mode=0o700, exist_ok=True)
    folder.mkdir(mode=0o700, exist_ok=True)


def not_private(path: Path) -> str | None:
    """Return why a folder or file may hold what others have put there; None if only this user and root can do that.

    Raises:
        OSError: It cannot be examined.
    """
    stat = path.stat()
    if stat.st_uid not in (0, os.geteuid()):
        return f"{path} belongs to another user (number {stat.st_uid}); use a folder of your own"
    if stat.st_mode & _OTHERS_WRITE:
        return f"others may write to {path}; take that right away with `chmod go-w {path}` and look at what is in it"
    return None


def secret_key() -> bytes | None:
    """Return the key with which this user seals files, made when it is first asked for; None if there is no place.

    A seal tells what this user has made from what others have. The key is in the user's cache folder, or in the file
    that SOPHON_KEY_FILE names.
    """
    named, folder = os.environ.get(_KEY_FILE), user_folder()
    path = Path(named) if named else None if folder is None else folder / "key"
    if path is None:
        return None
    with contextlib.suppress(OSError):
        make_private(path.parent)
        if not_private(path.parent) is not None:
            return None
        with contextlib.suppress(FileExistsError):
            made = path.with_name(f".{secrets.token_hex(8)}.key")
            made.touch(mode=0o600, exist_ok=False)
            made.write_bytes(secrets.token_bytes(_KEY_BYTES))
            try:
                os.link(made, path)  # which fails if there is one already; nobody ever sees half a key
            finally:
                made.unlink()
        key = path.read_bytes() if not_private(path) is None else b""
        return key if len(key) == _KEY_BYTES else None
    return None
