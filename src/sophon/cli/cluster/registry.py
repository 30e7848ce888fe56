"""`sophon registry`: tell trainers which nodes exist and what they hold."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from sophon.cli.access import access_from, access_options
from sophon.cli.logs import INTERRUPTED, set_format, tell
from sophon.errors import ConfigError


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
    help="Tokens that may announce nodes: one line per token, with the data sets it may announce, or '*' for all.",
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
    "--relays",
    metavar="N-M",
    help="Run relays here: as many as trainers need, between these numbers, such as 0-4. By default none are run, and "
    "`sophon nodes` shows how many are wanted.",
)
@click.option(
    "--relays-elsewhere",
    is_flag=True,
    help="Run no relays here; only report how many are wanted, within --relays. Ray, or you, run them.",
)
@click.option(
    "--relay-cores", default=1.0, show_default=True, type=click.FloatRange(0.05, 4096), help="Cores of each relay."
)
@click.option(
    "--relay-option",
    "relay_options",
    multiple=True,
    metavar="TEXT",
    help="Further option of `sophon relay`, such as --relay-option=--node-ca=ca.pem; may be repeated.",
)
@click.option(
    "--relay-folder",
    type=click.Path(path_type=Path, file_okay=False),
    help="Folder for the state and logs of these relays; by default one in the user's cache folder.",
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
    relays: str | None,
    relays_elsewhere: bool,
    relay_cores: float,
    relay_options: tuple[str, ...],
    relay_folder: Path | None,
    **more: Any,
) -> None:
    """Tell trainers which nodes hold which parts of a data set.

    Nodes announce themselves with `sophon serve --registry`; trainers open sophon://HOST:PORT/DATASET.
    """
    from sophon.cluster.registry import RegistryConfig, RegistryService, run_registry  # Flight takes a moment to load
    from sophon.cluster.relays import RelayCommand
    from sophon.plan.scaling import Bounds
    from sophon.process.folders import user_folder
    from sophon.server.access import Tokens

    set_format(log_format)
    nodes = None if node_token_file is None else Tokens.load(node_token_file)
    access = access_from(more, None)
    bounds, command = Bounds(), None
    if relays is not None:
        bounds = bounds_from(relays)
    if relays is not None and not relays_elsewhere:
        if relay_folder is None and user_folder() is None:
            raise ConfigError("--relays: there is no cache folder here; give --relay-folder")
        folder = relay_folder or Path(user_folder() or "") / "relays" / f"{host}-{port}".replace(":", "_")
        command = RelayCommand(host, relay_cores, folder, (*access.options(), *relay_options))
    config = RegistryConfig(host, port, access, nodes, state, settle_s, ready_file, bounds, command)

    def on_ready(service: RegistryService) -> None:
        tell("ready", f"ready at {service.url}", url=service.url)

    is_interrupt = run_registry(config, on_ready)
    tell("stopped", "stopped")
    if is_interrupt:
        click.get_current_context().exit(INTERRUPTED)


def bounds_from(text: str) -> Any:
    """Parse the bounds in a text such as 0-4.

    Raises:
        ConfigError: The text is not two numbers, the lower one first.
    """
    from sophon.plan.scaling import Bounds

    least, mark, most = text.partition("-")
    if not (least.isdigit() and most.isdigit() and mark and len(text) < 12):
        raise ConfigError(f"--relays: expected the lowest and highest number, such as 0-4, got {text!r:.80}")
    return Bounds(int(least), int(most))
