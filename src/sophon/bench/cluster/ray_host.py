"""Run a Ray cluster of several raylets with storage nodes in a separate process, until its input ends.

Usage: ``python -m sophon.bench.cluster.ray_host FOLDER DATA PARTS``; prints one line of JSON when all nodes are ready.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

LABEL = "sophon-store"


def main(folder: Path, data: Path, parts: int) -> None:
    """Start everything, report it, and take it down when the input ends."""
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
        sys.stdin.read()
        down()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]))
