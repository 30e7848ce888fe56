"""``sophon bench cluster``: a data set in parts on many nodes, and what Ray costs."""

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


@click.command("cluster")
@data_option
@click.option("--count", default=300, show_default=True, type=click.IntRange(8), help="Number of photos to generate.")
@click.option(
    "--link", default="20mbit", show_default=True, callback=parsed(parse_bandwidth), help="Rate of each node's link."
)
@click.option("--rounds", default=3, show_default=True, type=click.IntRange(1), help="Number of timed epochs per case.")
@click.option(
    "--shape",
    default="auto",
    show_default=True,
    type=click.Choice(["auto", "tbf", "server"]),
    help="What limits the rate: the kernel (tbf) or the servers.",
)
@click.option("--peers", is_flag=True, help="Also run Ray Data and tf.data service on the same files, cores and links.")
@click.option(
    "--relays/--no-relays", default=True, show_default=True, help="Measure relays too, like `sophon bench relays`."
)
@json_option
def bench_cluster_command(
    data: Path | None,
    count: int,
    link: float,
    rounds: int,
    shape: str,
    peers: bool,
    relays: bool,
    json_target: str | None,
) -> None:
    """Compare one, two and four nodes; measure what Ray costs."""
    from sophon.bench.cluster.bench import bench_cluster

    with steps_bar("cluster") as report, photo_folder(data, count, report) as folder:
        result = bench_cluster(folder, link, rounds, shape, peers=peers, relays=relays, on_step=report)
    show(result, json_target, _print)


def _print(result: dict[str, Any], console: Console) -> None:
    table = Table("nodes", "samples/s", "epochs")
    for count, row in result["nodes"].items():
        table.add_row(count, f"{row['per_s']:.1f}", ", ".join(map(format_seconds, row["epoch_s"])))
    console.print(table)
    uneven = result["uneven"]
    console.print(
        f"four parts: {result['times']:.2f}× the samples/s of one, with the same bits. One node of four with a "
        f"quarter of the link: epochs take {uneven['over_bound']:+.1%}, compared with the plan's bound."
    )
    ray = result["ray"]
    if ray is None:
        console.print("Ray is not installed; its cost was not measured.")
    else:
        low, high = ray["spread"]
        by_ray, by_registry, by_list = (format_seconds(ray["open_s"][how]) for how in ("ray", "registry", "list"))
        console.print(
            f"Ray: {ray['overhead']:+.2%} CPU per sample compared with a list of the same nodes (quartiles {low:+.2%} "
            f"… {high:+.2%}; a list compared with a list: {ray['chance']['overhead']:+.2%}); its threads in the "
            f"trainer take {ray['threads_share']:.2%}. Opening takes {by_ray} with Ray, {by_registry} with a registry, "
            f"{by_list} with a list. A killed node serves again after {format_seconds(max(ray['again_s']))} at most."
        )
    if "peers" in result:
        _print_peers(result["peers"], console)


def _print_peers(peers: dict[str, Any], console: Console) -> None:
    table = Table("loader", "over the link", "samples/s", "bytes per sample", "trainer CPU per sample")
    for system, ways in peers["systems"].items():
        for way, row in ways.items():
            cpu_s = row["trainer_cpu_ms_per_sample"] / 1e3
            table.add_row(
                system, way, f"{row['per_s']:.1f}", format_bytes(row["link_bytes_per_sample"]), format_seconds(cpu_s)
            )
    console.print(table)
    for system, row in peers["killed"].items():
        console.print(
            f"one of two nodes killed: {system}: {row['lost']} lost, {row['repeated']} repeated, waited "
            f"{format_seconds(row['longest_wait_s'])}, {row['error'] or 'the epoch ended'}"
        )
    for what, why in peers["not_compared"].items():
        console.print(f"not compared: {what}: {why}")
