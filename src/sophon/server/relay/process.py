"""The life of a relay: it checks its nodes, then listens like any other server."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from sophon.errors import ConfigError, RetryableError
from sophon.server.budget import CpuBudget
from sophon.server.journal import LOG
from sophon.server.maker import Maker
from sophon.server.process import Ready, ServerConfig, run_executor
from sophon.server.relay.behind import Behind
from sophon.server.relay.executor import RelayExecutor
from sophon.server.relay.passed import PassedTokens
from sophon.server.relay.upstream import Upstream

WAIT_S = 60.0  # for nodes to start; after that, whatever started the relay has to restart it
_PAUSE_S = 0.5


def run_relay(
    behind: Behind,
    config: ServerConfig,
    on_ready: Callable[[Ready], None],
    *,
    tls: dict[str, str] | None = None,
    trusted: bool = False,
    wait_s: float = WAIT_S,
) -> bool:
    """Run a relay until SIGTERM or SIGINT; return whether it was SIGINT.

    Args:
        behind: The nodes that the relay fetches from.
        config: How the server runs. Its access has no tokens: they are passed on to the nodes.
        on_ready: Called once requests are accepted.
        tls: Certificates for the nodes: `tls_ca`, `tls_cert` and `tls_key`.
        trusted: Whether the nodes are the operator's own.
        wait_s: How long to wait for the nodes to answer.

    Raises:
        ConfigError: A node does not answer, no address can be used, or the relay would expose data that only the relay
            can reach.
    """
    if behind.needs_tokens:
        upstreams = _usable(behind.nodes, tls, trusted)
    else:
        upstreams = {name: Upstream(addresses, tls, trusted=trusted) for name, addresses in behind.nodes.items()}
    until_s = time.monotonic() + wait_s
    # A node that requires tokens protects the relay as well. Otherwise the address the relay listens on must protect
    # it.
    asking = [] if behind.needs_tokens else [_asks(upstream, until_s) for upstream in upstreams.values()]
    tokens: PassedTokens | None = None
    if all(asking):
        tokens = PassedTokens()
        for upstream in upstreams.values():
            upstream.judge(tokens)
        config = replace(config, access=replace(config.access, tokens=tokens))
    warning = config.access.check_place(config.host)
    if warning is not None:
        LOG.warning("%s", warning, extra={"event": "exposed"})

    def executor(budget: CpuBudget, maker: Maker) -> RelayExecutor:
        return RelayExecutor(upstreams, budget, config.patience_s, config.limits, maker, tokens, behind.readers)

    return run_executor(executor, config, on_ready)


def _usable(nodes: Mapping[str, Sequence[str]], tls: dict[str, str] | None, trusted: bool) -> dict[str, Upstream]:
    """Return the nodes of each data set, without the addresses that cannot be used."""
    found: dict[str, Upstream] = {}
    problem = "none were announced"
    for name, addresses in nodes.items():
        usable = []
        for address in addresses:
            try:
                Upstream([address], tls, trusted=trusted).close()
                usable.append(address)
            except ConfigError as error:
                problem = f"{address}: {error}"
                LOG.warning("left out: %s", problem, extra={"event": "relays"})
        if usable:
            found[name] = Upstream(usable, tls, trusted=trusted)
    if not found:
        raise ConfigError(f"there is no node whose address can be used: {problem}")
    return found


def _asks(upstream: Upstream, until_s: float) -> bool:
    """Wait until a node answers; return whether it requires tokens."""
    while True:
        try:
            return upstream.asks_for_tokens()
        except RetryableError as error:
            if time.monotonic() >= until_s:
                raise ConfigError(
                    f"{upstream.address} does not answer ({error}); start `sophon serve` there, then start this relay "
                    "again"
                ) from error
        time.sleep(_PAUSE_S)
