"""``sophon bench ranks``: predicted and measured epochs of several training processes on one link."""

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
from sophon.units import format_bytes, format_seconds, parse_bandwidth


@click.command("ranks")
@data_option
@click.option(
    "--count",
    default=960,
    show_default=True,
    type=click.IntRange(2),
    help="Samples in an epoch; if there are fewer photos, they are repeated under other names.",
)
@click.option(
    "--ranks",
    "counts",
    type=click.IntRange(1, 64),
    multiple=True,
    default=(1, 2, 4),
    show_default=True,
    help="Number of training processes; may be repeated. Later numbers are compared with the first.",
)
@click.option("--link", default="40mbit", show_default=True, callback=parsed(parse_bandwidth), help="Rate of the link.")
@click.option(
    "--cores", default=1.0, show_default=True, type=click.FloatRange(0.1), help="Number of cores near storage."
)
@click.option("--epochs", default=2, show_default=True, type=click.IntRange(1), help="Planned epochs per case.")
@json_option
def bench_ranks_command(
    data: Path | None,
    count: int,
    counts: tuple[int, ...],
    link: float,
    cores: float,
    epochs: int,
    json_target: str | None,
) -> None:
    """Run several training processes on one slow link."""
    from sophon.bench.paper.datasets import prepare
    from sophon.bench.paper.scenario import Scenario
    from sophon.bench.planning.ranks import bench_ranks

    with steps_bar("ranks") as report, scratch_folder("bench") as work:
        scenario = Scenario(data=data, like="imagenet", count=count)
        photos = prepare(scenario, "imagenet", work, lambda done, of: report("photos", done, of))
        result = bench_ranks(photos.folder, counts, link, epochs, cores, report)
    show(result, json_target, _print_ranks)


def _print_ranks(result: dict[str, Any], console: Console) -> None:
    table = Table("ranks", "first epoch", "planned epoch", "vs. the first row", "bytes", "predictions off by at most")
    for size, row in result["ranks"].items():
        table.add_row(
            size,
            format_seconds(row["first_epoch_s"]),
            format_seconds(row["epoch_s"]),
            f"{row['of_first']:.3f}×",
            format_bytes(row["epochs"][-1]["link_bytes"]),
            f"{row['worst_error']:.1%}",
        )
    console.print(table)
    rig = result["rig"]
    console.print(
        f"Epochs until the last rank was done, median of the planned ones; link {rig['link_bytes_per_s'] * 8e-6:g} "
        f"Mbit/s shaped by {rig['shaped_by']}, congestion control {rig['congestion_control']}."
    )
