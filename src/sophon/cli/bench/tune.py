"""``sophon bench tune``: ``num_workers="auto"`` compared with every fixed setting."""

from __future__ import annotations

from typing import Any

import click
from rich.console import Console
from rich.table import Table

from sophon.cli.options import seconds_option
from sophon.cli.output import json_option, show
from sophon.cli.progress import steps_bar


@click.command("tune")
@click.option(
    "--workload",
    "workloads",
    type=click.Choice(["io", "cpu", "consumer"]),
    multiple=True,
    default=("io", "cpu", "consumer"),
    show_default=True,
    help="What is slow: reading, preprocessing or training; may be repeated.",
)
@seconds_option(20.0, "workload")
@json_option
def bench_tune_command(workloads: tuple[str, ...], seconds: float, json_target: str | None) -> None:
    """Compare num_workers="auto" with every fixed setting."""
    from sophon.bench.tune import bench_tune

    with steps_bar("tuning") as report:
        result = bench_tune(seconds, workloads, report)
    show(result, json_target, _print_tune)


def _print_tune(result: dict[str, Any], console: Console) -> None:
    table = Table("workload", "auto samples/s", "workers × requests", "best fixed samples/s", "which", "auto / best")
    for name, row in result.items():
        auto, best = f"{row['auto_per_s']:,.0f}", f"{row['best_per_s']:,.0f}"
        table.add_row(name, auto, row["auto"], best, row["best"], f"{row['auto_of_best']:.2f}")
    console.print(table)
