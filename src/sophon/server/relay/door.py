"""The door of a relay: tokens that the relay has not seen yet are shown to its nodes, a few at a time.

Whoever can reach a relay can send it tokens. Each new one costs a connection to a node, and a node blocks addresses
that send too many wrong tokens; here that would be the relay's own address. So only a few refusals per caller address
are allowed within a while. After that, unknown tokens from the address are not shown to any node, and since none of its
calls was admitted, its connections are treated as a stranger's (`server.guard.bouncer`). Tokens that nodes have
accepted pass immediately.

Concurrency: called by the threads of all calls. Callers with the same token wait for one answer.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

from cachetools import TTLCache

from sophon.errors import AccessError, RetryableError
from sophon.server.access import Rights
from sophon.server.relay.passed import PassedTokens, digest_of

_MOST_REFUSED = 16  # per address, without a pause of `_MEMORY_S`: an eighth of what a node allows one address in 2 s
_MEMORY_S = 10.0
_MOST_WAITING = 256  # calls from one address that wait for a node's answer: enough for the ranks of a large machine
_ADDRESSES, _TOKENS = 4096, 4096  # how many are remembered


class Door:
    """Decides whether to admit a caller of a relay.

    Args:
        tokens: Tokens that nodes have accepted.
        ask: Shows a token to the nodes; raises `AccessError` if none accepts it.
    """

    def __init__(self, tokens: PassedTokens, ask: Callable[[str], None]) -> None:
        self._tokens = tokens
        self._ask = ask
        self._lock = threading.Lock()
        self._refused: TTLCache[bytes, str] = TTLCache(_TOKENS, _MEMORY_S)
        self._refusals: TTLCache[str, int] = TTLCache(_ADDRESSES, _MEMORY_S)
        self._waiting: Counter[str] = Counter()
        self._turns: dict[bytes, tuple[threading.Lock, int]] = {}

    def admitted(self, rights: Rights, host: str) -> Rights:
        """Return the rights of a caller, as a tenant of the relay.

        Args:
            rights: The caller's rights, with its token.
            host: The caller's address.

        Raises:
            AccessError: No node accepts the token.
            RetryableError: The nodes do not answer, or the address has shown too many wrong tokens lately.
        """
        token = rights.token
        if token is None or rights.tenant:
            return rights
        name = digest_of(token)
        with self._lock:
            self._check_known(name)
            if self._refusals.get(host, 0) >= _MOST_REFUSED or self._waiting[host] >= _MOST_WAITING:
                raise RetryableError(
                    f"this relay does not check tokens from your address for {_MEMORY_S:g} s: too many were wrong, "
                    "or are being checked"
                )
            self._waiting[host] += 1
            turn, users = self._turns.get(name, (threading.Lock(), 0))
            self._turns[name] = turn, users + 1
        try:
            with turn:
                self._find_out(token, name, host)
        finally:
            self._leave(name, host)
        return replace(rights, tenant=self._tokens.tenant_of(token))

    def _find_out(self, token: str, name: bytes, host: str) -> None:
        with self._lock:
            self._check_known(name)
        if self._tokens.tenant_of(token):
            return  # another call has found out in the meantime
        try:
            self._ask(token)
        except AccessError as error:
            with self._lock:
                self._refused[name] = str(error)
                self._refusals[host] = self._refusals.get(host, 0) + 1
            raise

    def _check_known(self, name: bytes) -> None:
        said = self._refused.get(name)
        if said is not None:
            raise AccessError(said)

    def _leave(self, name: bytes, host: str) -> None:
        with self._lock:
            self._waiting[host] -= 1
            if not self._waiting[host]:
                del self._waiting[host]
            turn, users = self._turns.pop(name)
            if users > 1:
                self._turns[name] = turn, users - 1
