"""`sophon demo`: train a small network over a slow link with every policy; on a laptop, in a minute or two."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import Any

import click
from rich import box
from rich.progress import BarColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

from sophon.cli.options import data_option, parsed
from sophon.cli.output import console_for
from sophon.cli.progress import bars, count_bar
from sophon.errors import ConfigError
from sophon.process.scratch import scratch_folder
from sophon.units import format_bandwidth, format_seconds, parse_bandwidth

_LIKE = {"imagenet": "ImageNet", "openimages": "OpenImages"}
_TITLES = {
    "measuring": "measuring",
    "none": "none: raw files",
    "all": "all ops near storage",
    "resize": "resize: all crops",
    "sophon": "sophon: the paper",
    "optimal": "optimal: ours",
}


@click.command()
@data_option
@click.option(
    "--like", type=click.Choice(list(_LIKE)), default="openimages", show_default=True,
    help="Data set that generated photos resemble.",
)  # fmt: skip
@click.option(
    "--count", default=128, show_default=True, type=click.IntRange(32, 100_000), help="Number of photos to generate."
)
@click.option(
    "--link", default="60mbit", show_default=True, metavar="BANDWIDTH", callback=parsed(parse_bandwidth),
    help="Speed of the link from storage to trainer.",
)  # fmt: skip
@click.option("--epochs", default=2, show_default=True, type=click.IntRange(1, 100), help="Epochs per policy.")
@click.option(
    "--out", type=click.Path(file_okay=False, path_type=Path), default=Path("sophon-demo"), show_default=True,
    help="Folder for the result and the report.",
)  # fmt: skip
def demo(*, data: Path | None, like: str, count: int, link: float, epochs: int, out: Path) -> None:
    """Train over a slow link with every policy, and compare them.

    A real server, a small network, a table of bytes and seconds, and a report; takes a minute or two.
    """
    console = console_for()
    try:
        out.mkdir(parents=True, exist_ok=True)  # before a minute is spent on something that could not be written
    except OSError as error:
        raise ConfigError(f"--out: {out} cannot be created ({error.strerror}); choose another folder") from error
    from sophon.bench.demo import DemoSettings, run_demo  # torch takes seconds to load

    with scratch_folder("demo") as work:
        folder = data or _make_photos(Path(work, "photos"), like, count)
        words = f"images in {data}" if data else f"{count} synthetic {_LIKE[like]}-like photos"
        console.print(
            f"{words[0].upper()}{words[1:]}; a storage server with one core behind a link of {format_bandwidth(link)}; "
            "a small CNN.",
            highlight=False, soft_wrap=True,
        )  # fmt: skip
        settings = DemoSettings(folder, Path(work), link, epochs, data=words, like=like)
        with _bars() as shown:
            result = run_demo(settings, shown.update)
    console.print(_table(result))
    page = _written(result, out)
    if not result["identical"]:
        console.print("The policies did not feed the model the same bits. Please report this.", style="bold red")
        sys.exit(1)
    console.print(_sentence(result), highlight=False, soft_wrap=True)
    console.print(page, highlight=False, markup=False, soft_wrap=True)
    console.print(_next(data), highlight=False, markup=False, soft_wrap=True)


def _make_photos(folder: Path, like: str, count: int) -> Path:
    from sophon.bench.pictures.photo_folder import write_photos

    with count_bar(f"making {count} photos") as progress:
        write_photos(folder, like, count, on_progress=progress)
    return folder


class _bars:  # noqa: N801 - reads as a statement
    """Show one bar per policy; each stays when the next one starts."""

    def __enter__(self) -> _bars:
        self._progress = bars(
            TextColumn("{task.description:<20}"),
            BarColumn(10),
            TextColumn("{task.completed:.0f}/{task.total:.0f}"),
            TimeElapsedColumn(),
            TextColumn("{task.fields[words]}"),
            transient=False,
        )
        self._tasks: dict[str, TaskID] = {}
        self._progress.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self._progress.__exit__(*error)

    def update(self, name: str, done: int, total: int, words: str) -> None:
        if name not in self._tasks:
            self._tasks[name] = self._progress.add_task(_TITLES[name], total=total, words="")
        self._progress.update(self._tasks[name], completed=done, total=total, words=words)


def _table(result: dict[str, Any]) -> Table:
    table = Table(
        title=f"per epoch of {result['samples']:,} samples",
        title_justify="left",
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
    )
    table.add_column("policy", no_wrap=True)
    for name in ("MB sent", "less", "seconds", "sooner", "predicted", "storage CPU", "waiting"):
        table.add_column(name, justify="right", no_wrap=True)
    for name, row in result["policies"].items():
        gains = result["gains"][name]
        table.add_row(
            name,
            f"{row['link_bytes'] / 1e6:.1f}",
            f"{gains['traffic']:.2f}×",
            f"{row['epoch_s']:.2f}",
            f"{gains['time']:.2f}×",
            f"{row['predicted_s']:.2f}",
            format_seconds(row["storage_cpu_s"]),
            f"{row['idle_share']:.0%}",
            style="bold" if name == "optimal" else None,
        )
    return table


def _sentence(result: dict[str, Any]) -> str:
    gains = result["gains"]["optimal"]
    return (
        f"optimal moved {gains['traffic']:.1f}× less data and finished {gains['time']:.1f}× sooner than sending raw "
        "files; all policies fed the model identical bits, and all models ended the same."
    )


def _next(data: Path | None) -> str:
    """Return what to do next, with the user's own folder if there is one."""
    place = "DIR" if data is None else shlex.quote(str(data))
    tried = [("your own images", "sophon demo --data DIR")] if data is None else []
    steps = [
        *tried,
        ("check them", f"sophon doctor {place}"),
        ("serve them", f"sophon serve {place} --name train"),
        ("train", 'sophon.DataLoader("grpc://127.0.0.1:7077/train", transform, batch_size=256)'),
    ]
    return "Next:\n" + "\n".join(f"  {title:<17}{command}" for title, command in steps)


def _written(result: dict[str, Any], out: Path) -> str:
    """Write the result and the report; return a message about them. A failure affects only these files."""
    from sophon.report.write import facts_of, write_report

    try:
        (out / "result.json").write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
        return f"Full report: {write_report(facts_of(result), out)}"
    except (ImportError, ConfigError) as error:
        return f"No report was written: {error}"
    except OSError as error:
        return f"No report was written: {out} cannot be written to ({error.strerror}); choose another folder with --out"
