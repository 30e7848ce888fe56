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
from sophon.server.relay.executor import RelayExecutor
from sophon.server.relay.passed import PassedTokens
from sophon.server.relay.upstream import Upstream

WAIT_S = 60.0  # for nodes to start; after that, whatever started the relay has to restart it
_PAUSE_S = 0.5


def run_relay(
    nodes: Mapping[str, Sequence[str]],
    config: ServerConfig,
    on_ready: Callable[[Ready], None],
    *,
    tls: dict[str, str] | None = None,
    trusted: bool = False,
    wait_s: float = WAIT_S,
) -> bool:
    """Run a relay until SIGTERM or SIGINT; return whether it was SIGINT.

    Args:
        nodes: Addresses of the nodes that hold each data set, by the data set's name.
        config: How the server runs. Its access has no tokens: they are passed on to the nodes.
        on_ready: Called once requests are accepted.
        tls: Certificates for the nodes: `tls_ca`, `tls_cert` and `tls_key`.
        trusted: Whether the nodes are the operator's own.
        wait_s: How long to wait for the nodes to answer.

    Raises:
        ConfigError: A node does not answer, or the relay would expose data that only the relay can reach.
    """
    upstreams = {name: Upstream(addresses, tls, trusted=trusted) for name, addresses in nodes.items()}
    until_s = time.monotonic() + wait_s
    # A node that requires tokens protects the relay as well. Otherwise the address the relay listens on must protect
    # it.
    asking = [_asks(upstream, until_s) for upstream in upstreams.values()]
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
        return RelayExecutor(upstreams, budget, config.patience_s, config.limits, maker, tokens)

    return run_executor(executor, config, on_ready)


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
