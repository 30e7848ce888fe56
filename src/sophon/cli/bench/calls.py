"""``sophon bench calls``: a slow user step, compared with torch's loader."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from sophon.cli.options import data_option, photo_folder
from sophon.cli.output import json_option, show
from sophon.cli.progress import steps_bar


@click.command("calls")
@data_option
@click.option("--count", default=256, show_default=True, type=click.IntRange(2), help="Number of photos to generate.")
@click.option(
    "--step-ms",
    default=10.0,
    show_default=True,
    type=click.FloatRange(0),
    help="CPU time of the step, in milliseconds.",
)
@click.option("--workers", default=2, show_default=True, type=click.IntRange(1), help="Worker processes.")
@click.option("--rounds", default=5, show_default=True, type=click.IntRange(1), help="Timed epochs per loader.")
@json_option
def bench_calls_command(
    data: Path | None, count: int, step_ms: float, workers: int, rounds: int, json_target: str | None
) -> None:
    """Run a slow step of your own, compared with torch's loader."""
    from sophon.bench.calls import bench_calls

    with steps_bar("calls") as report, photo_folder(data, count, report) as folder:
        result = bench_calls(folder, step_ms / 1000, workers, rounds, report)
    show(result, json_target, _print_calls)


def _print_calls(result: dict[str, Any], console: Console) -> None:
    table = Table("loader", "samples/s", "/ torch", "CPU of loader and workers", "CPU of the node, on the same cores")
    torch_per_s = result["per_s"]["torch"]
    names = {"torch": "torch's DataLoader", "local": "sophon, local files", "node": "sophon, over a node, optimal"}
    for name, rate in result["per_s"].items():
        cpu = [f"{1000 * seconds:.2f} ms" for seconds in result["cpu_s"][name].values()]
        table.add_row(names[name], f"{rate:,.0f}", f"{rate / torch_per_s:.2f}×", *cpu)
    step_ms, workers = 1000 * result["step_s"], result["workers"]
    console.print(
        f"{result['samples']:,} images, {step_ms:g} ms of Python after the crop, {workers} worker processes each",
        highlight=False,
    )
    console.print(table)
