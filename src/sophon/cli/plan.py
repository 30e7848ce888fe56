"""``sophon plan``: what every policy would do with a profile, and what more storage cores would buy."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from sophon.cli.options import new_file, parsed
from sophon.cli.output import STDOUT, json_option, write_json
from sophon.errors import ConfigError
from sophon.plan.cost import Prediction
from sophon.plan.frontier import FIGURE_4_CORES, Point, frontier
from sophon.plan.plan import Plan, make_plan
from sophon.plan.policies import DEFAULT_POLICY, POLICIES, Options, applicable
from sophon.plan.resources import Resources
from sophon.profile.table import Profile
from sophon.units import format_bytes, format_seconds, parse_bandwidth, parse_rate


def _parse_cores(text: str) -> tuple[float, ...]:
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise ConfigError(f"{text!r} is no list of numbers of cores; write one such as 0,1,2,4.") from None


@click.command("plan")
@click.argument("profile", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option(
    "--link",
    metavar="BANDWIDTH",
    callback=parsed(parse_bandwidth),
    required=True,
    help="Link from storage to trainer, such as 500mbit.",
)
@click.option("--storage-cores", type=float, required=True, help="Cores for ops near storage, 0 or more.")
@click.option("--trainer-cores", type=float, required=True, help="Cores that preprocess at the trainer.")
@click.option(
    "--consumer",
    metavar="RATE",
    callback=parsed(parse_rate),
    default=None,
    help="Samples that training takes, such as 1200/s; as many as come if left out.",
)
@click.option(
    "--policy",
    type=click.Choice(list(POLICIES)),
    default=DEFAULT_POLICY,
    show_default=True,
    help="Policy that decides.",
)
@click.option("--compare", is_flag=True, help="Show every policy, and what other numbers of storage cores would do.")
@click.option(
    "--resize-k", type=int, help="How many ops `resize` runs near storage; by default those that make one size."
)
@click.option("--allow-lossy", is_flag=True, help="Let `optimal` choose codecs that change the tensors.")
@click.option(
    "--frontier",
    "cores",
    metavar="CORES,CORES,…",
    callback=parsed(_parse_cores),
    default=",".join(map(str, FIGURE_4_CORES)),
    show_default=True,
    help="Numbers of storage cores to ask about with --compare.",
)
@click.option(
    "--save",
    type=click.Path(dir_okay=False, path_type=Path),
    callback=new_file,
    help="File to write the plan to.",
)
@json_option
def plan(
    *,
    profile: Path,
    link: float,
    storage_cores: float,
    trainer_cores: float,
    consumer: float | None,
    policy: str,
    compare: bool,
    resize_k: int | None,
    allow_lossy: bool,
    cores: tuple[float, ...],
    save: Path | None,
    json_target: str | None,
) -> None:
    """Plan the cuts of a job from its PROFILE; nothing is run."""
    table = Profile.load(profile)
    given = (link, storage_cores, trainer_cores)
    resources = Resources(*given) if consumer is None else Resources(*given, consumer)
    options = Options(resize_k=resize_k, allow_lossy=allow_lossy)
    names = list(applicable(table, options)) if compare else [policy]
    if policy not in names:
        names.append(policy)
    plans = {name: make_plan(table, resources, name, options) for name in names}
    points = frontier(table, resources, cores, policy, options) if compare else ()
    if save is not None:
        plans[policy].save(save)
    if json_target is not None:
        write_json(json_target, to_json(plans, points))
    if json_target != STDOUT:
        _show(plans, points, policy, resources)


def to_json(plans: dict[str, Plan], points: tuple[Point, ...] = ()) -> dict[str, Any]:
    """Return what ``--json`` writes: one row per policy and, if asked for, the frontier of `--policy`."""
    data: dict[str, Any] = {
        "policies": {name: _row(made.prediction) for name, made in plans.items()},
    }
    if points:
        data["frontier"] = [asdict(point) for point in points]
    return data


def _row(prediction: Prediction) -> dict[str, Any]:
    wanted = ("link_bytes", "epoch_s", "bottleneck", "storage_cpu_s", "trainer_cpu_s", "bound_s")
    return {name: getattr(prediction, name) for name in wanted}


def _show(plans: dict[str, Plan], points: tuple[Point, ...], policy: str, resources: Resources) -> None:
    console = Console()
    before = plans[policy].untouched.epoch_s
    table = Table(title=f"{len(plans[policy]):,} samples, {resources}", title_justify="left")
    for name in ("policy", "epoch", "gain", "bottleneck", "link", "storage CPU", "trainer CPU"):
        table.add_column(name, justify="left" if name in {"policy", "bottleneck"} else "right")
    for name, made in plans.items():
        now = made.prediction
        table.add_row(
            name,
            format_seconds(now.epoch_s),
            f"{before / now.epoch_s:.2f}×" if now.epoch_s > 0 else "",
            now.bottleneck,
            format_bytes(now.link_bytes),
            format_seconds(now.storage_cpu_s),
            format_seconds(now.trainer_cpu_s),
            style="bold" if name == policy else None,
        )
    console.print(table)
    console.print(plans[policy].explain(), highlight=False, soft_wrap=True)
    if points:
        console.print(_frontier_table(points, policy))


def _frontier_table(points: tuple[Point, ...], policy: str) -> Table:
    table = Table(title=f"What if storage had more or fewer cores ({policy})", title_justify="left")
    for name in ("storage cores", "epoch", "link", "storage CPU"):
        table.add_column(name, justify="right")
    table.add_column("bottleneck")
    for point in points:
        table.add_row(
            f"{point.storage_cores:g}",
            format_seconds(point.epoch_s),
            format_bytes(point.link_bytes),
            format_seconds(point.storage_cpu_s),
            point.bottleneck,
        )
    return table
