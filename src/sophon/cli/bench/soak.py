"""``sophon bench soak``: load, kills and bandwidth changes at random."""

from __future__ import annotations

from typing import Any

import click
from rich.console import Console
from rich.table import Table

from sophon.cli.output import json_option, show
from sophon.cli.progress import steps_bar


@click.command("soak")
@click.option("--minutes", default=10.0, show_default=True, type=click.FloatRange(0.05), help="How long to run.")
@click.option("--seed", default=0, show_default=True, type=click.IntRange(0), help="Seed of the faults.")
@click.option("--cluster", is_flag=True, help="Use parts with copies, and relays: four nodes, two relays.")
@json_option
def bench_soak_command(minutes: float, seed: int, cluster: bool, json_target: str | None) -> None:
    """Load samples while nodes and links fail; check every sample."""
    from sophon.bench.cluster.soak import bench_cluster_soak
    from sophon.bench.soak import bench_soak

    with steps_bar("soak") as report:
        result = (bench_cluster_soak if cluster else bench_soak)(minutes, seed, report)
    show(result, json_target, _print_soak)


def _print_soak(result: dict[str, Any], console: Console) -> None:
    table = Table("minutes", "samples", "faults", "lost", "repeated", "mismatched", "memory", "files")
    counts = [f"{result[name]:,.0f}" for name in ("samples", "faults", "lost", "repeated", "mismatched")]
    growth = [f"{result['rss_growth']:+.1%}", f"{result['fd_growth']:+.0f}"]
    table.add_row(f"{result['minutes']:.1f}", *counts, *growth)
    console.print(table)
    over_time = Table("after", "samples", "faults", "memory", "files")
    for moment in result["timeline"]:
        counts = [f"{moment[name]:,.0f}" for name in ("samples", "faults")]
        memory = f"{moment['rss_bytes'] / 1e6:,.0f} MB"
        over_time.add_row(f"{moment['seconds']:,.0f} s", *counts, memory, f"{moment['files']}")
    console.print(over_time)
    console.print(", ".join(f"{count} × {name}" for name, count in sorted(result["kinds"].items())) or "no faults")
