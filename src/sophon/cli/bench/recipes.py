"""``sophon bench recipes``: torchvision and timm recipes over a shaped link, with and without offloading."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from sophon.bench.presets import RECIPES
from sophon.cli.options import data_option, parsed, photo_folder
from sophon.cli.output import json_option, show
from sophon.cli.progress import steps_bar
from sophon.units import format_bytes, format_seconds, parse_bandwidth


@click.command("recipes")
@data_option
@click.option("--count", default=200, show_default=True, type=click.IntRange(2), help="Number of photos to generate.")
@click.option(
    "--recipe",
    "names",
    type=click.Choice(list(RECIPES)),
    multiple=True,
    default=tuple(RECIPES),
    show_default=True,
    help="Name of a recipe to run; may be repeated.",
)
@click.option("--link", default="40mbit", show_default=True, callback=parsed(parse_bandwidth), help="Rate of the link.")
@click.option(
    "--cores", default=1.0, show_default=True, type=click.FloatRange(0.1), help="Number of cores near storage."
)
@click.option("--repeats", default=3, show_default=True, type=click.IntRange(1), help="Interleaved epochs per recipe.")
@json_option
def bench_recipes_command(
    data: Path | None,
    count: int,
    names: tuple[str, ...],
    link: float,
    cores: float,
    repeats: int,
    json_target: str | None,
) -> None:
    """Run torchvision and timm recipes over a slow link."""
    from sophon.bench.recipes.bench import bench_recipes

    with steps_bar("recipes") as report, photo_folder(data, count, report) as folder:
        result = bench_recipes(folder, names, link, repeats, cores, report)
    show(result, json_target, _print_recipes)


def _print_recipes(result: dict[str, Any], console: Console) -> None:
    table = Table("recipe", "bytes", "of none's", "seconds", "of none's", "same bits")
    for name, row in result["recipes"].items():
        table.add_row(
            name,
            format_bytes(row["optimal"]["link_bytes"]),
            f"{row['bytes_ratio']:.2f}×",
            format_seconds(row["optimal"]["epoch_s"]),
            f"{row['time_ratio']:.2f}×",
            "yes" if row["same_bits"] else "NO",
        )
    console.print(table)
    for name, row in result["recipes"].items():
        console.print(f"{name}: cuts " + ", ".join(f"{cut} {count:,}" for cut, count in row["cuts"].items()))
    rig = result["rig"]
    console.print(
        "Policy optimal compared with none: second epoch, medians of interleaved runs; link "
        f"{rig['link_bytes_per_s'] * 8e-6:g} Mbit/s shaped by {rig['shaped_by']}, congestion control "
        f"{rig['congestion_control']}."
    )
