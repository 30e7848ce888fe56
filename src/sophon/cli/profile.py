"""``sophon profile``: what every sample costs at every cut."""

from __future__ import annotations

from pathlib import Path

import click

from sophon.cli.options import new_file, pipeline_option, read_pipeline
from sophon.cli.output import console_for
from sophon.cli.progress import count_bar


@click.command("profile")
@click.argument("path", type=click.Path(exists=True, path_type=Path))
@pipeline_option
@click.option(
    "--out",
    required=True,
    type=click.Path(dir_okay=False, path_type=Path),
    callback=new_file,
    help="File to write the profile to.",
)
@click.option("--seed", default=0, show_default=True, type=click.IntRange(0), help="Seed of the random ops.")
@click.option("--epoch", default=0, show_default=True, type=click.IntRange(0), help="Epoch whose crops are measured.")
@click.option("--allow-lossy", is_flag=True, help="Also measure codecs that change the tensors.")
def profile_command(*, path: Path, pipeline_file: Path, out: Path, seed: int, epoch: int, allow_lossy: bool) -> None:
    """Measure what every sample costs at every cut.

    All samples of PATH are run through the pipeline on one core of this machine. A loader with policy "optimal" does
    this automatically in its first epoch. Use this command to explore beforehand, with `sophon plan` or `sophon
    report`.
    """
    from sophon.profile.columns import cuts_to_profile
    from sophon.profile.measure import measure
    from sophon.store import open_store

    pipeline = read_pipeline(pipeline_file)
    with count_bar("listing") as progress:
        store = open_store(path, on_progress=progress)
    with count_bar("measuring") as progress:
        done = 0

        def step() -> None:
            nonlocal done
            done += 1
            progress(done, len(store))

        cuts = cuts_to_profile(pipeline, allow_lossy=allow_lossy)
        profile = measure(store, pipeline, seed=seed, epoch=epoch, cuts=cuts, on_step=step)
    store.close()
    profile.save(out)
    console = console_for()
    console.print(profile.explain(), highlight=False, soft_wrap=True)
    console.print(
        f"written to {out}; see `sophon plan {out} --help` for what to do with it", highlight=False, soft_wrap=True
    )
