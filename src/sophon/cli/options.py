"""Options shared by several commands."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import click

from sophon.errors import ConfigError
from sophon.pipeline import Pipeline
from sophon.plan.resources import KINDS
from sophon.process.scratch import scratch_folder

_Command = TypeVar("_Command", bound=Callable[..., Any])


def parsed(parse: Callable[[str], Any]) -> Callable[..., Any]:
    """Return a callback that parses a number with a unit and reports errors as click does."""

    def callback(_ctx: click.Context, _param: click.Parameter, value: str | None) -> Any:
        try:
            return None if value is None else parse(value)
        except ConfigError as error:
            raise click.BadParameter(str(error)) from error

    return callback


def seconds_option(default: float, each: str = "") -> Callable[[_Command], _Command]:
    """Add ``--seconds``: for the whole measurement, or for `each` part of it."""
    text = f"About how long to measure{each and f' each {each}'}; at least three rounds."
    return click.option("--seconds", default=default, show_default=True, type=click.FloatRange(0.1), help=text)


def data_option(command: _Command) -> _Command:
    """Add ``--data``."""
    text = "Folder of images; synthetic photos if left out."
    return click.option("--data", type=click.Path(exists=True, path_type=Path), help=text)(command)


def cache_option(command: _Command) -> _Command:
    """Add ``--cache-dir``."""
    return click.option(
        "--cache-dir",
        type=click.Path(path_type=Path, file_okay=False),
        show_default="~/.cache/sophon",
        help="Folder where lists of samples are kept.",
    )(command)


def announce_options(what: str) -> Callable[[_Command], _Command]:
    """Add ``--registry`` and ``--advertise`` to the command of a node or a relay."""

    def add(command: _Command) -> _Command:
        command = click.option(
            "--advertise",
            default="",
            metavar="HOST[:PORT]",
            envvar="SOPHON_ADVERTISE",
            help=f"Address at which trainers reach this {what}, for the registry; by default the one it listens on.",
        )(command)
        return click.option(
            "--registry",
            metavar="ADDRESS",
            envvar="SOPHON_REGISTRY",
            help=f"Registry to announce this {what} to, such as sophon://host:7070, or @FILE with its address.",
        )(command)

    return add


def resource_options(*, required: bool) -> Callable[[_Command], _Command]:
    """Add an option for every resource; each is passed to the command under the name of its rate, as None if left out.

    Args:
        required: Whether the options that a plan needs must be given.
    """

    def add(command: _Command) -> _Command:
        for kind in reversed(KINDS):
            given: dict[str, Any] = {"type": float}
            if kind.metavar:
                given = {"metavar": kind.metavar, "callback": parsed(kind.parse)}
            option = click.option(
                kind.option, kind.rate, required=required and kind.is_required, help=kind.help, **given
            )
            command = option(command)
        return command

    return add


def new_file(_ctx: click.Context, _param: click.Parameter, value: Path | None) -> Path | None:
    """Check that a file can be written, before minutes are spent on its contents."""
    if value is not None and not value.absolute().parent.is_dir():
        raise click.BadParameter(f"there is no folder {value.parent}; create it, or choose another place.")
    return value


@contextmanager
def photo_folder(data: Path | None, count: int, report: Callable[[str, int, int], None]) -> Iterator[Path]:
    """Yield the folder given with ``--data``, or one of synthetic photos that is removed after the block."""
    if data is not None:
        yield data
        return
    from sophon.bench.pictures.photo_folder import write_photos  # slow, and not needed by commands like `serve`

    with scratch_folder("bench") as work:
        folder = Path(work, "photos")
        write_photos(folder, "imagenet", count, on_progress=lambda done, of: report("photos", done, of))
        yield folder


pipeline_option = click.option(
    "--pipeline",
    "pipeline_file",
    required=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="JSON file of the pipeline, as written by `pipeline.to_json()`.",
)


def read_pipeline(path: Path) -> Pipeline:
    """Return the pipeline that a JSON file describes."""
    try:
        return Pipeline.from_json(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read as a pipeline: {error}") from error
