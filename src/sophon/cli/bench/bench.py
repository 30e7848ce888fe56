"""``sophon bench …``: run a scenario, print a table, write JSON; one file per command."""

from __future__ import annotations

import click

from sophon.cli.bench.bucket.manifest import bench_manifest_command
from sophon.cli.bench.bucket.store import bench_store_command
from sophon.cli.bench.calls import bench_calls_command
from sophon.cli.bench.cluster import bench_cluster_command
from sophon.cli.bench.cuts import bench_cuts
from sophon.cli.bench.isolation import bench_isolation_command
from sophon.cli.bench.kinds import bench_kinds_command
from sophon.cli.bench.link import bench_link_command
from sophon.cli.bench.loader import bench_loader_command
from sophon.cli.bench.ops import bench_ops_command
from sophon.cli.bench.paper import bench_paper_command
from sophon.cli.bench.planning.first import bench_first_command
from sophon.cli.bench.planning.parts import bench_parts_command
from sophon.cli.bench.planning.plan import bench_plan
from sophon.cli.bench.planning.ranks import bench_ranks_command
from sophon.cli.bench.planning.relays import bench_relays_command
from sophon.cli.bench.planning.replan import bench_replan_command
from sophon.cli.bench.profile import bench_profile_command
from sophon.cli.bench.reading import bench_reading_command
from sophon.cli.bench.recipes import bench_recipes_command
from sophon.cli.bench.scans.segmentation import bench_segmentation_command
from sophon.cli.bench.slow import bench_slow_command
from sophon.cli.bench.soak import bench_soak_command
from sophon.cli.bench.tune import bench_tune_command
from sophon.cli.bench.way.device import bench_device_command
from sophon.cli.bench.way.latency import bench_latency_command
from sophon.cli.bench.window import bench_window_command


@click.group()
def bench() -> None:
    """Measure on this machine, compared with alternatives."""


bench.add_command(bench_calls_command)
bench.add_command(bench_cluster_command)
bench.add_command(bench_cuts)
bench.add_command(bench_device_command)
bench.add_command(bench_first_command)
bench.add_command(bench_isolation_command)
bench.add_command(bench_kinds_command)
bench.add_command(bench_latency_command)
bench.add_command(bench_link_command)
bench.add_command(bench_loader_command)
bench.add_command(bench_manifest_command)
bench.add_command(bench_ops_command)
bench.add_command(bench_paper_command)
bench.add_command(bench_parts_command)
bench.add_command(bench_plan)
bench.add_command(bench_profile_command)
bench.add_command(bench_ranks_command)
bench.add_command(bench_reading_command)
bench.add_command(bench_recipes_command)
bench.add_command(bench_relays_command)
bench.add_command(bench_replan_command)
bench.add_command(bench_segmentation_command)
bench.add_command(bench_slow_command)
bench.add_command(bench_soak_command)
bench.add_command(bench_store_command)
bench.add_command(bench_tune_command)
bench.add_command(bench_window_command)
