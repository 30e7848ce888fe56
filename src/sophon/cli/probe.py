"""``sophon probe``: what holds training back."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import click

from sophon.cli.options import parsed, pipeline_option, read_pipeline
from sophon.cli.output import STDOUT, console_for, json_option, write_json
from sophon.cli.progress import steps_bar
from sophon.units import parse_rate


@click.command("probe")
@click.argument("url", metavar="URL|PATH")
@pipeline_option
@click.option("--batches", default=50, show_default=True, type=click.IntRange(1), help="Batches to measure with.")
@click.option(
    "--seconds",
    default=60.0,
    show_default=True,
    type=click.FloatRange(0.1),
    help="Longest time to measure; the result covers what was done by then.",
)
@click.option("--batch-size", default=64, show_default=True, type=click.IntRange(1), help="Samples in a batch.")
@click.option("--workers", default=1, show_default=True, type=click.IntRange(1), help="Threads that preprocess.")
@click.option(
    "--consumer",
    metavar="RATE",
    callback=parsed(parse_rate),
    default=None,
    help="Samples per second that training consumes, such as 1200/s, since there is no training step to measure here.",
)
@json_option
def probe_command(
    *,
    url: str,
    pipeline_file: Path,
    batches: int,
    seconds: float,
    batch_size: int,
    workers: int,
    consumer: float | None,
    json_target: str | None,
) -> None:
    """Find out what holds training back: fetching or preprocessing.

    Measures each one separately: fetching raw samples from a server (URL) or a data set here (PATH), and preprocessing
    them.
    """
    from sophon.loader.loader import DataLoader  # torch takes seconds to load
    from sophon.loader.probe import probe

    pipeline = read_pipeline(pipeline_file)
    with steps_bar(f"opening {url}") as report:  # may wait for a server that does not answer
        loader = DataLoader(url, pipeline, batch_size=batch_size, num_workers=workers, policy="none")
        found = probe(loader, batches=batches, seconds=seconds, on_step=report)
        verdict = replace(found, consumer_per_s=consumer or math.inf)
    if json_target is not None:
        write_json(json_target, verdict.to_json())
    if json_target != STDOUT:
        console_for().print(verdict.explain(), highlight=False, soft_wrap=True)
