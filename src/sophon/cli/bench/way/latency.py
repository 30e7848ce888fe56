"""``sophon bench latency``: epochs over links with longer and longer round trips."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from sophon.cli.options import data_option, parsed
from sophon.cli.output import json_option, show
from sophon.cli.progress import steps_bar
from sophon.process.scratch import scratch_folder
from sophon.units import format_seconds, parse_bandwidth


@click.command("latency")
@data_option
@click.option(
    "--count",
    default=3000,
    show_default=True,
    type=click.IntRange(64),
    help="Samples; photos repeat under other names.",
)
@click.option("--link", default="40mbit", show_default=True, callback=parsed(parse_bandwidth), help="Rate of the link.")
@click.option(
    "--least", default=20.0, show_default=True, type=click.FloatRange(0.1), help="Shortest epoch, in seconds."
)
@click.option("--rtt", "round_trips", multiple=True, type=click.IntRange(0), help="Round trip in ms; may be repeated.")
@json_option
def bench_latency_command(
    data: Path | None, count: int, link: float, least: float, round_trips: tuple[int, ...], json_target: str | None
) -> None:
    """Run the same epoch over links of 0, 10, 30 and 100 ms."""
    from sophon.bench.paper.datasets import prepare
    from sophon.bench.paper.scenario import Scenario
    from sophon.bench.way.latency import ROUND_TRIPS_MS, bench_latency

    with steps_bar("latency") as report, scratch_folder("bench") as work:
        scenario = Scenario(data=data, like="imagenet", count=count)
        folder = prepare(scenario, "imagenet", work, lambda done, of: report("photos", done, of)).folder
        result = bench_latency(folder, work, link, least, round_trips or ROUND_TRIPS_MS, report)
    show(result, json_target, _print_latency)


def _print_latency(result: dict[str, Any], console: Console) -> None:
    table = Table("round trip", *result["samples"])
    for rtt_ms, row in result["rtt_ms"].items():
        table.add_row(f"{rtt_ms} ms", *(format_seconds(row[f"{policy}_s"]) for policy in result["samples"]))
    table.add_row("longest / shortest", *(f"{spread:.3f}×" for spread in result["spread"].values()))
    console.print(table)
    words = ", ".join(f"{policy} {samples:,}" for policy, samples in result["samples"].items())
    console.print(f"Samples in an epoch: {words}.", highlight=False)
