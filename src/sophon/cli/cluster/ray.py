"""`sophon ray`: storage nodes on a Ray cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from sophon.cli.output import json_option, show
from sophon.errors import ConfigError

_address = click.option(
    "--address", default="auto", show_default=True, envvar="RAY_ADDRESS", help="Address of the Ray cluster."
)


@click.group("ray")
def ray_command() -> None:
    """Storage nodes on a Ray cluster."""


@ray_command.command("up")
@click.argument("file", type=click.Path(path_type=Path, dir_okay=False, exists=True), metavar="FILE.yaml")
@_address
@click.option(
    "--wait",
    "wait_s",
    default=120.0,
    show_default=True,
    type=click.FloatRange(0),
    help="Seconds to wait for all nodes to be ready.",
)
def up_command(file: Path, address: str, wait_s: float) -> None:
    """Start a registry and storage nodes as described in FILE."""
    from sophon.cluster.on_ray.layout import Layout
    from sophon.cluster.on_ray.serving import serve

    layout = Layout.load(file)  # before connecting to Ray, which takes seconds
    _connect(address)
    place = serve(layout, wait_s)
    names = sorted({name for node in layout.nodes for name in node.data})
    click.echo(f"{len(layout.nodes)} nodes are ready; open {', '.join(f'sophon+ray://{name}' for name in names)}")
    if place:
        click.echo(f"without Ray: {', '.join(f'{place}/{name}' for name in names)}")


@ray_command.command("down")
@_address
def down_command(address: str) -> None:
    """Drain and stop all nodes and the registry."""
    from sophon.cluster.on_ray.serving import down

    _connect(address)
    for name in down():
        click.echo(f"stopped {name}")


@ray_command.command("status")
@_address
@json_option
def status_command(address: str, json_target: str | None) -> None:
    """Show all actors and their processes."""
    from sophon.cluster.on_ray.serving import status

    _connect(address)
    show({"actors": status()}, json_target, _print)


def _connect(address: str) -> None:
    try:
        import ray
    except ImportError as error:
        raise ConfigError('Ray is not installed; pip install "sophon-loader[ray]"') from error
    try:
        ray.init(address=address, log_to_driver=False, logging_level="warning")
    except ConnectionError as error:
        raise ConfigError(
            f"no Ray cluster at {address}: {str(error)[:200]}; start one with `ray start --head`"
        ) from error


def _print(result: dict[str, Any], console: Console) -> None:
    table = Table("actor", "ready", "address", "pid", "starts", "problem")
    for row in result["actors"]:
        starts = "adopted" if row.get("adopted") else str(row.get("starts", ""))
        ready, problem = "yes" if row["is_ready"] else "no", row["problem"].splitlines()[-1:] or [""]
        table.add_row(row["name"], ready, row["url"], str(row.get("pid") or ""), starts, problem[0])
    console.print(table)
