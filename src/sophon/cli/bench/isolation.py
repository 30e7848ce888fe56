"""``sophon bench isolation``: ops in child processes compared with ops in threads of the server."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from sophon.cli.options import data_option, photo_folder, seconds_option
from sophon.cli.output import json_option, show
from sophon.cli.progress import steps_bar


@click.command("isolation")
@data_option
@click.option("--count", default=200, show_default=True, type=click.IntRange(2), help="Number of photos to generate.")
@click.option("--cores", default=1.0, show_default=True, type=click.FloatRange(0.1), help="Cores for ops.")
@seconds_option(10.0, "cut")
@json_option
def bench_isolation_command(
    data: Path | None, count: int, cores: float, seconds: float, json_target: str | None
) -> None:
    """Compare the CPU time of ops in child processes and in threads of a server."""
    from sophon.bench.isolation import bench_isolation

    with steps_bar("isolation") as report, photo_folder(data, count, report) as folder:
        result = bench_isolation(folder, seconds, cores, report)
    show(result, json_target, _print_isolation)


def _print_isolation(result: dict[str, dict[str, float]], console: Console) -> None:
    table = Table("cut", "threads: CPU ms", "processes: CPU ms", "ratio", "threads /s", "processes /s")
    for cut, row in result.items():
        figures: list[Any] = [f"{row[name]:.2f}" for name in ("thread_ms", "process_ms")]
        figures.append(f"{row['process_ms'] / row['thread_ms']:.2f}×" if row["thread_ms"] else "–")  # less than a tick
        figures += [f"{row[name]:,.0f}" for name in ("thread_per_s", "process_per_s")]
        table.add_row(cut, *figures)
    console.print(table)
