"""``sophon bench first``: how long the first epoch of a new job takes."""

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
from sophon.units import format_bytes, format_seconds, parse_bandwidth, parse_rate


@click.command("first")
@data_option
@click.option("--count", default=960, show_default=True, type=click.IntRange(200), help="Samples in an epoch.")
@click.option("--link", default="40mbit", show_default=True, callback=parsed(parse_bandwidth), help="Rate of the link.")
@click.option("--cores", default=1.0, show_default=True, type=click.FloatRange(0.1), help="Cores near storage.")
@click.option(
    "--consumer", default="2000/s", show_default=True, callback=parsed(parse_rate), help="Speed of the consumer."
)
@click.option(
    "--like",
    "likes",
    multiple=True,
    type=click.Choice(["imagenet", "openimages"]),
    help="Data set of the paper to measure; may be repeated; both if left out.",
)
@click.option("--repeats", default=3, show_default=True, type=click.IntRange(1), help="New jobs per data set.")
@json_option
def bench_first_command(
    data: Path | None,
    count: int,
    link: float,
    cores: float,
    consumer: float,
    likes: tuple[str, ...],
    repeats: int,
    json_target: str | None,
) -> None:
    """Compare the first epoch of a new job with the second."""
    from sophon.bench.paper.datasets import prepare, source_of
    from sophon.bench.paper.scenario import LIKES, Scenario
    from sophon.bench.planning.first import bench_first

    with steps_bar("first") as report, scratch_folder("bench") as work:
        folders = {}
        for like in likes or LIKES:  # a folder without a subfolder per data set stands for the first data set
            scenario = Scenario(data=data, like=likes[0] if likes else "imagenet", count=count)
            if data is not None and source_of(scenario, like) is None:
                continue
            folders[like] = prepare(scenario, like, work, lambda done, of: report("photos", done, of)).folder
        result = bench_first(folders, link, cores, consumer, repeats, report)
    show(result, json_target, _print_first)


def _print_first(result: dict[str, Any], console: Console) -> None:
    table = Table("data", "none", "first epoch", "second", "first / second", "first / none", "bytes")
    for name, row in result.items():
        table.add_row(
            name,
            *(format_seconds(row[f"{what}_s"]) for what in ("none", "first", "second")),
            f"{row['first_of_second']:.2f}×",
            f"{row['first_of_none']:.2f}×",
            " / ".join(format_bytes(row[f"{what}_bytes"]) for what in ("none", "first", "second")),
        )
    console.print(table)
    for name, row in result.items():
        cuts = ", ".join(f"{cut} {number:,}" for cut, number in row["cuts"].items())
        console.print(f"{name}: {row['samples']:,} samples; cuts of the first epoch: {cuts}", highlight=False)
