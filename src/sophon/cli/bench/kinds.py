"""``sophon bench kinds``: what various kinds of training, such as contrastive views, gain over a slow link."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from sophon.cli.options import data_option, parsed, photo_folder
from sophon.cli.output import json_option, show
from sophon.cli.progress import steps_bar
from sophon.units import format_bytes, format_seconds, parse_bandwidth

# Named here, since a server's command line loads no torch.
_USUAL = ("simclr", "dino", "segmentation", "detection")
_KINDS = (*_USUAL, "ssd", "ssdlite", "nifti", "chunked", "wav", "flac")


@click.command("kinds")
@data_option
@click.option("--count", default=160, show_default=True, type=click.IntRange(2), help="Number of photos to generate.")
@click.option(
    "--kind",
    "names",
    type=click.Choice(_KINDS),
    multiple=True,
    default=_USUAL,
    show_default=True,
    help="Name of a kind to run; may be repeated.",
)
@click.option("--link", default="10mbit", show_default=True, callback=parsed(parse_bandwidth), help="Rate of the link.")
@click.option(
    "--cores", default=1.0, show_default=True, type=click.FloatRange(0.1), help="Number of cores near storage."
)
@click.option("--repeats", default=2, show_default=True, type=click.IntRange(1), help="Number of timed epochs.")
@json_option
def bench_kinds_command(
    data: Path | None,
    count: int,
    names: tuple[str, ...],
    link: float,
    cores: float,
    repeats: int,
    json_target: str | None,
) -> None:
    """Compare kinds of training with sending whole files."""
    from sophon.bench.recipes.kinds import bench_kinds

    with steps_bar("kinds") as report, photo_folder(data, count, report) as folder:
        result = bench_kinds(folder, names, link, repeats, cores, report)
    show(result, json_target, _print_kinds)


def _print_kinds(result: dict[str, Any], console: Console) -> None:
    from sophon.bench.recipes.kinds import KINDS

    table = Table("kind", "raw", "sent", "gain", "storage ms", "trainer ms", "seconds")
    for name, row in result.items():
        table.add_row(
            name,
            format_bytes(row["raw_bytes"]),
            format_bytes(row["sent_bytes"]),
            f"{row['gain']:.2f}×",
            f"{row['storage_cpu_ms']:.1f}",
            f"{row['trainer_cpu_ms']:.1f}",
            format_seconds(row["epoch_s"]),
        )
    console.print(table)
    for name, row in result.items():
        cuts = ", ".join(f"{cut} {number:,}" for cut, number in row["cuts"].items())
        console.print(f"{name}, {KINDS[name].about}: cuts {cuts}", highlight=False)
    console.print("Policy optimal, epochs after the first; tensors are bit-identical to those made from whole files.")
