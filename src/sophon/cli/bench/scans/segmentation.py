"""``sophon bench segmentation``: 3-D scans of very different sizes, compared with torch's loader."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from sophon.cli.output import json_option, show
from sophon.cli.progress import steps_bar
from sophon.units import format_seconds


@click.command("segmentation")
@click.option("--samples", default=120, show_default=True, type=click.IntRange(8), help="Number of scans to make.")
@click.option("--workers", default=2, show_default=True, type=click.IntRange(1), help="Workers of each loader.")
@click.option("--side", default=192, show_default=True, type=click.IntRange(32, 512), help="Side of a slice in voxels.")
@click.option(
    "--data",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="Scans made by `sophon synth --like kits19`; new ones if left out.",
)
@click.option(
    "--repeats", default=3, show_default=True, type=click.IntRange(1), help="Number of timed epochs per loader."
)
@json_option
def bench_segmentation_command(
    samples: int, workers: int, side: int, data: Path | None, repeats: int, json_target: str | None
) -> None:
    """Run MLPerf's 3D U-Net recipe, compared with torch's loader.

    SpeedyLoader's experiment: a few scans take many times longer than the others.
    """
    from sophon.bench.scans.segmentation import bench_segmentation  # torch takes seconds to load

    with steps_bar("segmentation") as report:
        result = bench_segmentation(samples, workers, side, repeats, data, report)
    show(result, json_target, _print)


def _print(result: dict[str, Any], console: Console) -> None:
    table = Table("loader", "seconds per epoch", "of torch's speed", "consumer idle")
    titles = {
        "torch": "torch, worker processes, in order",
        "strict": "sophon, strict order",
        "relaxed": "sophon, relaxed order",
        "bound": "the bound: CPU or consumer",
    }
    for name, title in titles.items():
        seconds = result[f"{name}_s"]
        idle = result["idle_share"].get(name)
        share = "" if idle is None else f"{idle:.0%}"
        table.add_row(title, format_seconds(seconds), f"{result['torch_s'] / seconds:.2f}×", share)
    low, high = result["slices"]
    side, paper = result["side"], result["paper"]
    console.print(
        f"{result['samples']} scans of {side}×{side} voxels in {low} to {high} slices, {result['workers']} workers, "
        f"batches of {result['batch_size']}, crops of {'×'.join(map(str, result['crop']))}",
        highlight=False,
    )
    console.print(table)
    less = 1 - result["relaxed_s"] / result["torch_s"]
    busy = {name: 1 - share for name, share in result["idle_share"].items()}
    console.print(
        f"Relaxed order: {less:.0%} less time and {busy['relaxed'] / busy['torch']:.1f}× the use of the consumer; the "
        f"paper reports {paper['less_time']:.0%} and {paper['more_use']}×. {result['relaxed_of_bound']:.2f} of the "
        "bound.",
        highlight=False,
    )
    console.print(
        f"If the results of the ops before the crop are kept: {result['first_cpu_s']:.2f} s of CPU in the first epoch, "
        f"{result['kept_cpu_s']:.2f} s in the second.",
        highlight=False,
    )
