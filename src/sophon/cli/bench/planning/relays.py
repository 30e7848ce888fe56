"""``sophon bench relays``: a trainer limited by its CPU, with and without relays."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from sophon.cli.options import data_option, photo_folder
from sophon.cli.output import json_option, show
from sophon.cli.progress import steps_bar
from sophon.units import format_seconds


@click.command("relays")
@data_option
@click.option("--count", default=300, show_default=True, type=click.IntRange(2), help="Number of photos to generate.")
@click.option("--relays", default=2, show_default=True, type=click.IntRange(1, 8), help="Number of relays.")
@click.option(
    "--trainer-cores", default=0.4, show_default=True, type=click.FloatRange(0.05), help="Cores of the trainer."
)
@click.option("--relay-cores", default=0.4, show_default=True, type=click.FloatRange(0.05), help="Cores of each relay.")
@click.option("--rounds", default=3, show_default=True, type=click.IntRange(1), help="Number of timed epochs per case.")
@json_option
def bench_relays_command(
    data: Path | None,
    count: int,
    relays: int,
    trainer_cores: float,
    relay_cores: float,
    rounds: int,
    json_target: str | None,
) -> None:
    """Run a trainer limited by its CPU, with and without relays."""
    from sophon.bench.planning.relays import bench_relays

    with steps_bar("relays") as report, photo_folder(data, count, report) as folder:
        result = bench_relays(folder, relays, trainer_cores, relay_cores, rounds, report)
    show(result, json_target, _print_relays)


def _print_relays(result: dict[str, Any], console: Console) -> None:
    table = Table("relays", "samples/s", "predicted", "off", "epochs")
    for name, found in result["relays"].items():
        epochs = ", ".join(format_seconds(seconds) for seconds in result["epoch_s"][name])
        predicted, off = found["predicted_per_s"], found["off"]
        shown = ("–", "–") if predicted is None else (f"{predicted:.1f}", f"{off:+.1%}")
        table.add_row(name, f"{found['per_s']:.1f}", *shown, epochs)
    console.print(table)
    cores = result["cores"]
    console.print(
        f"{result['times']:.2f}× the samples/s without relays, with the same bits; cores: {cores['trainer']:g} at the "
        f"trainer, {cores['relay']:g} at each relay."
    )
