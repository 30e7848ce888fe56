"""`sophon bench store`: objects read through the reading stage or by other clients, and bytes read from a bucket.

All clients read the same objects of 100 KB from SeaweedFS on this machine, in turns and with the same number of
concurrent requests. CPU seconds are those of the reading process only. Clients that are not installed are left out.
"""

from __future__ import annotations

import os
import statistics
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from sophon.bench.bucket.peers import OBJECT_BYTES, Round, timed, with_boto3, with_fsspec, with_obstore
from sophon.bench.bucket.traffic import bucket_bytes
from sophon.bench.harness import OnStep, nothing
from sophon.bench.rig.object_server import BUCKET, ObjectServer, object_server
from sophon.process.arenas import keep_buffers
from sophon.process.scratch import scratch_folder
from sophon.store import open_store
from sophon.store.reading import Reading

OBJECTS = 1_000
AT_ONCE = 8
ROUNDS = 5


def bench_store(
    photos: Path | None = None,
    objects: int = OBJECTS,
    at_once: int = AT_ONCE,
    rounds: int = ROUNDS,
    with_plan: bool = False,
    on_step: OnStep | None = None,
) -> dict[str, Any]:
    """Measure requests per second and CPU of each client, and bytes read from a bucket.

    Args:
        photos: Folder of pictures whose bytes are counted; None to skip this.
        objects: Number of 100 KB objects that are read in each round.
        at_once: Concurrent requests.
        rounds: Number of measurements of each client.
        with_plan: Whether to also compare a node next to the bucket with one next to the folder; this measures all
            cuts.
        on_step: Called with the name, number and count of the next step.

    Returns:
        ``{"sophon_per_s", "obstore_per_s", "boto3_per_s", "fsspec_per_s", "sophon_cpu_ms", "obstore_cpu_ms",
        "bucket_bytes": {"whole", "band", "window"}, …}``, and with a plan ``{"link_gain": {"folder", "bucket"},
        "bucket_gain"}``
    """
    report = on_step or nothing
    keep_buffers()  # as a node does
    with scratch_folder("buckets") as folder, object_server("seaweedfs", Path(folder)) as server, used(server):
        os.environ["XDG_CACHE_HOME"] = str(Path(folder, "cache"))
        rng = np.random.default_rng(0)
        report("objects", 0, rounds + 2)
        names = [f"objects/{number:06d}.jpg" for number in range(objects)]
        server.put((name, rng.bytes(OBJECT_BYTES)) for name in names)
        result = _races(server, names, at_once, rounds, report)
        if photos is not None:
            report("bytes", rounds + 1, rounds + 2)
            result |= bucket_bytes(server, photos, Path(folder), with_plan)
    return result


@contextmanager
def used(server: ObjectServer) -> Iterator[None]:
    """Direct all addresses to a server while the block lasts, through the environment."""
    names = (*server.environment, "XDG_CACHE_HOME")
    before = {name: os.environ.get(name) for name in names}
    os.environ.update(server.environment)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


def _races(server: ObjectServer, names: list[str], at_once: int, rounds: int, report: OnStep) -> dict[str, Any]:
    made: dict[str, Round | None] = {
        "obstore": with_obstore(server, names, at_once),
        "sophon": _sophon(names, at_once),
        "boto3": with_boto3(server, names, at_once),
        "fsspec": with_fsspec(server, names, at_once),
    }
    racers = {name: race for name, race in made.items() if race is not None}
    for race in racers.values():  # warm-up: opens connections, and the stage learns how long a read takes
        race()
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in racers}
    for number in range(rounds):
        report(f"round {number + 1}", number + 1, rounds + 2)
        for name, race in racers.items():
            found[name].append(race())
    result: dict[str, Any] = {"objects": len(names), "object_bytes": OBJECT_BYTES, "at_once": at_once}
    for name in made:
        took = found.get(name)
        wall_s, cpu_s = ([one[place] for one in took] for place in range(2)) if took else ([], [])
        result[f"{name}_per_s"] = len(names) / statistics.median(wall_s) if took else None
        result[f"{name}_cpu_ms"] = 1000 * statistics.median(cpu_s) / len(names) if took else None
    result["rate_share"] = result["sophon_per_s"] / result["obstore_per_s"]
    result["cpu_share"] = result["sophon_cpu_ms"] / result["obstore_cpu_ms"]
    return result


def _sophon(names: list[str], at_once: int) -> Round:
    store = open_store(f"s3://{BUCKET}/objects")
    reading = Reading(at_once, lingers=True)

    def run() -> None:
        queue, done = reading.queue(), threading.Event()
        sizes: list[int] = []

        def job(indexes: range) -> None:
            sizes.extend([len(store.read(index)) for index in indexes])
            if len(sizes) == len(names):  # wake the waiting thread once, at the end, as the other clients do
                done.set()

        each = max(min(reading.run_samples, len(names) // at_once), 1)  # as many samples per job as on a node
        jobs = [range(start, min(start + each, len(names))) for start in range(0, len(names), each)]
        for indexes in jobs:
            queue.add(partial(job, indexes), len(indexes), OBJECT_BYTES * len(indexes))
        done.wait()
        queue.close()
        assert sizes == [OBJECT_BYTES] * len(names)

    return lambda: timed(run)
