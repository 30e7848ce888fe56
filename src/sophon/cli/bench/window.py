"""``sophon bench window``: what windows of JPEG files cost and save."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.console import Console
from rich.table import Table

from sophon.bench.pictures.photos import KINDS
from sophon.cli.options import data_option, seconds_option
from sophon.cli.output import json_option, show
from sophon.cli.progress import steps_bar

if TYPE_CHECKING:
    from sophon.bench.window import WindowResult


@click.command("window")
@data_option
@click.option(
    "--like",
    type=click.Choice(list(KINDS)),
    default="imagenet",
    show_default=True,
    help="Data set that generated photos resemble.",
)
@click.option("--count", default=256, show_default=True, type=click.IntRange(2), help="Largest number of images.")
@seconds_option(30.0)
@json_option
def bench_window_command(data: Path | None, like: str, count: int, seconds: float, json_target: str | None) -> None:
    """Measure the CPU time and bytes of windows of JPEG files."""
    from sophon.bench.pictures.samples import load_samples
    from sophon.bench.window import bench_window

    with steps_bar("window") as report:
        report("loading samples", 0, 1)
        result = bench_window(load_samples(data, count, like), seconds, report)
    show(result.to_json(), json_target, lambda _, console: _print_window(result, console))


def _print_window(result: WindowResult, console: Console) -> None:
    console.print(
        f"{result.data}, {result.windowable:,} of {result.files:,} with windows, "
        f"{result.file_bytes:,.0f} bytes on average; CPU time on one core",
        highlight=False,
    )
    table = Table("of one sample", "CPU ms", "ns per byte", "ratio")
    titles = {
        "decode_crop": "Decode + RandomResizedCrop with Pillow",
        "window": "node: cut a window, no index",
        "window_indexed": "node: cut a window with its index",
        "trainer_whole": "trainer: whole file to crop with our ops",
        "trainer_window": "trainer: window to crop with our ops",
    }
    for column in table.columns[1:]:
        column.justify = "right"
    for name, title in titles.items():
        whole = result.ms["trainer_whole" if name.startswith("trainer") else "decode_crop"]
        ms = result.ms[name]
        table.add_row(title, f"{ms:.3f}", f"{result.ns_per_byte(name):.1f}", f"{ms / whole:.3f}×")
    console.print(table)
    console.print(f"indexes: {result.index_share:.1%} of the bytes of their files", highlight=False)
    _print_progressive(result, console)
    table = Table("bytes, mean over 5 epochs of boxes, smallest choice for each sample", "gain over raw files")
    table.columns[1].justify = "right"
    for name, title in {
        "sophon": "raw file | raw crop",
        "window": "raw file | window",
        "jxl": "raw file | window | crop in JPEG XL",
        "exact_best": "all exact cuts",
        "lossy_best": "all cuts, including lossy ones",
    }.items():
        if name in result.gain:
            table.add_row(title, f"{result.gain[name]:.2f}×")
    console.print(table)
    table = Table("CPU ms that a node may spend on a sample, on average", "gain of the best exact plan")
    for column in table.columns:
        column.justify = "right"
    for budget_ms, gain in result.budget.items():
        table.add_row(f"{budget_ms:g}", f"{gain:.2f}×")
    console.print(table)


def _print_progressive(result: WindowResult, console: Console) -> None:
    ms = result.progressive_ms
    made = "re-saved as progressive files" if result.progressive_made else "progressive files among them"
    console.print(
        f"{made}: a window takes {ms['window']:.3f} ms, {ms['window'] / ms['decode_crop']:.2f}× as long as Decode + "
        f"RandomResizedCrop in Pillow; the trainer {ms['trainer_window']:.3f} ms, "
        f"{ms['trainer_window'] / ms['trainer_whole']:.2f}× as long as for the whole file",
        highlight=False,
    )
