"""``sophon bench profile``: what profiling the first epoch costs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from sophon.cli.options import data_option, photo_folder, seconds_option
from sophon.cli.output import json_option, show
from sophon.cli.progress import steps_bar


@click.command("profile")
@data_option
@click.option("--count", default=1500, show_default=True, type=click.IntRange(2), help="Number of photos to generate.")
@click.option(
    "--share",
    default=0.05,
    show_default=True,
    type=click.FloatRange(0, 1),
    help="Share of the samples that are sent in each codec to measure it.",
)
@seconds_option(60.0)
@json_option
def bench_profile_command(data: Path | None, count: int, share: float, seconds: float, json_target: str | None) -> None:
    """Measure what profiling the first epoch costs at worst."""
    from sophon.bench.profile import bench_profile

    with steps_bar("profile") as report, photo_folder(data, count, report) as folder:
        result = bench_profile(folder, seconds, share, report)
    show(result, json_target, _print_profile)


def _print_profile(result: dict[str, Any], console: Console) -> None:
    table = Table("first epoch", "seconds", "trainer CPU s", "overhead")
    titles = {
        "plain": "no profiling",
        "timing": "ops timed",
        "profiling": f"ops timed, {result['share']:.0%} in codecs",
    }
    for name, title in titles.items():
        overhead = "–" if name == "plain" else f"{result[f'{name}_overhead']:+.1%}"
        table.add_row(title, f"{result[f'{name}_s']:.2f}", f"{result[f'{name}_cpu_s']:.2f}", overhead)
    console.print(
        f"{result['samples']:,} samples, one worker, loopback: the trainer's CPU is the bottleneck", highlight=False
    )
    console.print(table)
