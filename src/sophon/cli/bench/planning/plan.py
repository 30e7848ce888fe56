"""``sophon bench plan``: time and memory of planning, on one core."""

from __future__ import annotations

from typing import Any

import click
from rich.console import Console
from rich.table import Table

from sophon.bench.planning.plan import POLICY_NAMES, PROBLEMS, SAMPLES, run
from sophon.cli.output import json_option, show
from sophon.plan.policies import POLICIES
from sophon.units import format_bytes, format_seconds


@click.command("plan")
@click.option(
    "--samples",
    type=click.IntRange(min=1),
    multiple=True,
    default=SAMPLES,
    show_default=True,
    help="Number of samples; may be repeated.",
)
@click.option(
    "--policy",
    "policies",
    type=click.Choice(list(POLICIES)),
    multiple=True,
    default=POLICY_NAMES,
    show_default=True,
    help="Policy to time; may be repeated.",
)
@click.option(
    "--resources",
    type=click.Choice([str(count) for count in PROBLEMS]),
    default=str(next(iter(PROBLEMS))),
    show_default=True,
    help="How many resources limit the plan at once; more than three means several nodes.",
)
@json_option
def bench_plan(samples: tuple[int, ...], policies: tuple[str, ...], resources: str, json_target: str | None) -> None:
    """Measure time and memory of planning, on one core.

    Profiles are synthetic, with 8 cuts; each plan is made in a separate process.
    """
    rows = run(samples, policies, lambda line: click.echo(line, err=True), int(resources))
    show(rows, json_target, _print_plan)


def _print_plan(rows: dict[str, Any], console: Console) -> None:
    table = Table(title="Planning on one core", title_justify="left")
    table.add_column("policy")
    for name in ("samples", "resources", "time", "per million", "peak memory", "of that, profile", "above bound"):
        table.add_column(name, justify="right")
    for policy, measured in rows.items():
        for row in measured:
            table.add_row(
                policy,
                f"{row['samples']:,}",
                str(row["resources"]),
                format_seconds(row["seconds"]),
                format_seconds(row["seconds"] / row["samples"] * 1e6),
                format_bytes(row["peak_bytes"]),
                format_bytes(row["profile_bytes"]),
                "" if not row["bound_s"] else f"{row['epoch_s'] / row['bound_s'] - 1:.4%}",
            )
    console.print(table)
