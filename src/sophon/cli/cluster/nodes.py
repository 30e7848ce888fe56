"""`sophon nodes`: list the nodes that a registry knows."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from sophon.cli.output import json_option, show
from sophon.errors import ProtocolError


@click.command()
@click.argument("address", metavar="sophon://HOST:PORT")
@click.option(
    "--forget",
    metavar="DATASET",
    help="Forget the parts of this data set that no node holds; the data set becomes smaller.",
)
@json_option
def nodes(address: str, forget: str | None, json_target: str | None) -> None:
    """Show the nodes of a registry and parts that no node holds."""
    if forget is not None:
        count = _asked(address, "forget", {"dataset": forget})["forgotten"]
        click.echo(f"{count} {'part' if count == 1 else 'parts'} of {forget} forgotten", err=True)
    show(_asked(address, "status"), json_target, _print)


def _asked(address: str, action: str, message: dict[str, Any] | None = None) -> dict[str, Any]:
    from sophon.link.registry import RegistryClient
    from sophon.link.wire import parse_json

    return parse_json(RegistryClient(address).action(action, json.dumps(message or {}).encode()), 64 << 20)


def _print(result: dict[str, Any], console: Console) -> None:
    try:
        rows = list(_rows(result))
        missing = [str(name) for name in result["missing"]]
        relays = _about_relays(result.get("relays"))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ProtocolError(
            f"the registry describes its nodes in a form that this release does not know: {error!r:.200}"
        ) from error
    table = Table("node", "role", "state", "cores", "data set", "part", "samples")
    for row in rows:
        table.add_row(*row)
    console.print(table)
    if relays is not None:
        console.print(relays)
    for name in missing:
        console.print(f"no node holds {name}; start one, or forget the part with --forget")


def _rows(result: dict[str, Any]) -> Iterator[tuple[str, ...]]:
    for node in result["nodes"]:
        for name, held in sorted(node["datasets"].items()):
            part = held["part"] or held["fingerprint"][:12]
            told = (node["url"], node["role"], node["state"], f"{node['cores']:g}", name, part, f"{held['samples']:,}")
            yield tuple(map(str, told))


def _about_relays(relays: dict[str, Any] | None) -> str | None:
    """Return which relays run and how many are wanted; None if there are no relays and none are wanted."""
    if relays is None or not (relays["wanted"] or relays["running"] or relays["runs_here"]):
        return None
    wanted, running, trainers = int(relays["wanted"]), int(relays["running"]), int(relays["trainers"])
    where = ", ".join(map(str, relays.get("urls", [])))
    told = f"relays: {running} running{f' ({where})' if where else ''}, "
    told += f"{wanted} wanted by {trainers} {'trainer' if trainers == 1 else 'trainers'}"
    if relays["runs_here"] or wanted == running:
        return told
    if wanted > running:
        return f"{told}; training waits for CPU: start {wanted - running} more with `sophon relay … --registry`"
    return f"{told}; {running - wanted} may be stopped"
