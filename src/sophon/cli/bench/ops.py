"""``sophon bench ops``: CPU time of ops and codecs, compared with torchvision."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from sophon.cli.options import data_option, seconds_option
from sophon.cli.output import json_option, show
from sophon.cli.progress import steps_bar


@click.command("ops")
@data_option
@click.option(
    "--count", default=48, show_default=True, type=click.IntRange(2, 10_000), help="Largest number of images."
)
@seconds_option(30.0)
@json_option
def bench_ops_command(data: Path | None, count: int, seconds: float, json_target: str | None) -> None:
    """Measure the CPU time of ops and codecs, compared with torchvision."""
    from sophon.bench.ops import bench_ops  # torch takes seconds to load; only this command needs it
    from sophon.bench.pictures.samples import load_samples

    with steps_bar("ops and codecs") as report:
        report("loading samples", 0, 1)
        result = bench_ops(load_samples(data, count), seconds, report)
    show(result, json_target, _print_ops)


def _print_ops(result: dict[str, Any], console: Console) -> None:
    console.print(f"{result['data']}, {result['mean_file_bytes']:,.0f} bytes on average; CPU time on one core")
    table = Table("op", "samples/s", "ours ms", "torchvision ms", "ratio")
    for column in table.columns:
        column.no_wrap = True
        column.justify = "left" if column is table.columns[0] else "right"
    rows = {**result["ops"], "ImageNet recipe": result["recipe"]}
    for name, row in rows.items():
        ours, theirs = row["ours_ms"], row["torchvision_ms"]
        if name == "ImageNet recipe":
            table.add_section()
        table.add_row(
            name,
            f"{1000 / ours:,.0f}" if ours > 0 else "–",
            f"{ours:.3f}",
            f"{theirs:.3f}" if theirs is not None else "–",
            f"{ours / theirs:.2f}×" if theirs else "–",
        )
    console.print(table)
    if result["recipe"]["torchvision_ms"] is None:
        console.print("torchvision is not installed here, so there is nothing to compare with.")
    table = Table("codec on the 224×224 crop", "exact", "bytes", "encode ms", "decode ms")
    for column in table.columns[2:]:
        column.justify = "right"
    for name, row in result["codecs"].items():
        exact = "yes" if row["exact"] else "no"
        table.add_row(name, exact, f"{row['payload_bytes']:,.0f}", f"{row['encode_ms']:.2f}", f"{row['decode_ms']:.2f}")
    console.print(table)
