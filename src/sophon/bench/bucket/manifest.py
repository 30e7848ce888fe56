"""`sophon bench manifest`: time and memory needed to reopen a large data set.

A synthetic manifest of objects is kept in a cache and opened in a separate process. With `objects`, a bucket of that
many objects on SeaweedFS is also listed, compared with the server's own listing.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sophon.bench.bucket.store import used
from sophon.bench.harness import OnStep, nothing
from sophon.bench.rig.object_server import BUCKET, object_server, raw_store
from sophon.loader.order.order import epoch_order
from sophon.loader.order.state import State
from sophon.process.scratch import scratch_folder
from sophon.store.address import Address
from sophon.store.bucket.client import Object
from sophon.store.bucket.objects import BucketStore, sources_of
from sophon.store.bucket.table import list_manifest
from sophon.store.cache import ManifestCache
from sophon.store.manifest import Manifest

ROWS = 1_000_000
_CLASSES = 1000
_LOOKED_UP = 20_000
_ADDRESS = Address("s3", BUCKET, "synthetic")


def bench_manifest(rows: int = ROWS, objects: int = 0, on_step: OnStep | None = None) -> dict[str, Any]:
    """Measure the time to reopen a data set, and to list one.

    Args:
        rows: Samples of the synthetic manifest.
        objects: Objects to list on a real server; 0 for none.
        on_step: Called with the name, number and count of the next step.

    Returns:
        ``{"rows", "reopen_s", "peak_bytes", "order_s", "row_us", "used_peak_bytes", "state_bytes"}``, where
        `used_peak_bytes` also includes an epoch's order and some rows that were looked up; and ``{"objects", "list_s",
        "server_list_s"}``
    """
    report = on_step or nothing
    with scratch_folder("manifest") as folder:
        report("manifest", 0, 3)
        ManifestCache(Path(folder)).keep(_ADDRESS, _made_up(rows), float("inf"))
        report("reopen", 1, 3)
        code = f"from sophon.bench.bucket.manifest import reopen; reopen({str(folder)!r})"
        done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
        result: dict[str, Any] = json.loads(done.stdout)
        if objects:
            report("list", 2, 3)
            result |= _listed(objects, Path(folder))
    return result


def reopen(folder: str) -> None:
    """Open the manifest in this process, and write the cost to standard output."""
    start_s = time.monotonic()
    manifest = ManifestCache(folder).load(_ADDRESS)
    assert manifest is not None
    store = BucketStore(_ADDRESS, "synthetic", manifest)
    reopen_s = time.monotonic() - start_s
    peak_bytes = _peak_bytes()
    start_s = time.monotonic()
    order = epoch_order(len(manifest), 7, 1, shuffle=True)
    order_s = time.monotonic() - start_s
    some = order[:_LOOKED_UP].tolist()
    start_s = time.monotonic()
    for sample in some:  # what a request needs, in the order of an epoch: nearly every sample is in a different page
        store.key(sample)
        store.etag(sample)
    row_us = 1e6 * (time.monotonic() - start_s) / len(some)
    count, print_ = len(manifest), manifest.fingerprint
    state = State(7, 1, count // 2, count, True, print_, print_)
    result = {
        "rows": len(manifest),
        "reopen_s": reopen_s,
        "peak_bytes": peak_bytes,
        "order_s": order_s,
        "row_us": row_us,
        "used_peak_bytes": _peak_bytes(),
        "state_bytes": len(json.dumps(state.to_dict())),
    }
    sys.stdout.write(json.dumps(result))


def _peak_bytes() -> int:
    """Return the peak memory of this process; `getrusage` would include that of the parent."""
    status = Path("/proc/self/status").read_text()
    return 1024 * int(re.search(r"VmHWM:\s*(\d+) kB", status)[1])  # type: ignore[index]


def _made_up(rows: int) -> Manifest:
    numbers = pa.array(np.arange(rows))
    labels = np.arange(rows) * _CLASSES // rows
    texts = pc.utf8_lpad(numbers.cast(pa.string()), 9, "0")
    folders = pc.utf8_lpad(pa.array(labels).cast(pa.string()), 4, "0")
    ids = pc.binary_join_element_wise("n", folders, "/", texts, ".JPEG", "").cast(pa.large_string())
    etag = pc.binary_join_element_wise('"', texts, "0123456789abcdef0123456", '"', "")
    return Manifest(
        kind=BucketStore.kind,
        ids=ids,
        sizes=np.random.default_rng(0).integers(20_000, 200_000, rows),
        labels=labels,
        classes=tuple(f"n{number:04d}" for number in range(_CLASSES)),
        locations=pa.table({"etag": etag.cast(pa.large_string()).cast(pa.large_binary())}),
        sources=sources_of([Object("synthetic/", -1, "", 0)]),
    )


def _listed(objects: int, folder: Path) -> dict[str, Any]:
    """List one-byte objects in a hundred folders."""
    import obstore

    (folder / "server").mkdir()
    with object_server("seaweedfs", folder / "server") as server, used(server):
        server.put(((f"many/{number % 100:03d}/{number:08d}.jpg", b"x") for number in range(objects)), 32)
        raw = raw_store(server.endpoint)
        start_s = time.monotonic()
        count = sum(len(page) for page in obstore.list(raw, "many", chunk_size=1000))
        server_list_s = time.monotonic() - start_s
        start_s = time.monotonic()
        manifest, _ = list_manifest(Address("s3", BUCKET, "many"), folder / "journal")
        list_s = time.monotonic() - start_s
    assert count == len(manifest) == objects
    return {"objects": objects, "list_s": list_s, "server_list_s": server_list_s}
