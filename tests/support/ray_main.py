"""Nodes on a Ray cluster of several raylets, and what strikes them; a program of its own, since Ray's threads stay.

Usage: python -m tests.support.ray_main FOLDER IMAGES; prints one JSON object.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import ray

import sophon
import sophon.ray
from sophon.bench.cluster.raylets import raylets
from sophon.cluster.on_ray.layout import NAMESPACE, REGISTRY
from tests.support.servers import RECIPE, digest
from tests.support.waiting import wait_until

BATCH, SEED = 4, 5


def child(name: str) -> dict[str, Any]:
    return {row["name"]: row for row in sophon.ray.status()}[name]


def kill_child(name: str) -> float:
    """Kill the process of an actor; return the seconds until another one serves."""
    before = child(name)["pid"]
    os.kill(before, signal.SIGKILL)
    start_s = time.monotonic()
    wait_until(lambda: (now := child(name))["is_ready"] and now["pid"] != before, f"{name} does not come back")
    return time.monotonic() - start_s


def kill_actor(name: str) -> tuple[int, int]:
    """Kill an actor; return the process that it watched, and the one that its successor watches."""
    before = child(name)["pid"]
    ray.kill(ray.get_actor(name, namespace=NAMESPACE), no_restart=False)
    wait_until(lambda: child(name).get("adopted"), f"{name} adopts nobody")
    return before, child(name)["pid"]


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"


def main(folder: Path, images: Path) -> dict[str, Any]:
    with raylets([{"sophon-store": str(number)} for number in (1, 2)]) as (cluster, nodes):
        return struck(folder, images, cluster, nodes[0])


def struck(folder: Path, images: Path, cluster: Any, raylet: Any) -> dict[str, Any]:
    facts: dict[str, Any] = {}
    nodes = [
        {
            "name": f"store-{number}",
            "label": {"sophon-store": str(number)},
            "data": {"train": str(images)},
            "part": f"{number}/2",
            "cores": 1,
            "host": "127.0.0.1",
            "options": ["--limit", "3mbit", "--cache-dir", str(folder / "cache")],
        }
        for number in (1, 2)
    ]
    layout = {"nodes": nodes, "registry": {"host": "127.0.0.1"}, "folder": str(folder / "nodes")}
    facts["registry"] = sophon.ray.serve(layout)
    workers = sophon.Workers(2, buffer_bytes=1 << 20)
    settings = {"batch_size": BATCH, "shuffle": True, "seed": SEED, "num_workers": workers, "policy": "none"}
    start_s = time.monotonic()
    loader = sophon.DataLoader("sophon+ray://train", RECIPE, **settings)
    facts["opened_s"] = time.monotonic() - start_s
    facts["names"] = sorted(row["name"] for row in sophon.ray.status())

    def strikes() -> Any:
        for epoch in range(2):
            for number, batch in enumerate(loader):
                if (epoch, number) == (0, 2):
                    facts["again_s"] = kill_child("sophon:storage:store-1")
                if (epoch, number) == (0, 5):
                    facts["adopted"] = kill_actor("sophon:storage:store-2")
                if (epoch, number) == (1, 1):
                    facts["registry_again_s"] = kill_child(REGISTRY)
                if (epoch, number) == (1, 4):
                    facts["orphan"] = child("sophon:storage:store-1")["pid"]
                    cluster.remove_node(raylet, allow_graceful=False)
                yield batch

    facts["digest"] = digest(strikes())
    facts["samples"] = loader.stats.samples
    facts["orphan_runs"] = is_running(facts["orphan"])
    cluster.add_node(num_cpus=1, labels={"sophon-store": "1"})
    wait_until(lambda: child("sophon:storage:store-1").get("adopted"), "nobody adopts the orphan")
    facts["adopted_by_the_next_raylet"] = child("sophon:storage:store-1")["pid"] == facts["orphan"]
    pids = [row["pid"] for row in sophon.ray.status()]
    facts["stopped"] = sophon.ray.down()
    facts["left"] = [pid for pid in pids if is_running(pid)]
    return facts


if __name__ == "__main__":
    sys.stdout.write(json.dumps(main(Path(sys.argv[1]), Path(sys.argv[2]))) + "\n")
