"""Run a Ray cluster of several raylets with storage nodes in a separate process, until its input ends.

Usage: ``python -m sophon.bench.cluster.ray_host FOLDER DATA PARTS``; prints one line of JSON when all nodes are ready.
For each line of its input it kills the processes of all nodes, one after another, and prints another line of JSON.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from sophon.bench.rig.processes import RigError

LABEL = "sophon-store"
_LONGEST_S, _POLL_S = 60.0, 0.02


def main(folder: Path, data: Path, parts: int) -> None:
    """Start everything, report that it is ready, and stop it when the input ends."""
    from sophon.bench.cluster.raylets import raylets
    from sophon.cluster.on_ray.serving import down, serve, status

    numbers = [str(number) for number in range(1, parts + 1)]
    with raylets([{LABEL: number} for number in numbers]) as (cluster, _):
        nodes = [
            {
                "name": f"store-{number}",
                "label": {LABEL: number},
                "data": {"train": str(data)},
                "part": f"{number}/{parts}",
                "cores": 0,
                "host": "127.0.0.1",
                "options": ["--cache-dir", str(folder / "cache")],
            }
            for number in numbers
        ]
        layout = {"nodes": nodes, "registry": {"host": "127.0.0.1"}, "folder": str(folder / "nodes")}
        registry = serve(layout)
        told = [row for row in status() if row["name"].startswith("sophon:storage:")]
        facts = {"address": cluster.address, "registry": registry, "urls": [f"{row['url']}/train" for row in told]}
        sys.stdout.write(json.dumps(facts | {"pids": [row["pid"] for row in told]}) + "\n")
        sys.stdout.flush()
        for _ in sys.stdin:
            sys.stdout.write(json.dumps({"again_s": [killed_s(row["name"]) for row in told]}) + "\n")
            sys.stdout.flush()
        down()


def killed_s(name: str) -> float:
    """Kill the process that an actor watches; return the seconds until its successor serves.

    The successor counts as serving once a client has received a sample from it, not when its actor says so.
    """
    from sophon.bench.ops import RECIPE
    from sophon.cluster.on_ray.serving import status
    from sophon.loader.dataset import RemoteDataset

    def row() -> dict[str, Any]:
        return next(one for one in status() if one["name"] == name)

    before = row()
    os.kill(before["pid"], signal.SIGKILL)
    start_s = time.monotonic()
    while True:
        now = row()
        if now["is_ready"] and now["pid"] != before["pid"]:
            dataset = RemoteDataset(f"{now['url']}/train", RECIPE, seed=0, policy="none")
            dataset[0]
            again_s = time.monotonic() - start_s
            for source in dataset.sources:
                source.close()
            return again_s
        if time.monotonic() - start_s > _LONGEST_S:
            raise RigError(f"{name} does not serve again: {now['problem']}")
        time.sleep(_POLL_S)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))
