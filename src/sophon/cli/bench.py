"""``sophon bench …``: run a scenario, print a table, write JSON; one file a command."""

from __future__ import annotations

import click

from sophon.cli.bench_cuts import bench_cuts
from sophon.cli.bench_isolation import bench_isolation_command
from sophon.cli.bench_link import bench_link_command
from sophon.cli.bench_loader import bench_loader_command
from sophon.cli.bench_ops import bench_ops_command
from sophon.cli.bench_paper import bench_paper_command
from sophon.cli.bench_plan import bench_plan
from sophon.cli.bench_profile import bench_profile_command
from sophon.cli.bench_slow import bench_slow_command
from sophon.cli.bench_soak import bench_soak_command
from sophon.cli.bench_tune import bench_tune_command
from sophon.cli.bench_window import bench_window_command


@click.group()
def bench() -> None:
    """Measure on this machine, beside what it is compared with."""


bench.add_command(bench_cuts)
bench.add_command(bench_isolation_command)
bench.add_command(bench_link_command)
bench.add_command(bench_loader_command)
bench.add_command(bench_ops_command)
bench.add_command(bench_paper_command)
bench.add_command(bench_plan)
bench.add_command(bench_profile_command)
bench.add_command(bench_slow_command)
bench.add_command(bench_soak_command)
bench.add_command(bench_tune_command)
bench.add_command(bench_window_command)
