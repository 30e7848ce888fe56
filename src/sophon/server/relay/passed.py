"""The tokens that a relay is shown: it knows none of them, and passes each on to its node, which decides.

A relay has no right of its own. What it may fetch for a caller is what the node lets that caller's token read, call by
call; so it can neither show a trainer what its token does not open, nor be used by somebody who has none. A token is a
tenant of the relay once a node has accepted it. Until then it costs nobody a place, however many are tried.

Concurrency: asked by Flight on the thread of each call, and told by those that answer it.
"""

from __future__ import annotations

import hashlib
import threading

from sophon.errors import AccessError
from sophon.link.credentials import Credentials
from sophon.server.access import NEEDS_A_TOKEN, Rights, Tokens, bearer_of

_MOST_TENANTS = 1 << 12  # numbers that are given out; tokens beyond them share the last


class PassedTokens(Tokens):
    """Accepts any token, for a node to judge; none is refused if the node asks for one."""

    def __init__(self) -> None:
        super().__init__(())
        self._lock = threading.Lock()
        self._tenants: dict[bytes, int] = {}

    def __len__(self) -> int:
        return 2  # who shares the relay is not known: shares are kept as among several

    def rights_of(self, authorization: str | None) -> Rights:
        """Return the rights of a caller: whatever the node says that the token opens."""
        token = bearer_of(authorization)
        if not token:
            raise AccessError(NEEDS_A_TOKEN)
        with self._lock:
            return Rights(None, self._tenants.get(digest_of(token), 0), token)

    def accepted(self, token: str | None) -> None:
        """Give a token that a node has accepted a number of its own."""
        if token is not None:
            with self._lock:
                self._tenants.setdefault(digest_of(token), min(len(self._tenants) + 1, _MOST_TENANTS))


class Shown(Credentials):
    """What a relay shows to its node: the caller's token or none, never one of the relay's own environment."""

    __slots__ = ()

    def _current_token(self) -> str | None:
        return self._token


def digest_of(token: str) -> bytes:
    """Return what a token is remembered by."""
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()
