"""A window in place of the file it was cut from."""

from __future__ import annotations

from collections.abc import Callable


class Windowed(bytes):
    """A window payload (of the codec `window`) that replaces the file it was cut from.

    Attributes:
        file_bytes: Size of the file.
        read_bytes: How much of it was read.
        whole: Returns the file, in case it is needed after all.
    """

    file_bytes: int = 0
    read_bytes: int = 0
    whole: Callable[[], bytes]

    @classmethod
    def of(cls, payload: bytes, file_bytes: int, read_bytes: int, whole: Callable[[], bytes]) -> Windowed:
        """Return a window with the metadata of its file."""
        made = cls(payload)
        made.file_bytes, made.read_bytes, made.whole = file_bytes, read_bytes, whole
        return made
