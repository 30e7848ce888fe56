"""``sophon bench device``: floats made on the host, or on a device."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from sophon.cli.options import data_option, photo_folder, seconds_option
from sophon.cli.output import json_option, show
from sophon.cli.progress import steps_bar
from sophon.units import format_bytes


@click.command("device")
@data_option
@click.option("--count", default=256, show_default=True, type=click.IntRange(2), help="Number of photos to generate.")
@seconds_option(20.0)
@click.option("--device", default="cpu", show_default=True, help="Device for batches, as torch names it.")
@json_option
def bench_device_command(data: Path | None, count: int, seconds: float, device: str, json_target: str | None) -> None:
    """Measure a trainer's CPU time before batches are copied."""
    from sophon.bench.way.device import bench_device

    with steps_bar("device") as report, photo_folder(data, count, report) as folder:
        result = bench_device(folder, seconds, device, report)
    show(result, json_target, _print_device)


def _print_device(result: dict[str, Any], console: Console) -> None:
    table = Table("floats are made", "CPU ms before the batch", "ms of batch and copy", "bytes copied per sample")
    for name, words in (("host", "on the host"), ("device_path", f"on {result['device']}")):
        row = result[name]
        table.add_row(words, f"{row['finish_ms']:.3f}", f"{row['batch_ms']:.3f}", format_bytes(row["bytes"]))
    console.print(table)
    console.print(
        f"{result['saved_ms']:.3f} ms less CPU time per sample before the copy, over {result['samples']:,} photos."
    )
