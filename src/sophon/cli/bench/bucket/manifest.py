"""``sophon bench manifest``: reopening a large data set, and listing one."""

from __future__ import annotations

from typing import Any

import click
from rich.console import Console

from sophon.cli.output import json_option, show
from sophon.cli.progress import steps_bar
from sophon.units import format_bytes, format_seconds


@click.command("manifest")
@click.option(
    "--rows", default=1_000_000, show_default=True, type=click.IntRange(1000), help="Number of synthetic samples."
)
@click.option("--objects", default=0, show_default=True, type=click.IntRange(0), help="Objects to list on a server.")
@json_option
def bench_manifest_command(rows: int, objects: int, json_target: str | None) -> None:
    """Reopen a large data set in a bucket, and list one."""
    from sophon.bench.bucket.manifest import bench_manifest

    with steps_bar("manifest") as report:
        result = bench_manifest(rows, objects, report)
    show(result, json_target, _print)


def _print(result: dict[str, Any], console: Console) -> None:
    console.print(
        f"{result['rows']:,} rows reopened in {format_seconds(result['reopen_s'])}, "
        f"{format_bytes(result['peak_bytes'])} at most; the order of an epoch takes "
        f"{format_seconds(result['order_s'])}, the state {result['state_bytes']:,} bytes",
        highlight=False,
    )
    if "objects" in result:
        console.print(
            f"{result['objects']:,} objects listed in {format_seconds(result['list_s'])}; "
            f"one listing by the server takes {format_seconds(result['server_list_s'])}",
            highlight=False,
        )
