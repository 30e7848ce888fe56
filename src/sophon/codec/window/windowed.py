"""A window that stands in for the file that it was cut from."""

from __future__ import annotations

from collections.abc import Callable


class Windowed(bytes):
    """A payload of the codec `window` that stands in for the file that it was cut from.

    Attributes:
        file_bytes: Size of the file.
        read_bytes: How many bytes of the file were read.
        whole: Reads the whole file, in case it is needed after all.
    """

    file_bytes: int = 0
    read_bytes: int = 0
    whole: Callable[[], bytes]

    @classmethod
    def of(cls, payload: bytes, file_bytes: int, read_bytes: int, whole: Callable[[], bytes]) -> Windowed:
        """Return a window with these sizes and a way to read the whole file."""
        made = cls(payload)
        made.file_bytes, made.read_bytes, made.whole = file_bytes, read_bytes, whole
        return made
