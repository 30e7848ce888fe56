"""`sophon registry`: tell trainers which nodes exist and what they hold."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from sophon.cli.access import access_from, access_options
from sophon.cli.logs import INTERRUPTED, set_format, tell


@click.command()
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option(
    "--port",
    default=7070,
    show_default=True,
    type=click.IntRange(0, 65535),
    help="Port to listen on; 0 for any free one.",
)
@access_options
@click.option(
    "--node-token-file",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Tokens that may announce nodes: on each line a token and the data sets it may announce, or '*' for all.",
)
@click.option(
    "--state",
    type=click.Path(path_type=Path, dir_okay=False),
    help="File that records the announced parts, so that a part without any holder is noticed after a restart.",
)
@click.option(
    "--settle",
    "settle_s",
    type=click.FloatRange(0, 600),
    help="Seconds to wait for nodes before the first answer; by default three announcement intervals.",
)
@click.option(
    "--ready-file",
    type=click.Path(path_type=Path, dir_okay=False),
    help="File to write when ready: JSON with url, port and pid.",
)
@click.option(
    "--log-format",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="Format of the log: lines of text or JSON.",
)
def registry(
    host: str,
    port: int,
    node_token_file: Path | None,
    state: Path | None,
    settle_s: float | None,
    ready_file: Path | None,
    log_format: str,
    **more: Any,
) -> None:
    """Tell trainers which nodes hold which parts of a data set.

    Nodes announce themselves with `sophon serve --registry`; trainers open sophon://HOST:PORT/DATASET.
    """
    from sophon.cluster.registry import RegistryConfig, RegistryService, run_registry  # Flight takes a moment to load
    from sophon.server.access import Tokens

    set_format(log_format)
    nodes = None if node_token_file is None else Tokens.load(node_token_file)
    config = RegistryConfig(host, port, access_from(more, None), nodes, state, settle_s, ready_file)

    def on_ready(service: RegistryService) -> None:
        tell("ready", f"ready at {service.url}", url=service.url)

    is_interrupt = run_registry(config, on_ready)
    tell("stopped", "stopped")
    if is_interrupt:
        click.get_current_context().exit(INTERRUPTED)
