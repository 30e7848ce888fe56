"""`sophon serve`: offer data sets to trainers."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sophon.cli.access import access_from, access_options
from sophon.cli.limits import limit_options, limits_from
from sophon.cli.logs import INTERRUPTED, set_format, tell
from sophon.cli.options import announce_options, cache_option, parsed
from sophon.cli.paths import named_paths
from sophon.cli.progress import count_bar
from sophon.errors import ArtifactError
from sophon.store.address import Address
from sophon.store.bucket.account import Prices
from sophon.store.listing.part import Part
from sophon.units import counted, parse_bandwidth

if TYPE_CHECKING:
    from sophon.server.process import Ready, ServerConfig
    from sophon.store import Store

LOG = logging.getLogger("sophon.server")


@click.command()
@click.argument("paths", nargs=-1, required=True, metavar="[NAME=]PATH…")
@click.option("--name", help="Name of the data set, if there is only one PATH; by default the last part of PATH.")
@click.option(
    "--where",
    help="Condition that selects samples, if there is only one PATH, such as \"split = 'train' and width >= 64\".",
)
@click.option(
    "--part",
    metavar="N/COUNT",
    callback=parsed(Part.parse),
    help="Serve one part of the samples, such as 3/8: every eighth id in sorted order. "
    "With ordinal/8, the part is the number at the end of the host name, counted from 0.",
)
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option(
    "--port",
    default=7077,
    show_default=True,
    type=click.IntRange(0, 65535),
    help="Port to listen on; 0 for any free one.",
)
@click.option(
    "--cores",
    default=float(os.cpu_count() or 1),
    show_default="all",
    type=click.FloatRange(0, 4096),
    help="CPU cores for ops, such as 1.5; 0 for none. Reading and sending are not counted, and take precedence.",
)
@click.option(
    "--limit",
    metavar="BANDWIDTH",
    callback=parsed(parse_bandwidth),
    help="Highest rate to send at, such as 500mbit or 40MB/s; no limit if left out.",
)
@click.option(
    "--patience",
    default=30.0,
    show_default=True,
    type=click.FloatRange(0),
    help="Seconds that a sample may wait for a core before it is sent raw.",
)
@access_options
@click.option(
    "--isolation",
    type=click.Choice(["process", "thread"]),
    default="process",
    show_default=True,
    help="Where ops run: in child processes, which contain crashes, or in threads of the server, which cost less.",
)
@click.option(
    "--import",
    "modules",
    multiple=True,
    metavar="MODULE",
    help="Python module that registers ops or stores; may be repeated.",
)
@limit_options
@click.option(
    "--log-format",
    type=click.Choice(["text", "json"]),
    default="text",
    show_default=True,
    help="How to log who connects or is refused, and slow or broken samples: as lines of text or as JSON.",
)
@click.option(
    "--metrics-port",
    type=click.IntRange(0, 65535),
    help="HTTP port for /health and /metrics; 0 for any free one, no HTTP if left out.",
)
@click.option(
    "--metrics-host",
    default="127.0.0.1",
    show_default=True,
    help="Address to serve /health and /metrics on; anyone who can reach it may read them.",
)
@click.option(
    "--ready-file",
    type=click.Path(path_type=Path, dir_okay=False),
    help="File to write when ready: JSON with url, port and pid.",
)
@click.option(
    "--debug",
    is_flag=True,
    help="Send tracebacks and paths of this machine to trainers with every error, instead of only logging them.",
)
@click.option(
    "--egress-per-gb",
    type=click.FloatRange(0),
    envvar="SOPHON_EGRESS_PER_GB",
    default=0.0,
    help="Price of 10⁹ bytes read from an object store, for the metrics.",
)
@click.option(
    "--get-per-million",
    type=click.FloatRange(0),
    envvar="SOPHON_GET_PER_MILLION",
    default=0.0,
    help="Price of a million requests to an object store, for the metrics.",
)
@announce_options("node")
@cache_option
def serve(
    paths: tuple[str, ...],
    name: str | None,
    where: str | None,
    host: str,
    port: int,
    cores: float,
    limit: float | None,
    patience: float,
    isolation: str,
    modules: tuple[str, ...],
    metrics_port: int | None,
    metrics_host: str,
    ready_file: Path | None,
    cache_dir: Path | None,
    **more: Any,
) -> None:
    """Serve files, listings, tar shards or Parquet to trainers.

    PATH is a folder of images, a listing of files (.csv, .tsv, .jsonl or .parquet), a .tar or .parquet file, or a
    folder of these. Options may follow it: 'labels.csv?where=split = "train"'. Shards that differ only in their numbers
    are one data set.
    """
    from sophon.server.announcing import Announcing
    from sophon.server.process import ServerConfig, import_modules, run_server  # Flight takes a moment to load

    set_format(more.pop("log_format"))
    named = named_paths(paths, name, where)
    import_modules(modules)  # first, since a module may register the store that opens a path
    # Before the data sets are listed, which may take minutes.
    limits = limits_from(more)
    access = access_from(more, [label for label, _ in named])
    warning = access.check_place(host)
    if warning is not None:
        LOG.warning("%s", warning, extra={"event": "exposed"})
    announcing = Announcing(more["registry"], more["advertise"]) if more["registry"] else None
    if announcing is not None:
        announcing.url(access.scheme, host, port)
    stores, indexes = _opened(named, cache_dir, more["part"])
    config = ServerConfig(
        host,
        port,
        cores,
        limit,
        metrics_port,
        ready_file,
        patience,
        access=access,
        limits=limits,
        isolation=isolation,
        modules=modules,
        metrics_host=metrics_host,
        indexes=tuple(indexes),
        debug=more["debug"],
        prices=Prices(more["egress_per_gb"], more["get_per_million"]),
        announcing=announcing,
    )

    is_interrupt = run_server(stores, config, lambda ready: _tell_ready(ready, stores, config))
    tell("stopped", "stopped")
    if is_interrupt:
        click.get_current_context().exit(INTERRUPTED)


def _tell_ready(ready: Ready, stores: dict[str, Store], config: ServerConfig) -> None:
    """Report the data sets and the address of the server."""
    for label, store in stores.items():
        at = f"{ready.url}/{label}"
        which = f", part {store.part}," if store.part else ""
        text = f"serving {len(store):,} samples{_labels_of(store)}{which} at {at}"
        tell("serving", text, dataset=label, samples=len(store), url=at)
    if ready.metrics_port is not None:
        at = f"http://{config.metrics_host}:{ready.metrics_port}/metrics"
        tell("metrics", f"metrics at {at}", url=at)
    cores = config.cores
    tell("ready", f"ready, {cores:g} core{'' if cores == 1 else 's'} for ops", cores=cores, pid=ready.pid)


def _opened(
    named: list[tuple[str, str]], cache_dir: Path | None, part: Part | None
) -> tuple[dict[str, Store], list[Path]]:
    """Return the data sets by name, and the files of window indexes that were found for them."""
    from sophon.store import open_store
    from sophon.store.listing.part import part_of

    stores: dict[str, Store] = {}
    indexes: list[Path] = []
    for label, path in named:
        with count_bar(f"listing {label}") as report:
            stores[label] = open_store(path, label, cache_dir=cache_dir, on_progress=report)
        if part is not None:
            stores[label] = part_of(stores[label], part)
        indexes += _attach_indexes(stores[label], cache_dir)
    return stores, indexes


def _attach_object_index(store: Store, cache_dir: Path | None) -> None:
    from sophon.codec.window.object_index import open_index

    try:
        samples = open_index(store, cache_dir)
    except ArtifactError as error:
        LOG.warning("the window index is not used: %s", error, extra={"event": "indexes"})
        return
    if samples is not None:
        tell("indexes", f"window index of {samples:,} samples of {store.path}", samples=samples)


def _attach_indexes(store: Store, cache_dir: Path | None) -> list[Path]:
    """Use the indexes written by `sophon index`, and report where they are; other samples are indexed on demand."""
    from sophon.codec.window.indexes import INDEXES
    from sophon.codec.window.sidecar import find_sidecar

    if isinstance(store.path, Address):
        _attach_object_index(store, cache_dir)
    again = f"run `sophon index {store.path}` again; until then such samples are indexed on demand"
    try:
        sidecar = find_sidecar(store.path, cache_dir)
    except ArtifactError as error:
        LOG.warning("window indexes are not used: %s", error, extra={"event": "indexes"})
        return []
    if sidecar is None:
        return []
    INDEXES.attach(sidecar)
    tell("indexes", f"window indexes of {len(sidecar):,} samples from {sidecar.path}", samples=len(sidecar))
    stale = sidecar.stale_share(store)
    if stale:
        text = f"{stale:.1%} of the samples have changed since they were indexed; {again}"
        LOG.warning("%s", text, extra={"event": "indexes"})
    return [sidecar.path]


def _labels_of(store: Store) -> str:
    """Return a description of a data set's labels and fields, so that users notice unexpected ones."""
    from sophon.store.manifest import NO_LABEL  # imported when needed, like everything for serving

    manifest = store.manifest
    fields = f" with {', '.join(field.name for field in manifest.fields)}" if len(manifest.fields) > 1 else ""
    if manifest.labels is None:
        return fields or " without labels"
    named = f" of {counted(len(manifest.classes), 'class', 'classes')}" if manifest.classes else " with labels"
    named = f"{named}{fields}"
    missing = int((manifest.labels == NO_LABEL).sum())
    return f"{named}, {missing:,} of them without a label," if missing else named
