"""``sophon bench reading``: samples from a slow store, compared with reading them one after another."""

from __future__ import annotations

from typing import Any

import click
from rich.console import Console
from rich.table import Table

from sophon.cli.output import json_option, show
from sophon.cli.progress import steps_bar
from sophon.units import format_seconds


@click.command("reading")
@click.option("--samples", default=1_000, show_default=True, type=click.IntRange(50), help="Number of samples.")
@click.option("--workers", default=2, show_default=True, type=click.IntRange(0), help="Workers of the loader.")
@json_option
def bench_reading_command(samples: int, workers: int, json_target: str | None) -> None:
    """Read from a slow store, locally and through a node."""
    from sophon.bench.reading import bench_reading

    with steps_bar("reading") as report:
        result = bench_reading(samples, workers, report)
    show(result, json_target, _print_reading)


def _print_reading(result: dict[str, Any], console: Console) -> None:
    table = Table("samples from", "cuts", "samples/s", "vs. one by one", "verdict")
    table.add_row("the store itself, one by one", "", f"{result['in_turn_per_s']:,.0f}", "1.0×", "")
    for row in result["rows"]:
        rate, speedup = f"{row['samples_per_s']:,.0f}", f"{row['speedup']:.1f}×"
        table.add_row(row["where"], row["cuts"], rate, speedup, row["verdict"] or "")
    console.print(f"{result['samples']:,} samples, {format_seconds(result['read_s'])} a read", highlight=False)
    console.print(table)
