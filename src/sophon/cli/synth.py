"""`sophon synth`: make a folder of synthetic photos for experiments."""

from __future__ import annotations

import statistics
from pathlib import Path

import click

from sophon.bench.pictures.photo_folder import write_photos
from sophon.bench.pictures.photos import KINDS
from sophon.cli.logs import say
from sophon.cli.progress import steps_bar


@click.command()
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
@click.option(
    "--like", default="imagenet", show_default=True, metavar="|".join(KINDS), help="Data set that the photos resemble."
)
@click.option("--count", default=256, show_default=True, help="Number of photos.")
@click.option("--seed", default=0, show_default=True, help="Seed of the photos.")
@click.option(
    "--classes", default=10, show_default=True, help="Number of class folders to spread them over; 0 for none."
)
@click.option("--force", is_flag=True, help="Write even if DIR contains other files; those are not touched.")
def synth(folder: Path, like: str, count: int, seed: int, classes: int, force: bool) -> None:
    """Fill DIR with synthetic photos as large as real ones.

    Their sizes and compressibility are like those of ImageNet or OpenImages.
    """
    with steps_bar("preparing") as report:
        written = write_photos(
            folder, like, count, seed, classes, lambda done, total: report("making photos", done, total), force
        )
    sizes = written.sizes_bytes
    if written.replaced:
        say(f"replaced the {written.replaced:,} photos of an earlier run there")
    click.echo(
        f"wrote {len(sizes):,} photos like {like} to {written.folder}: {sum(sizes):,} bytes, "
        f"mean {statistics.fmean(sizes):,.0f}, median {statistics.median(sizes):,.0f}; "
        f"{len(sizes) / written.write_s:,.0f} images/s after {written.prepare_s:.1f} s of preparation"
    )
