"""`sophon relay`: fetch from storage nodes, run more ops, send on to trainers."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import click

from sophon.cli.access import relay_access_options
from sophon.cli.limits import limit_options, limits_from
from sophon.cli.logs import INTERRUPTED, set_format, tell
from sophon.cli.options import announce_options
from sophon.errors import ConfigError

if TYPE_CHECKING:
    from sophon.server.relay.behind import Behind

_NAMED = re.compile(r"([^=/:]+)=(.+://.+)")
_FILE = click.Path(path_type=Path, dir_okay=False)


@click.command()
@click.argument("addresses", nargs=-1, metavar="[NAME=]ADDRESS…")
@click.option(
    "--announced",
    type=_FILE,
    help="JSON file with the addresses that nodes announced, which a registry writes for the relays that it runs.",
)
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option(
    "--port",
    default=7078,
    show_default=True,
    type=click.IntRange(0, 65535),
    help="Port to listen on; 0 for any free one.",
)
@click.option(
    "--cores",
    default=float(os.cpu_count() or 1),
    show_default="all",
    type=click.FloatRange(0, 4096),
    help="CPU cores for ops, such as 1.5. Receiving and sending are not counted and take priority.",
)
@click.option(
    "--patience",
    default=30.0,
    show_default=True,
    type=click.FloatRange(0),
    help="Seconds that a sample may wait for a core before it is sent on unprocessed.",
)
@relay_access_options
@click.option("--node-ca", type=_FILE, help="PEM file of the authority that signed the nodes' certificates.")
@click.option("--node-cert", type=_FILE, help="PEM file of a certificate to show to the nodes (mutual TLS).")
@click.option("--node-key", type=_FILE, help="PEM file of the certificate's key.")
@click.option("--trusted", is_flag=True, help="Trust the nodes: do not check replies before reading them.")
@click.option(
    "--isolation",
    type=click.Choice(["process", "thread"]),
    default="process",
    show_default=True,
    help="Where ops run: in child processes, which contain crashes, or in threads, which cost less.",
)
@click.option(
    "--import", "modules", multiple=True, metavar="MODULE", help="Python module that registers ops; may be repeated."
)
@limit_options
@click.option(
    "--log-format", type=click.Choice(["text", "json"]), default="text", show_default=True, help="Format of the log."
)
@click.option(
    "--metrics-port",
    type=click.IntRange(0, 65535),
    help="HTTP port for /health and /metrics; 0 for any free one, no HTTP if left out.",
)
@click.option(
    "--metrics-host", default="127.0.0.1", show_default=True, help="Address to serve /health and /metrics on."
)
@click.option("--ready-file", type=_FILE, help="File to write when ready: JSON with url, port and pid.")
@click.option("--wait", "wait_s", default=60.0, show_default=True, help="Seconds to wait for the nodes to start.")
@announce_options("relay")
@click.option("--debug", is_flag=True, help="Include tracebacks and local paths in the errors sent to trainers.")
def relay(
    addresses: tuple[str, ...],
    announced: Path | None,
    host: str,
    port: int,
    cores: float,
    patience: float,
    isolation: str,
    modules: tuple[str, ...],
    metrics_port: int | None,
    metrics_host: str,
    ready_file: Path | None,
    wait_s: float,
    **more: Any,
) -> None:
    """Run ops for trainers on samples from storage nodes.

    ADDRESS is the address of a data set on a node, such as grpc://node:7077/train. Addresses with the same name are
    copies, one of which is asked at a time. A relay holds no data and has no rights: it passes each trainer's token on
    to the node.
    """
    from sophon.server.access import Access  # Flight takes a moment to load
    from sophon.server.announcing import Announcing
    from sophon.server.process import Ready, ServerConfig, import_modules
    from sophon.server.relay.process import run_relay

    set_format(more.pop("log_format"))
    behind = _behind(addresses, announced)
    nodes = behind.nodes
    import_modules(modules)
    access = Access(None, more["tls_cert"], more["tls_key"], more["tls_client_ca"], more["insecure"])
    config = ServerConfig(
        host,
        port,
        cores,
        metrics_port=metrics_port,
        ready_file=ready_file,
        patience_s=patience,
        access=access,
        limits=limits_from(more),
        isolation=isolation,
        modules=modules,
        metrics_host=metrics_host,
        debug=more["debug"],
        announcing=Announcing(more["registry"], more["advertise"], role="relay", names=tuple(nodes))
        if more["registry"]
        else None,
    )

    def on_ready(ready: Ready) -> None:
        for name, places in nodes.items():
            at = f"{ready.url}/{name}"
            tell("relaying", f"relaying {', '.join(places)} at {at}", dataset=name, url=at)
        if ready.metrics_port is not None:
            at = f"http://{metrics_host}:{ready.metrics_port}/metrics"
            tell("metrics", f"metrics at {at}", url=at)
        tell("ready", f"ready, {cores:g} core{'' if cores == 1 else 's'} for ops", cores=cores, pid=ready.pid)

    given = {"tls_ca": more["node_ca"], "tls_cert": more["node_cert"], "tls_key": more["node_key"]}
    tls = {name: str(path) for name, path in given.items() if path is not None}
    is_interrupt = run_relay(behind, config, on_ready, tls=tls, trusted=more["trusted"], wait_s=wait_s)
    tell("stopped", "stopped")
    if is_interrupt:
        click.get_current_context().exit(INTERRUPTED)


def _behind(addresses: tuple[str, ...], announced: Path | None) -> Behind:
    from sophon.server.relay.behind import Behind, read_behind

    if bool(addresses) == (announced is not None):
        raise ConfigError(
            "expected the address of a data set on a node, such as grpc://host:7077/train, or --announced FILE"
        )
    return Behind(named_addresses(addresses)) if announced is None else read_behind(announced)


def named_addresses(addresses: tuple[str, ...]) -> dict[str, list[str]]:
    """Return the addresses of nodes, grouped by the name that trainers use for their data set.

    Raises:
        ConfigError: A string is not the address of a data set on a node.
    """
    named: dict[str, list[str]] = {}
    for text in addresses:
        match = _NAMED.fullmatch(text)
        told, address = (match[1], match[2]) if match is not None else (None, text)
        name = told or urlsplit(address).path.strip("/")
        if "://" not in address or not name or "/" in name:
            raise ConfigError(
                f"expected the address of a data set on a node, such as grpc://host:7077/train, got {text!r}; "
                "to serve files, use `sophon serve`"
            )
        named.setdefault(name, []).append(address)
    return named
