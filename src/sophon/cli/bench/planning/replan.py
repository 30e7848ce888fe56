"""``sophon bench replan``: how long planning takes in a loader, from a cached profile to a plan, on one core."""

from __future__ import annotations

from typing import Any

import click
from rich.console import Console
from rich.table import Table

from sophon.cli.output import json_option, show
from sophon.units import format_bytes, format_seconds


@click.command("replan")
@click.option(
    "--samples",
    type=click.IntRange(min=1),
    multiple=True,
    default=(1_281_167,),
    show_default=True,
    help="Number of samples; may be repeated.",
)
@json_option
def bench_replan_command(samples: tuple[int, ...], json_target: str | None) -> None:
    """Measure the CPU time of planning in a loader, on one core.

    The profile is synthetic, with sizes like those of ImageNet; each size runs in a separate process.
    """
    from sophon.bench.planning.replan import run

    rows = run(samples, progress=lambda line: click.echo(line, err=True))
    show({"replan": rows}, json_target, _print_replan)


def _print_replan(result: dict[str, Any], console: Console) -> None:
    table = Table(title="CPU seconds of planning in a loader, on one core", title_justify="left")
    names = {"load_s": "read", "recall_s": "recall", "estimate_s": "predict", "plan_s": "plan", "cpu_s": "together"}
    for name in ("samples", *names.values(), "elapsed", "in mid-epoch", "peak memory"):
        table.add_column(name, justify="right")
    for row in result["replan"]:
        times = [format_seconds(row[name]) for name in (*names, "wall_s", "again_s")]
        table.add_row(f"{row['samples']:,}", *times, format_bytes(row["peak_bytes"]))
    console.print(table)
