"""``sophon bench parts``: a data set spread over several nodes, compared with one node that holds all of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from sophon.cli.options import data_option, parsed, photo_folder
from sophon.cli.output import json_option, show
from sophon.cli.progress import steps_bar
from sophon.units import format_seconds, parse_bandwidth


@click.command("parts")
@data_option
@click.option("--count", default=300, show_default=True, type=click.IntRange(2), help="Number of photos to generate.")
@click.option(
    "--nodes", default=2, show_default=True, type=click.IntRange(2, 8), help="Number of nodes that share the photos."
)
@click.option(
    "--link", default="20mbit", show_default=True, callback=parsed(parse_bandwidth), help="Rate of each link."
)
@click.option("--rounds", default=3, show_default=True, type=click.IntRange(1), help="Number of timed epochs per case.")
@click.option(
    "--shape",
    default="auto",
    show_default=True,
    type=click.Choice(["auto", "tbf", "server"]),
    help="What limits the rate: the kernel (tbf) or the servers.",
)
@json_option
def bench_parts_command(
    data: Path | None, count: int, nodes: int, link: float, rounds: int, shape: str, json_target: str | None
) -> None:
    """Read a data set spread over nodes, each with its own link."""
    from sophon.bench.planning.parts import bench_parts

    with steps_bar("parts") as report, photo_folder(data, count, report) as folder:
        result = bench_parts(folder, nodes, link, rounds, shape, report)
    show(result, json_target, _print_parts)


def _print_parts(result: dict[str, Any], console: Console) -> None:
    table = Table("data set", "nodes", "samples/s", "epochs")
    for name, nodes in (("whole", 1), ("parts", result["nodes"])):
        epochs = ", ".join(format_seconds(seconds) for seconds in result["epoch_s"][name])
        table.add_row(name, str(nodes), f"{result['per_s'][name]:.1f}", epochs)
    console.print(table)
    rig = result["rig"]
    console.print(
        f"{result['nodes']} parts: {result['times']:.2f}× the samples/s of one node with all samples, with the same "
        f"bits; links of {rig['link_bytes_per_s'] * 8e-6:g} Mbit/s each, shaped by {rig['shaped_by']}."
    )
