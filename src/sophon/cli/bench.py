"""`sophon bench …`: run a scenario, print a table, write JSON."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from rich.console import Console
from rich.table import Table

from sophon.bench.photos import KINDS
from sophon.cli.bench_cuts import bench_cuts
from sophon.cli.bench_isolation import bench_isolation_command
from sophon.cli.bench_order import bench_slow_command, bench_tune_command
from sophon.cli.bench_paper import bench_paper_command
from sophon.cli.bench_plan import bench_plan
from sophon.cli.bench_soak import bench_soak_command
from sophon.cli.output import json_option, show
from sophon.cli.progress import steps_bar

if TYPE_CHECKING:
    from sophon.bench.window import WindowResult

_Command = TypeVar("_Command", bound=Callable[..., Any])


def seconds_option(default: float) -> Callable[[_Command], _Command]:
    """Add ``--seconds``."""
    text = "About how long to measure; at least three rounds."
    return click.option("--seconds", default=default, show_default=True, type=click.FloatRange(0.1), help=text)


@click.group()
def bench() -> None:
    """Measure, on this machine, in one run."""


bench.add_command(bench_cuts)
bench.add_command(bench_isolation_command)
bench.add_command(bench_plan)
bench.add_command(bench_paper_command)
bench.add_command(bench_soak_command)
bench.add_command(bench_slow_command)
bench.add_command(bench_tune_command)


@bench.command("ops")
@click.option("--data", type=click.Path(path_type=Path), help="Folder of images; made-up photos if left out.")
@click.option("--count", default=48, show_default=True, type=click.IntRange(2, 10_000), help="How many images.")
@click.option(
    "--seconds",
    default=30.0,
    show_default=True,
    type=click.FloatRange(0.1),
    help="About how long to measure; at least three rounds.",
)
@json_option
def bench_ops_command(data: Path | None, count: int, seconds: float, json_target: str | None) -> None:
    """CPU time of every op and codec on one core, beside torchvision's."""
    from sophon.bench.ops import bench_ops  # torch takes seconds to load; only this command needs it
    from sophon.bench.samples import load_samples

    with steps_bar("ops and codecs") as report:
        report("loading samples", 0, 1)
        result = bench_ops(load_samples(data, count), seconds, report)
    show(result, json_target, _print_ops)


@bench.command("link")
@click.option(
    "--seconds",
    default=10.0,
    show_default=True,
    type=click.FloatRange(0.1),
    help="About how long to measure; at least three rounds.",
)
@click.option("--data", type=click.Path(path_type=Path), help="Folder of images; files of 100 KB if left out.")
@json_option
def bench_link_command(seconds: float, data: Path | None, json_target: str | None) -> None:
    """Raw samples over Flight on loopback, beside a bare socket."""
    from sophon.bench.link import bench_link

    with steps_bar("link") as report:
        result = bench_link(seconds, data, report)
    show(result, json_target, _print_link)


@bench.command("loader")
@click.option("--data", type=click.Path(path_type=Path), help="Folder of images; made-up photos if left out.")
@click.option("--count", default=512, show_default=True, type=click.IntRange(2), help="How many photos to make up.")
@click.option(
    "--seconds",
    default=60.0,
    show_default=True,
    type=click.FloatRange(0.1),
    help="About how long to measure; at least three rounds.",
)
@json_option
def bench_loader_command(data: Path | None, count: int, seconds: float, json_target: str | None) -> None:
    """Our loader in local mode beside torch's DataLoader with torchvision."""
    from sophon.bench.loader import bench_loader
    from sophon.bench.photo_folder import write_photos

    with tempfile.TemporaryDirectory(prefix="sophon-bench-") as folder, steps_bar("loader") as report:
        if data is None:
            write_photos(
                Path(folder, "photos"), "imagenet", count, on_progress=lambda done, of: report("photos", done, of)
            )
        result = bench_loader(data or Path(folder, "photos"), seconds, report)
    show(result, json_target, _print_loader)


@bench.command("window")
@click.option("--data", type=click.Path(path_type=Path), help="Folder of images; made-up photos if left out.")
@click.option(
    "--like", type=click.Choice(list(KINDS)), default="imagenet", show_default=True, help="Kind of photos made."
)
@click.option("--count", default=256, show_default=True, type=click.IntRange(2), help="At most how many images.")
@seconds_option(30.0)
@json_option
def bench_window_command(data: Path | None, like: str, count: int, seconds: float, json_target: str | None) -> None:
    """CPU time and bytes of windows: only the part of a JPEG that the next crop needs."""
    from sophon.bench.samples import load_samples
    from sophon.bench.window import bench_window

    with steps_bar("window") as report:
        report("loading samples", 0, 1)
        result = bench_window(load_samples(data, count, like), seconds, report)
    show(result.to_json(), json_target, lambda _, console: _print_window(result, console))


def _print_window(result: WindowResult, console: Console) -> None:
    console.print(
        f"{result.data}, {result.windowable:,} of {result.files:,} with windows, "
        f"{result.file_bytes:,.0f} bytes on average; CPU time on one core",
        highlight=False,
    )
    table = Table("of one sample", "CPU ms", "ns per byte", "ratio")
    titles = {
        "decode_crop": "Decode + RandomResizedCrop by Pillow",
        "window": "node: cut a window, no index",
        "window_indexed": "node: cut a window by its index",
        "trainer_whole": "trainer: whole file to crop by our ops",
        "trainer_window": "trainer: window to crop by our ops",
    }
    for column in table.columns[1:]:
        column.justify = "right"
    for name, title in titles.items():
        whole = result.ms["trainer_whole" if name.startswith("trainer") else "decode_crop"]
        ms = result.ms[name]
        table.add_row(title, f"{ms:.3f}", f"{result.ns_per_byte(name):.1f}", f"{ms / whole:.3f}×")
    console.print(table)
    console.print(f"indexes: {result.index_share:.1%} of the bytes of their files", highlight=False)
    table = Table("bytes, mean of 5 epochs of boxes, each sample its smallest", "gain over raw files")
    table.columns[1].justify = "right"
    for name, title in {
        "sophon": "raw file | raw crop",
        "window": "raw file | window",
        "exact_best": "all exact cuts",
        "lossy_best": "all cuts, lossy ones too",
    }.items():
        table.add_row(title, f"{result.gain[name]:.2f}×")
    console.print(table)


@bench.command("profile")
@click.option("--data", type=click.Path(path_type=Path), help="Folder of images; made-up photos if left out.")
@click.option("--count", default=1500, show_default=True, type=click.IntRange(2), help="How many photos to make up.")
@click.option(
    "--share",
    default=0.05,
    show_default=True,
    type=click.FloatRange(0, 1),
    help="Of the samples sent in various codecs.",
)
@seconds_option(60.0)
@json_option
def bench_profile_command(data: Path | None, count: int, share: float, seconds: float, json_target: str | None) -> None:
    """What the profiling of a first epoch costs, where nothing can hide it."""
    from sophon.bench.photo_folder import write_photos
    from sophon.bench.profile import bench_profile

    with tempfile.TemporaryDirectory(prefix="sophon-bench-") as folder, steps_bar("profile") as report:
        if data is None:
            write_photos(
                Path(folder, "photos"), "imagenet", count, on_progress=lambda done, of: report("photos", done, of)
            )
        result = bench_profile(data or Path(folder, "photos"), seconds, share, report)
    show(result, json_target, _print_profile)


def _print_profile(result: dict[str, Any], console: Console) -> None:
    table = Table("first epoch", "seconds", "trainer CPU s", "overhead")
    titles = {
        "plain": "no profiling",
        "timing": "ops timed",
        "profiling": f"ops timed, {result['share']:.0%} in codecs",
    }
    for name, title in titles.items():
        overhead = "–" if name == "plain" else f"{result[f'{name}_overhead']:+.1%}"
        table.add_row(title, f"{result[f'{name}_s']:.2f}", f"{result[f'{name}_cpu_s']:.2f}", overhead)
    console.print(f"{result['samples']:,} samples, one worker, loopback: the trainer's CPU binds", highlight=False)
    console.print(table)


def _print_link(result: dict[str, Any], console: Console) -> None:
    table = Table("one connection, loopback", "GB/s", "CPU s per GB, both sides")
    for name, title in (("flight", "Arrow Flight"), ("socket", "bare socket")):
        table.add_row(title, f"{result[f'{name}_gb_per_s']:.2f}", f"{result[f'{name}_cpu_s_per_gb']:.2f}")
    console.print(table)


def _print_loader(result: dict[str, Any], console: Console) -> None:
    table = Table("workers", "sophon samples/s", "torch samples/s", "sophon / torch")
    for workers, row in result["workers"].items():
        ours, theirs = row["sophon_per_s"], row["torch_per_s"]
        table.add_row(workers, f"{ours:,.0f}", f"{theirs:,.0f}", f"{ours / theirs:.2f}×")
    console.print(f"{result['samples']:,} images, the ImageNet recipe, local files", highlight=False)
    console.print(table)


def _print_ops(result: dict[str, Any], console: Console) -> None:
    console.print(f"{result['data']}, {result['mean_file_bytes']:,.0f} bytes on average; CPU time on one core")
    table = Table("op", "samples/s", "ours ms", "torchvision ms", "ratio")
    for column in table.columns:
        column.no_wrap = True
        column.justify = "left" if column is table.columns[0] else "right"
    rows = {**result["ops"], "ImageNet recipe": result["recipe"]}
    for name, row in rows.items():
        ours, theirs = row["ours_ms"], row["torchvision_ms"]
        if name == "ImageNet recipe":
            table.add_section()
        table.add_row(
            name,
            f"{1000 / ours:,.0f}" if ours > 0 else "–",
            f"{ours:.3f}",
            f"{theirs:.3f}" if theirs is not None else "–",
            f"{ours / theirs:.2f}×" if theirs else "–",
        )
    console.print(table)
    if result["recipe"]["torchvision_ms"] is None:
        console.print("torchvision is not installed here, so there is nothing to compare with.")
    table = Table("codec on the 224×224 crop", "exact", "bytes", "encode ms", "decode ms")
    for column in table.columns[2:]:
        column.justify = "right"
    for name, row in result["codecs"].items():
        exact = "yes" if row["exact"] else "no"
        table.add_row(name, exact, f"{row['payload_bytes']:,.0f}", f"{row['encode_ms']:.2f}", f"{row['decode_ms']:.2f}")
    console.print(table)
