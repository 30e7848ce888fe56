"""``sophon bench store``: requests to an object store, and the bytes read from it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from sophon.cli.options import data_option
from sophon.cli.output import json_option, show
from sophon.cli.progress import steps_bar
from sophon.units import format_bytes


@click.command("store")
@data_option
@click.option("--objects", default=1_000, show_default=True, type=click.IntRange(10), help="Objects per round.")
@click.option("--at-once", default=8, show_default=True, type=click.IntRange(1, 256), help="Concurrent requests.")
@click.option("--rounds", default=5, show_default=True, type=click.IntRange(1), help="Measurements per client.")
@click.option(
    "--plan",
    "with_plan",
    is_flag=True,
    help="Also compare nodes next to the bucket and to a folder; measures all cuts.",
)
@json_option
def bench_store_command(
    *, data: Path | None, objects: int, at_once: int, rounds: int, with_plan: bool, json_target: str | None
) -> None:
    """Read objects from a server, compared with obstore and others."""
    from sophon.bench.bucket.store import bench_store

    with steps_bar("store") as report:
        result = bench_store(data, objects, at_once, rounds, with_plan, report)
    show(result, json_target, _print)


_PEERS = {"boto3": "boto3", "fsspec": "s3fs"}  # by the package that each needs


def _print(result: dict[str, Any], console: Console) -> None:
    table = Table("", "GETs/s", "CPU per GET")
    for name in ("sophon", "obstore", "boto3", "fsspec"):
        if result[f"{name}_per_s"] is not None:
            table.add_row(name, f"{result[f'{name}_per_s']:,.0f}", f"{result[f'{name}_cpu_ms']:.2f} ms")
    console.print(table)
    missing = [package for name, package in _PEERS.items() if result[f"{name}_per_s"] is None]
    if missing:
        console.print(f"Not compared, because not installed: {', '.join(missing)}.", highlight=False)
    if "bucket_bytes" in result:
        whole = result["bucket_bytes"]["whole"]
        for name, size in result["bucket_bytes"].items():
            console.print(
                f"{name}: {format_bytes(size)} read from the bucket, {whole / size:.2f}× fewer", highlight=False
            )
    for name, gain in result.get("link_gain", {}).items():
        console.print(f"a node next to the {name}: {gain:.2f}× fewer bytes over the link", highlight=False)
    if "bucket_gain" in result:
        console.print(f"and {result['bucket_gain']:.2f}× fewer from the bucket", highlight=False)
