"""`sophon synth`: make a folder of synthetic photos or scans to experiment with."""

from __future__ import annotations

import statistics
from pathlib import Path

import click

from sophon.bench.pictures.photo_folder import write_photos
from sophon.bench.pictures.photos import KINDS
from sophon.bench.scans.scan_folder import FORMATS, LIKE, OPTIONS, write_scans
from sophon.cli.logs import say
from sophon.cli.progress import steps_bar


@click.command()
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path))
@click.option(
    "--like",
    default="imagenet",
    show_default=True,
    metavar="|".join((*KINDS, LIKE)),
    help="Data set that the photos or scans resemble.",
)
@click.option("--count", default=None, type=int, show_default="256, or 8 scans", help="Number of photos or scans.")
@click.option("--seed", default=0, show_default=True, help="Seed; different seeds give different photos.")
@click.option("--classes", default=10, show_default=True, help="Class folders to spread the photos over; 0 for none.")
@click.option(
    "--side", default=512, show_default=True, type=click.IntRange(16, 1024), help="Scans: side of a slice in voxels."
)
@click.option(
    "--slices", default=None, type=click.IntRange(8, 2048), help="Scans: slices of each; by default as in KiTS19."
)
@click.option(
    "--format",
    "form",
    default=FORMATS[0],
    show_default=True,
    type=click.Choice(FORMATS),
    help="Scans: format of the files.",
)
@click.option("--force", is_flag=True, help="Write even if DIR holds other files, which are not changed.")
def synth(
    folder: Path,
    like: str,
    count: int | None,
    seed: int,
    classes: int,
    side: int,
    slices: int | None,
    form: str,
    force: bool,
) -> None:
    """Fill DIR with synthetic photos or CT scans.

    Photos resemble those of ImageNet or OpenImages in size and compression, and scans those of KiTS19, with labels of
    kidneys and tumours and an index of the labels' foreground. Open scans as DIR?images=images&labels=labels.
    """
    if like == LIKE:
        _synth_scans(folder, 8 if count is None else count, seed, side, slices, form, force)
        return
    count = 256 if count is None else count
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


def _synth_scans(folder: Path, count: int, seed: int, side: int, slices: int | None, form: str, force: bool) -> None:
    with steps_bar("preparing") as report:
        written = write_scans(
            folder, count, seed, form, side, slices, lambda done, total: report("making scans", done, total), force
        )
    sizes = written.sizes_bytes
    click.echo(
        f"wrote {count:,} scans like {LIKE} to {folder}?{OPTIONS}: {side}×{side} voxels in {min(written.slices)} to "
        f"{max(written.slices)} slices, {sum(sizes):,} bytes, mean {statistics.fmean(sizes):,.0f}"
    )
