"""`sophon bench cluster`: several nodes, relays, Ray and other loaders, in one result."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

from sophon.bench.cluster.nodes import bench_nodes, bench_uneven
from sophon.bench.cluster.peers.bench import bench_peers, check_peers
from sophon.bench.cluster.ray_cost import bench_ray
from sophon.bench.harness import OnStep, nothing
from sophon.bench.planning.relays import bench_relays

_ROUNDS_WITH_PEERS = 2


def bench_cluster(
    data: Path,
    link_bytes_per_s: float = 2.5e6,
    rounds: int = 3,
    shape: str = "auto",
    *,
    peers: bool = False,
    relays: bool = False,
    on_step: OnStep = nothing,
) -> dict[str, Any]:
    """Measure one, two and four nodes, nodes with unequal links, and the cost of Ray.

    Args:
        data: Folder of photos.
        link_bytes_per_s: Rate of each node's link.
        rounds: Number of timed epochs per case; at most two with `peers`, so that everything takes five minutes.
        shape: How the rate is enforced; see `open_testbed`.
        peers: Whether to run other loaders on the same files.
        relays: Whether to also measure relays; see `bench_relays`.
        on_step: Called with the name of the next step.

    Returns:
        ``{"nodes": {"1": {"per_s"}, "2": …, "4": …}, "uneven", "relays", "ray_overhead", "ray", "sha256"}``;
        `ray_overhead` is None where Ray is not installed. With `peers`, the result of `bench_peers` is included.
    """
    has_ray = importlib.util.find_spec("ray") is not None
    if peers:
        check_peers()
        rounds = min(rounds, _ROUNDS_WITH_PEERS)
    result = bench_nodes(data, link_bytes_per_s, rounds, shape, on_step=on_step)
    result["times"] = result["nodes"]["4"]["per_s"] / result["nodes"]["1"]["per_s"]
    result["uneven"] = bench_uneven(data, link_bytes_per_s, rounds, shape, on_step=on_step)
    result["relays"] = bench_relays(data, rounds=rounds, on_step=on_step)["relays"] if relays else {}
    ray = bench_ray(data, on_step=on_step) if has_ray else None
    result["ray"], result["ray_overhead"] = ray, None if ray is None else ray["overhead"]
    if peers:
        result["peers"] = bench_peers(data, link_bytes_per_s, on_step)
    return result
