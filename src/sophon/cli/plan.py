"""``sophon plan``: what every policy would do with a profile, and what more storage cores would gain."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from rich.table import Table

from sophon.cli.options import new_file, parsed, resource_options
from sophon.cli.output import STDOUT, console_for, json_option, write_json
from sophon.errors import ConfigError
from sophon.plan.cost import Prediction
from sophon.plan.frontier import FIGURE_4_CORES, Point, frontier
from sophon.plan.plan import Plan, make_plan
from sophon.plan.policies import DEFAULT_POLICY, POLICIES, Options, applicable
from sophon.plan.resources import KINDS, Kind, Resources
from sophon.profile.table import Profile
from sophon.units import format_bytes, format_seconds


def _parse_cores(text: str) -> tuple[float, ...]:
    try:
        return tuple(float(part) for part in text.split(","))
    except ValueError:
        raise ConfigError(f"{text!r} is not a list of core counts; write one such as 0,1,2,4.") from None


@click.command("plan")
@click.argument("profile", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@resource_options(required=True)
@click.option(
    "--policy",
    type=click.Choice(list(POLICIES)),
    default=DEFAULT_POLICY,
    show_default=True,
    help="Policy to plan with.",
)
@click.option("--compare", is_flag=True, help="Show every policy, and the effect of more or fewer storage cores.")
@click.option(
    "--resize-k",
    type=int,
    help="Number of ops that `resize` runs near storage. Default: all ops up to the one that makes every picture the "
    "same size.",
)
@click.option("--allow-lossy", is_flag=True, help="Let `optimal` choose codecs that change the tensors.")
@click.option(
    "--frontier",
    "cores",
    metavar="CORES,CORES,…",
    callback=parsed(_parse_cores),
    default=",".join(map(str, FIGURE_4_CORES)),
    show_default=True,
    help="Numbers of storage cores that --compare shows.",
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
    policy: str,
    compare: bool,
    resize_k: int | None,
    allow_lossy: bool,
    cores: tuple[float, ...],
    save: Path | None,
    json_target: str | None,
    **rates: float | None,
) -> None:
    """Plan the cuts of a job from its PROFILE; nothing is run."""
    table = Profile.load(profile)
    given: dict[str, Any] = {name: rate for name, rate in rates.items() if rate is not None}
    resources = Resources(**given)
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
    """Return the content for ``--json``: one row per policy and, if requested, the frontier of `--policy`."""
    data: dict[str, Any] = {
        "policies": {name: _row(made.prediction) for name, made in plans.items()},
    }
    if points:
        data["frontier"] = [point.to_json() for point in points]
    return data


def _row(prediction: Prediction) -> dict[str, Any]:
    said = prediction.to_json()
    return {"epoch_s": said["epoch_s"], "bottleneck": said["bottleneck"], **said["used"], "bound_s": said["bound_s"]}


def _show(plans: dict[str, Plan], points: tuple[Point, ...], policy: str, resources: Resources) -> None:
    console = console_for()
    before = plans[policy].untouched.epoch_s
    table = Table(title=f"{len(plans[policy]):,} samples, {resources}", title_justify="left")
    spent = _spent(plans[policy].prediction)
    for name in ("policy", "epoch", "gain", "bottleneck", *(kind.amount_words for kind in spent)):
        table.add_column(name, justify="left" if name in {"policy", "bottleneck"} else "right")
    for name, made in plans.items():
        now = made.prediction
        table.add_row(
            name,
            format_seconds(now.epoch_s),
            f"{before / now.epoch_s:.2f}×" if now.epoch_s > 0 else "",
            now.bottleneck,
            *_amounts(now, spent),
            style="bold" if name == policy else None,
        )
    console.print(table)
    console.print(plans[policy].explain(), highlight=False, soft_wrap=True)
    if points:
        console.print(_frontier_table(points, policy))


def _spent(prediction: Prediction) -> list[Kind]:
    return [kind for kind in KINDS if kind.amount in prediction.used]


def _amounts(prediction: Prediction, spent: list[Kind]) -> list[str]:
    shown = []
    for kind in spent:
        amount = prediction.used[kind.amount]
        shown.append(format_bytes(amount) if kind.amount.endswith("bytes") else format_seconds(amount))
    return shown


def _frontier_table(points: tuple[Point, ...], policy: str) -> Table:
    table = Table(title=f"What if storage had more or fewer cores ({policy})", title_justify="left")
    spent = _spent(points[0].prediction)
    for name in ("storage cores", "epoch", *(kind.amount_words for kind in spent)):
        table.add_column(name, justify="right")
    table.add_column("bottleneck")
    for point in points:
        made = point.prediction
        row = (f"{point.amount:g}", format_seconds(made.epoch_s), *_amounts(made, spent))
        table.add_row(*row, made.bottleneck)
    return table
