"""Tokens at a relay: the relay knows none of them, and passes each on to its node, which decides.

A relay has no rights of its own. For each call it may fetch only what the node lets the caller's token read, so it
cannot show a trainer anything that the trainer's token does not cover, and is useless to a caller without a token. A
token becomes a tenant of the relay once a node has accepted it. Until then it takes no tenant's place, no matter how
many tokens are tried.

Concurrency: Flight asks for rights on the thread of each call; the threads that answer calls report accepted tokens.
"""

from __future__ import annotations

import hashlib
import threading

from sophon.errors import AccessError
from sophon.link.credentials import Credentials
from sophon.server.access import NEEDS_A_TOKEN, Rights, Tokens, bearer_of

_MOST_TENANTS = 1 << 12  # tenant numbers; further tokens share the last one


class PassedTokens(Tokens):
    """Accepts any token and leaves the decision to the node; refuses calls without a token if the node requires one."""

    def __init__(self) -> None:
        super().__init__(())
        self._lock = threading.Lock()
        self._tenants: dict[bytes, int] = {}

    def __len__(self) -> int:
        return 2  # the number of tenants is not known: assume several share the relay

    def rights_of(self, authorization: str | None) -> Rights:
        """Return the rights of a caller, which the node decides."""
        token = bearer_of(authorization)
        if not token:
            raise AccessError(NEEDS_A_TOKEN)
        return Rights(None, self.tenant_of(token), token)

    def tenant_of(self, token: str) -> int:
        """Return the number of a token; 0 if no node has accepted it yet."""
        with self._lock:
            return self._tenants.get(digest_of(token), 0)

    def accepted(self, token: str | None) -> None:
        """Assign a number to a token that a node has accepted."""
        if token is not None:
            with self._lock:
                self._tenants.setdefault(digest_of(token), min(len(self._tenants) + 1, _MOST_TENANTS))


class Shown(Credentials):
    """Credentials for the node: the caller's token or none, never a token from the relay's own environment."""

    __slots__ = ()

    def _current_token(self) -> str | None:
        return self._token


def digest_of(token: str) -> bytes:
    """Return the digest by which a token is known."""
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()
