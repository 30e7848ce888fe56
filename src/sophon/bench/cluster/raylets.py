"""A Ray cluster with several raylets on this machine.

Ray gives a raylet 30 seconds to start, which may not be enough on a busy machine, so the start is retried.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

_TRIES = 5


@contextmanager
def raylets(labels: Sequence[Mapping[str, str]], head_cpus: int = 1) -> Iterator[tuple[Any, list[Any]]]:
    """Run a head and one raylet per label, and connect; yield the cluster and the raylets."""
    os.environ.setdefault("RAY_raylet_start_wait_time_s", "300")
    os.environ.setdefault("RAY_agent_register_timeout_ms", "300000")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    import ray
    from ray.cluster_utils import Cluster

    cluster = Cluster()
    try:
        _added(cluster, num_cpus=head_cpus, include_dashboard=False)
        nodes = [_added(cluster, num_cpus=1, labels=dict(its)) for its in labels]
        ray.init(address=cluster.address, log_to_driver=False, logging_level="error")
        yield cluster, nodes
    finally:
        ray.shutdown()
        cluster.shutdown()


def _added(cluster: Any, **options: Any) -> Any:
    for left in reversed(range(_TRIES)):
        try:
            return cluster.add_node(**options)
        except Exception:  # raised by Ray when a raylet takes too long
            if not left:
                raise
    raise AssertionError
