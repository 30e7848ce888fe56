"""``sophon bench loader``: our loader compared with torch's, on local files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from sophon.cli.options import data_option, photo_folder, seconds_option
from sophon.cli.output import json_option, show
from sophon.cli.progress import steps_bar


@click.command("loader")
@data_option
@click.option("--count", default=512, show_default=True, type=click.IntRange(2), help="Number of photos to generate.")
@seconds_option(60.0)
@json_option
def bench_loader_command(data: Path | None, count: int, seconds: float, json_target: str | None) -> None:
    """Run our loader on local files, compared with torch's."""
    from sophon.bench.loader import bench_loader

    with steps_bar("loader") as report, photo_folder(data, count, report) as folder:
        result = bench_loader(folder, seconds, report)
    show(result, json_target, _print_loader)


def _print_loader(result: dict[str, Any], console: Console) -> None:
    table = Table("workers", "sophon samples/s", "torch samples/s", "sophon / torch", "CPU ms per sample", "CPU ratio")
    for workers, row in result["workers"].items():
        ours, theirs = row["sophon_per_s"], row["torch_per_s"]
        cpu = f"{row['sophon_cpu_ms']:.2f} / {row['torch_cpu_ms']:.2f}"
        table.add_row(
            workers, f"{ours:,.0f}", f"{theirs:,.0f}", f"{ours / theirs:.2f}×", cpu, f"{row['cpu_ratio']:.3f}×"
        )
    console.print(f"{result['samples']:,} images, the ImageNet recipe, local files", highlight=False)
    console.print(table)
