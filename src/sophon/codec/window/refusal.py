"""Errors raised when no window can be cut from a file, or when it would be the whole file."""

from __future__ import annotations

from sophon.errors import Error, OpError


class NotWindowable(Error):  # noqa: N818 - an answer, not a fault: the caller falls back to a smaller cut
    """No window that is guaranteed to have the same pixels can be cut from this file.

    Args:
        reason: The reason, as a clause about the file or as a noun phrase.
    """

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(f"no window: {reason}; send the whole file instead")

    def __reduce__(self) -> tuple[type[NotWindowable], tuple[str]]:
        return (NotWindowable, (self.reason,))


class WholeNeeded(OpError):  # noqa: N818 - as above
    """A pass needs all of a file, so there is nothing to leave out."""
