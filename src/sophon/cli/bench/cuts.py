"""`sophon bench cuts`: all cuts, what they save, and a check that no bit changes; in a few seconds."""

from __future__ import annotations

import sys
from pathlib import Path

import click
from rich import box
from rich.table import Table

from sophon.bench.cuts import CutsResult, measure_cuts
from sophon.bench.ops import RECIPE
from sophon.bench.pictures.samples import load_samples
from sophon.cli.options import data_option
from sophon.cli.output import console_for
from sophon.cli.progress import steps_bar

_LIKE = {"imagenet": "ImageNet", "openimages": "OpenImages"}


@click.command("cuts")
@data_option
@click.option(
    "--count",
    default=48,
    show_default=True,
    type=click.IntRange(1, 10_000),
    help="Largest number of images per data set.",
)
def bench_cuts(data: Path | None, count: int) -> None:
    """Compare bytes, CPU time and bits of the ImageNet recipe's cuts."""
    console = console_for()
    results: dict[str, CutsResult] = {}
    with steps_bar("making photos") as report:
        for like in _LIKE if data is None else ("your images",):
            report(f"photos: {_LIKE.get(like, like)}", 0, count)
            samples = load_samples(data, count, like if data is None else "imagenet")
            title = f"{_LIKE[like]}-like photos" if data is None else samples.name
            results[title] = measure_cuts(
                samples,
                on_sample=lambda done, total, title=title: report(title, done, total),  # type: ignore[misc]
            )
    console.print("The pipeline:\n" + RECIPE.describe() + "\n", highlight=False)
    for title, result in results.items():
        console.print(_table(title, result))
    tensors = sum(r.tensors for r in results.values())
    mismatches = sum(r.mismatches for r in results.values())
    for title, result in results.items():
        console.print(
            f"{title}: with the smallest exact cut per sample {result.gain:.2f}× fewer bytes cross the link "
            f"({result.best_bytes / 1e3:.0f} KB instead of {result.raw_bytes / 1e3:.0f} KB).",
            highlight=False,
        )
    if mismatches:
        text = f"{mismatches} of {tensors} tensors differ from the uncut run. Please report this."
        console.print(text, style="bold red")
        sys.exit(1)
    console.print(f"All {tensors:,} tensors are bit-identical to those of the uncut pipeline.")


def _table(title: str, result: CutsResult) -> Table:
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("ops near storage", no_wrap=True)
    table.add_column("codec", no_wrap=True)
    for name in ("KB", "gain", "storage ms", "trainer ms", "best"):
        table.add_column(name, justify="right", no_wrap=True)
    last_k = -1
    for row in result.rows:
        k = row.cut.k
        if k != last_k and k:
            table.add_section()
        share = result.best_share.get(row.cut, 0.0)
        table.add_row(
            _prefix(k) if k != last_k else "",
            row.cut.codec,
            f"{row.payload_bytes / 1e3:,.0f}",
            f"{result.raw_bytes / row.payload_bytes:.2f}×",
            f"{row.storage_ms:.2f}",
            f"{row.trainer_ms:.2f}",
            f"{share:.0%}" if share else "",
        )
        last_k = k
    return table


def _prefix(k: int) -> str:
    return f"… {RECIPE.ops[k - 1].name()}" if k > 1 else ("Decode" if k else "none")
