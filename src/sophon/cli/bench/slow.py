"""``sophon bench slow``: what slow samples cost, compared with torch's loader."""

from __future__ import annotations

from typing import Any

import click
from rich.console import Console
from rich.table import Table

from sophon.cli.options import seconds_option
from sophon.cli.output import json_option, show
from sophon.cli.progress import steps_bar


@click.command("slow")
@click.option("--samples", default=240, show_default=True, type=click.IntRange(40), help="Number of samples.")
@click.option("--workers", default=2, show_default=True, type=click.IntRange(1), help="Workers of each loader.")
@click.option(
    "--work",
    type=click.Choice(["cpu", "wait"]),
    default="cpu",
    show_default=True,
    help="What slow samples do: use CPU time in NumPy, or wait, which needs no core.",
)
@seconds_option(60.0)
@json_option
def bench_slow_command(samples: int, workers: int, work: str, seconds: float, json_target: str | None) -> None:
    """Load a few very slow samples, compared with torch's loader.

    One sample in twenty takes a hundred times longer than the others.
    """
    from sophon.bench.slow import bench_slow  # torch takes seconds to load; only this command needs it

    with steps_bar("slow samples") as report:
        result = bench_slow(seconds, samples, workers, work, report)
    show(result, json_target, _print_slow)


def _print_slow(result: dict[str, Any], console: Console) -> None:
    table = Table("loader", "samples/s", "of torch's", "of the bound")
    titles = {
        "torch": "torch, worker processes, in order",
        "strict": "sophon, strict order",
        "relaxed": "sophon, relaxed order",
        "bound": "seconds of work / workers",
    }
    for name, title in titles.items():
        rate = result[f"{name}_per_s"]
        torch, bound = rate / result["torch_per_s"], rate / result["bound_per_s"]
        table.add_row(title, f"{rate:,.1f}", f"{torch:.2f}×", f"{bound:.2f}")
    console.print(
        f"{result['samples']:,} volumes, one in twenty 300 ms to 1 s, the others 3 ms; {result['workers']} workers, "
        f"batches of {result['batch_size']}",
        highlight=False,
    )
    console.print(table)
