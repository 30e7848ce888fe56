"""Relays on a Ray cluster, whose number follows what trainers report; a program of its own, since Ray's threads stay.

Usage: python -m tests.support.ray_relays FOLDER IMAGES; prints one JSON object.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import sophon
import sophon.ray
from sophon.bench.cluster.raylets import raylets
from sophon.link.membership import TrainerReport
from sophon.link.registry import RegistryClient
from tests.support.servers import RECIPE, digest
from tests.support.waiting import wait_until


def ready() -> list[str]:
    return [row["name"] for row in sophon.ray.status() if row["is_ready"] and "relay" in row["name"]]


def main(folder: Path, images: Path) -> dict[str, Any]:
    with raylets([{"sophon-store": "1"}]):
        here = {"host": "127.0.0.1"}
        node = {"name": "store", "data": {"train": str(images)}, "cores": 1, "options": ["--isolation", "thread"]}
        relays = {"least": 1, "most": 2, "cores": 0.1, "options": ["--isolation", "thread"]}
        layout = {"nodes": [node | here], "registry": here, "relays": relays | here, "folder": str(folder / "nodes")}
        address = sophon.ray.serve(layout)
        facts: dict[str, Any] = {}
        wait_until(lambda: len(ready()) == 1, "the first relay is not started")
        loader = sophon.DataLoader("sophon+ray://train", RECIPE, batch_size=4, shuffle=True, seed=5, num_workers=2)
        sources = loader.dataset.samples.sources

        def found() -> int:
            sources.failed(0)  # look again soon
            sources.follow([0], 0)
            return len(sources.relays)

        wait_until(lambda: found() == 1, "the relay is not found")
        facts["digest"] = digest(batch for _ in range(2) for batch in loader)
        told = TrainerReport("train", "a", "trainer", 0.5).to_json()

        def wants_more() -> bool:
            RegistryClient(address).action("report", told)
            return len(ready()) == 2

        wait_until(wants_more, "the second relay is not started")
        facts["relays"] = ready()
        sophon.ray.down()
        facts["left"] = [row["name"] for row in sophon.ray.status()]
        return facts


if __name__ == "__main__":
    sys.stdout.write("\n" + json.dumps(main(Path(sys.argv[1]), Path(sys.argv[2]))) + "\n")
