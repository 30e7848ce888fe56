"""``sophon bench link``: raw samples over Flight, compared with a bare socket."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from sophon.cli.options import seconds_option
from sophon.cli.output import json_option, show
from sophon.cli.progress import steps_bar


@click.command("link")
@click.option(
    "--data", type=click.Path(exists=True, path_type=Path), help="Folder of images; files of 100 KB if left out."
)
@seconds_option(10.0)
@json_option
def bench_link_command(data: Path | None, seconds: float, json_target: str | None) -> None:
    """Send raw samples over Flight, compared with a bare socket."""
    from sophon.bench.link import bench_link

    with steps_bar("link") as report:
        result = bench_link(seconds, data, report)
    show(result, json_target, _print_link)


def _print_link(result: dict[str, Any], console: Console) -> None:
    table = Table("one connection, loopback", "GB/s", "CPU s per GB, both sides")
    for name, title in (("flight", "Arrow Flight"), ("socket", "bare socket")):
        table.add_row(title, f"{result[f'{name}_gb_per_s']:.2f}", f"{result[f'{name}_cpu_s_per_gb']:.2f}")
    console.print(table)
