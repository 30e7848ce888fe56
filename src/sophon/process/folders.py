"""The user's folders, as the platform defines them, and the key with which the user's files are sealed.

If others can write to a folder, they may have put files there: a forged list of samples could make this process read,
or serve, any file it names. So nothing is kept in such a folder and nothing is read from it.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import stat as stat_flags
from pathlib import Path

from platformdirs import user_cache_path

_KEY_FILE = "SOPHON_KEY_FILE"  # names the key file, for a service without a home folder or for several users
_KEY_BYTES = 32
_OTHERS_WRITE = stat_flags.S_IWGRP | stat_flags.S_IWOTH


def user_folder() -> Path | None:
    """Return this project's cache folder, which may not exist yet; None if the user has no home folder."""
    try:
        return user_cache_path("sophon")
    except RuntimeError:
        return None  # no variable names a folder, and the user has no home folder


def make_private(folder: Path) -> None:
    """Make a folder that only this user can write to, if there is none yet.

    Raises:
        OSError: The folder cannot be created.
    """
    for parent in reversed(folder.parents):
        if not parent.is_dir():
            parent.mkdir(mode=0o700, exist_ok=True)
    folder.mkdir(mode=0o700, exist_ok=True)


def not_private(path: Path) -> str | None:
    """Return why others could have changed a folder or file; None if only this user and root can.

    Raises:
        OSError: The path cannot be examined.
    """
    stat = path.stat()
    if stat.st_uid not in (0, os.geteuid()):
        return f"{path} belongs to another user (uid {stat.st_uid}); use a folder that you own"
    if stat.st_mode & _OTHERS_WRITE:
        return f"other users can write to {path}; run `chmod go-w {path}` and check what is in it"
    return None


def secret_key() -> bytes | None:
    """Return the key with which this user seals files, created on first use; None if there is no place for it.

    A seal shows that a file was written by this user. The key is in the user's cache folder, or in the file that
    SOPHON_KEY_FILE names.
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
                os.link(made, path)  # fails if a key exists already; no reader ever sees half a key
            finally:
                made.unlink()
        key = path.read_bytes() if not_private(path) is None else b""
        return key if len(key) == _KEY_BYTES else None
    return None
