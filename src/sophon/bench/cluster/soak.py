"""`sophon bench soak --cluster`: a soak over parts, their copies, and relays that come and go.

Four storage nodes hold two parts with two copies each, and two relays stand in front of both parts. Three trainers: one
reads from a list of the nodes, one through relays as well, and one from a file with all addresses, in which nodes and
relays are found again after failures. Faults hit all nodes and relays, as in `bench.soak`.
"""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any

from sophon.bench.harness import OnStep
from sophon.bench.soak import Node, Trainee, bench_soak
from sophon.codec.route import Route
from sophon.link.membership import PART_MARK
from sophon.loader.local_server import LocalServer

_PARTS, _COPIES, _RELAYS = 2, 2, 2
_NAME = "data"
_ROUTES = tuple(map(Route.parse, ("0:raw", "0:raw/2:raw", "2:webp", "0:window/2:webp", "0:raw/4:raw")))


def bench_cluster_soak(minutes: float, seed: int = 0, on_step: OnStep | None = None) -> dict[str, Any]:
    """Run for a number of minutes over four nodes and two relays; see `bench_soak`."""
    result = bench_soak(minutes, seed, on_step, cluster)
    return result | {"nodes": _PARTS * _COPIES, "relays": _RELAYS}


def cluster(photos: Path, folder: Path, stack: ExitStack) -> tuple[list[Node], list[Trainee]]:
    """Start parts with copies and relays in front of them, for three trainers."""
    nodes, parts = [], {}
    for part in range(1, _PARTS + 1):
        own = ("--cache-dir", str(folder), "--part", f"{part}/{_PARTS}")
        holders = [Node(LocalServer(photos, 1, name=_NAME, options=own), stack) for _ in range(_COPIES)]
        parts[f"{_NAME}{PART_MARK}{part}"] = [node.url for node in holders]
        nodes += holders
    relays = [Node(_Relay(parts), stack) for _ in range(_RELAYS)]
    straight = [url for urls in parts.values() for url in urls]
    through = [f"{relay.url.rpartition('/')[0]}/{name}" for relay in relays for name in parts]
    listed = folder / "nodes"
    listed.write_text("\n".join([*straight, *through]) + "\n")
    return [*nodes, *relays], [
        Trainee(straight, "2:webp", {"hedge": True}),
        Trainee([*straight, *through], routes=_ROUTES),
        Trainee(f"sophon+file://{listed}", routes=_ROUTES),
    ]


class _Relay(LocalServer):
    """`sophon relay` in front of some nodes."""

    def __init__(self, parts: dict[str, list[str]]) -> None:
        super().__init__("", 1, name=_NAME)
        self._command = ["relay", *(f"{name}={url}" for name, urls in parts.items() for url in urls), "--cores", "1"]
