"""``sophon bench paper``: the paper's evaluation on this machine, with the paper's values next to ours."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from rich import box
from rich.console import Console
from rich.table import Table

from sophon.cli.options import parsed
from sophon.cli.output import json_option, show
from sophon.cli.progress import steps_bar
from sophon.errors import ConfigError
from sophon.units import format_bandwidth, format_bytes, format_seconds, parse_bandwidth, parse_rate

_POLICIES = "none,all,fastflow,resize,sophon,optimal"
_FIGURES = "1a,1b,1c,1d,3,4"


@click.command("paper")
@click.option(
    "--data",
    type=click.Path(exists=True, path_type=Path),
    help="Folder of images, or one that holds openimages/ and imagenet/; synthetic photos if left out.",
)
@click.option(
    "--like",
    type=click.Choice(["openimages", "imagenet"]),
    default="openimages",
    show_default=True,
    help="Data set of the paper to compare with; generated photos resemble it.",
)
@click.option("--count", type=click.IntRange(min=2), help="Samples in an epoch; enough for a few seconds if left out.")
@click.option(
    "--link",
    default="40mbit",
    show_default=True,
    metavar="BANDWIDTH",
    callback=parsed(parse_bandwidth),
    help="Speed of the link from storage to trainer.",
)
@click.option(
    "--storage-cores",
    default=1.0,
    show_default=True,
    type=click.FloatRange(0, 1),
    help="Cores near storage; fractions are enforced by a quota on the whole server.",
)
@click.option(
    "--consumer",
    default="2000/s",
    show_default=True,
    metavar="RATE|cnn",
    callback=parsed(lambda text: None if text == "cnn" else parse_rate(text)),
    help="A stand-in accelerator of this speed (it sleeps), or cnn: a small network trained on the trainer's CPU.",
)
@click.option("--repeats", default=3, show_default=True, type=click.IntRange(min=1), help="Timed epochs per policy.")
@click.option(
    "--figures",
    metavar="LIST|all",
    default="",
    help=f"Figures of the paper to reproduce, out of {_FIGURES}; none if left out. 1d, 3 and 4 take minutes each.",
)
@click.option("--policies", metavar="LIST", default=_POLICIES, show_default=True, help="Policies to run.")
@click.option(
    "--shape",
    type=click.Choice(["auto", "tbf", "server"]),
    default="auto",
    show_default=True,
    help="What limits the rate: the kernel on a veth pair (root), or the server itself on loopback.",
)
@click.option(
    "--automatic", is_flag=True, help="Also run a loader that measures its first epoch and makes its own plan."
)
@click.option("--keep", type=click.Path(path_type=Path, file_okay=False), help="Folder to keep profiles and plans in.")
@json_option
def bench_paper_command(
    *,
    data: Path | None,
    like: str,
    count: int | None,
    link: float,
    storage_cores: float,
    consumer: float | None,
    repeats: int,
    figures: str,
    policies: str,
    shape: str,
    automatic: bool,
    keep: Path | None,
    json_target: str | None,
) -> None:
    """Run the paper's evaluation: every policy over a slow link.

    Storage and trainer are two nodes with a shaped link between them; bytes, seconds and bits are counted.
    """
    from sophon.bench.paper.bench import bench_paper  # torch takes seconds to load
    from sophon.bench.paper.scenario import Scenario

    scenario = Scenario(
        data=data,
        like=like,
        count=count,
        link_bytes_per_s=link,
        storage_cores=storage_cores,
        consumer_samples_per_s=consumer,
        repeats=repeats,
        figures=_list(_FIGURES if figures == "all" else figures),
        policies=_list(policies),
        shape=shape,
        automatic=automatic,
        keep=keep,
    )
    with steps_bar("paper") as report:
        result = bench_paper(scenario, report)
    show(result, json_target, print_paper)


def _list(text: str) -> tuple[str, ...]:
    names = tuple(part.strip() for part in text.split(",") if part.strip())
    if len(set(names)) != len(names):
        raise ConfigError(f"{text!r} contains the same name twice")
    return names


def print_paper(result: dict[str, Any], console: Console) -> None:
    """Print the result as tables."""
    shaped = {
        "tbf": "two network namespaces, shaped by the kernel (tbf)",
        "server": "loopback, limited by the server",
    }[result["shaped_by"]]
    console.print(
        f"{result['data']}: {format_bytes(result['mean_file_bytes'])} on average. "
        f"{format_bandwidth(result['link_bytes_per_s'])} from storage to trainer ({shaped}; "
        f"{format_bandwidth(result['goodput_bytes_per_s'])} of it TCP payload, {result['congestion_control']}). "
        f"{result['storage_cores']:g} storage core, 1 trainer core. The consumer is {result['consumer']['words']}.",
        highlight=False,
    )
    rows = dict(result["policies"])
    if result.get("automatic") is not None:
        rows["automatic"] = result["automatic"]
    console.print(_policies(rows, result["paper"][result["like"]], result["like"]))
    console.print(
        f"Medians of {result['repeats']} interleaved epochs. All policies fed the model the same bits (sha256 "
        f"{result['policies']['none']['sha256'][:12]}…).",
        highlight=False,
    )
    for name, figure in result["figures"].items():
        _FIGURE_TABLES[name](figure, console)


def _policies(rows: dict[str, Any], paper: dict[str, Any], like: str) -> Table:
    table = Table(
        title=f"{like}: gains over none, next to the paper's; planned = predicted, CPU = of the server",
        title_justify="left",
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        show_edge=False,
        pad_edge=False,
    )
    for name in ("policy", "traffic", "gain", "paper", "epoch", "gain", "planned", "CPU", "idle", "binds"):
        table.add_column(name, justify="left" if name in {"policy", "binds"} else "right", no_wrap=True)
    none = rows["none"]
    for name, row in rows.items():
        table.add_row(
            name,
            f"{row['link_bytes'] / 1e6:,.1f} MB",
            f"{none['link_bytes'] / row['link_bytes']:.2f}×",
            _times(paper["traffic"].get(name)),
            format_seconds(row["epoch_s"]),
            f"{none['epoch_s'] / row['epoch_s']:.2f}×",
            "∞" if row["predicted_s"] is None else format_seconds(row["predicted_s"]),
            f"{row['storage_cpu_s']:.2f} s",
            f"{row['idle_share']:.0%}",
            row["bottleneck"],
            style="bold" if name == "optimal" else None,
        )
    return table


def _times(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}".rstrip("0").rstrip(".") + "×"


def _print_1a(figure: dict[str, Any], console: Console) -> None:
    table = Table(title="Figure 1a: bytes after each op", title_justify="left")
    for name in ("after", *(sample["name"] for sample in figure["samples"]), "paper's A"):
        table.add_column(name, justify="left" if name == "after" else "right")
    for number, op in enumerate(figure["ops"]):
        sizes = [format_bytes(sample["bytes"][number]) for sample in figure["samples"]]
        said = figure["paper"]["A"].get(op)
        table.add_row(op, *sizes, "–" if said is None else format_bytes(said))
    console.print(table)


def _print_1b(figure: dict[str, Any], console: Console) -> None:
    table = Table("data set", "fewest bytes after", "share", "paper", title="Figure 1b", title_justify="left")
    for like, row in figure["datasets"].items():
        for op, share in row["shares"].items():
            said = figure["paper"].get(like, {}).get(op)
            table.add_row(like, op, f"{share:.0%}", "–" if said is None else f"{said:.0%}")
        best = ", ".join(f"{cut} {share:.0%}" for cut, share in row["with_codecs"].items())
        table.add_row(like, "with codecs", best, "–")
    console.print(table)


def _print_1c(figure: dict[str, Any], console: Console) -> None:
    table = Table(title="Figure 1c: MB saved per CPU second near storage", title_justify="left")
    for name in ("data set", "nothing to save", "paper", "25 %", "median", "75 %", "median with codecs"):
        table.add_column(name, justify="left" if name == "data set" else "right")
    for like, row in figure["datasets"].items():
        said = figure["paper"].get(like, {}).get("zero_share")
        ours = [f"{row['bytes_per_cpu_s'][at] / 1e6:.1f}" for at in (25, 50, 75)]
        zero = "–" if said is None else f"{said:.0%}"
        table.add_row(like, f"{row['zero_share']:.0%}", zero, *ours, f"{row['with_codecs'][50] / 1e6:.1f}")
    console.print(table)


def _print_1d(figure: dict[str, Any], console: Console) -> None:
    table = Table(title="Figure 1d: share of time that the consumer is busy", title_justify="left")
    for name in ("consumer", "samples/s", "none", "paper", "optimal"):
        table.add_column(name, justify="left" if name == "consumer" else "right")
    for model in figure["models"]:
        busy = {policy: f"{row['utilisation']:.0%}" for policy, row in model["policies"].items()}
        said = figure["paper"].get(model["like"])
        name = model["name"] if model["like"] is None else f"{model['name']}, as {model['like']}"
        paper = "–" if said is None else f"{said:.0%}"
        table.add_row(name, f"{model['samples_per_s']:,.0f}", busy["none"], paper, busy["optimal"])
    console.print(table)


def _print_3(figure: dict[str, Any], console: Console) -> None:
    console.print("Figure 3: ample storage CPU")
    for like, row in figure["datasets"].items():
        console.print(_policies(row["policies"], figure["paper"][like], like))


def _print_4(figure: dict[str, Any], console: Console) -> None:
    table = Table(title=f"Figure 4: storage cores ({figure['data']})", title_justify="left")
    table.add_column("policy")
    for cores in figure["storage_cores"]:
        table.add_column(f"{cores:g} core", justify="right")
    for name, points in figure["policies"].items():
        cells = [f"{format_seconds(point['epoch_s'])}\n{format_bytes(point['link_bytes'])}" for point in points]
        table.add_row(name, *cells, style="bold" if name == "optimal" else None)
    console.print(table)
    console.print(f"The paper: {figure['paper']['words']}.", highlight=False)


_FIGURE_TABLES = {
    "1a": _print_1a,
    "1b": _print_1b,
    "1c": _print_1c,
    "1d": _print_1d,
    "3": _print_3,
    "4": _print_4,
}
