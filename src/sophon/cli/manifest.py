"""`sophon manifest`: list a data set in an object store, once."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from sophon.cli.options import cache_option
from sophon.cli.output import json_option, show
from sophon.cli.progress import count_bar
from sophon.errors import ConfigError


@click.command("manifest")
@click.argument("address")
@click.option(
    "-o",
    "--out",
    help="File or address to write; by default next to the data, where it is found when the data set is opened.",
)
@click.option("--inventory", help="Path or address of the manifest.json of an S3 Inventory, read instead of listing.")
@cache_option
@json_option
def manifest_command(
    address: str, out: str | None, inventory: str | None, cache_dir: Path | None, json_target: str | None
) -> None:
    """List the objects of a data set into a manifest.

    ADDRESS is, for example, s3://bucket/train. Opening the data set then needs no listing. An interrupted run continues
    where it stopped. Objects that are added later are not seen until this command is run again.
    """
    from sophon.store.address import is_address, parse_address
    from sophon.store.bucket.exchange import beside, write_manifest
    from sophon.store.bucket.table import list_manifest
    from sophon.store.cache import cache_file

    if not is_address(address):
        raise ConfigError(
            f"expected an address such as s3://bucket/train, got {address!r:.80}; local files need no manifest"
        )
    source = parse_address(address)
    place = beside(source) if out is None else parse_address(out) if is_address(out) else Path(out)
    journal = cache_file("listings", source, 1, cache_dir)
    if journal is None:
        raise ConfigError("there is no cache folder for the listing; give one with --cache-dir")
    start_s = time.monotonic()
    with count_bar("listing") as report:
        manifest, known = list_manifest(source, journal, inventory, report)
    write_manifest(manifest, place)
    result = {
        "path": str(place),
        "samples": len(manifest),
        "known": known,
        "classes": len(manifest.classes),
        "bytes": int(manifest.sizes.sum()),
        "fingerprint": manifest.fingerprint,
        "seconds": time.monotonic() - start_s,
    }
    show(result, json_target, _print)


def _print(result: dict[str, Any], console: Console) -> None:
    known = f", {result['known']:,} objects known from an earlier run" if result["known"] else ""
    console.print(
        f"wrote {result['path']}: {result['samples']:,} samples in {result['seconds']:.1f} s{known}",
        highlight=False,
        soft_wrap=True,
    )
