"""Start, stop and inspect nodes on a Ray cluster.

`serve` may be called again: it starts what is missing and leaves running processes alone. To change the arguments of a
process, take everything `down` first.
"""

from __future__ import annotations

import contextlib
import time
from typing import Any

from sophon.cluster.on_ray.actors import RegistryKeeper, StorageKeeper, start_actor
from sophon.cluster.on_ray.layout import NAMESPACE, REGISTRY, Layout
from sophon.errors import ConfigError, UnavailableError

_POLL_S = 0.1
_ASK_S = 10.0
_DRAIN_S = 60.0
_PREFIX = "sophon:"


def serve(layout: Layout | dict[str, Any], wait_s: float = 120.0) -> str:
    """Start a registry and storage nodes on the Ray cluster; they keep running after this program ends.

    Args:
        layout: What to run; see `sophon.cluster.on_ray.layout`.
        wait_s: How long to wait for all processes to be ready; 0 returns immediately.

    Returns:
        The address of the registry; trainers may open ``sophon+ray://DATASET`` too.

    Raises:
        ConfigError: The layout is invalid, or Ray is not connected.
        UnavailableError: An actor was not ready in time; the message says which one and why.
    """
    layout = layout if isinstance(layout, Layout) else Layout.parse(layout)
    need_ray()
    actors = {REGISTRY: start_actor(RegistryKeeper, REGISTRY, layout.registry.label, layout)}
    for node in layout.nodes:
        actors[node.actor] = start_actor(StorageKeeper, node.actor, node.label, layout, node)
    return _wait(actors, wait_s) if wait_s else ""


def down(wait_s: float = _DRAIN_S) -> list[str]:
    """Drain and stop all nodes, then the registry; return the names of their actors."""
    import ray
    from ray.exceptions import RayError

    need_ray()
    names = sorted(running(), key=lambda name: name == REGISTRY)
    if REGISTRY in names:  # otherwise it would start relays again
        with contextlib.suppress(RayError):
            ray.get(ray.get_actor(REGISTRY, namespace=NAMESPACE).rest.remote(), timeout=_ASK_S)
    draining = {}
    for name in names:
        if name != REGISTRY:
            draining[name] = ray.get_actor(name, namespace=NAMESPACE).drain.remote()
    end_s = time.monotonic() + wait_s
    for name in names:
        actor = ray.get_actor(name, namespace=NAMESPACE)
        with contextlib.suppress(RayError):  # unreachable together with its Ray node: there is nothing to drain
            ray.get(draining.get(name) or actor.drain.remote(), timeout=max(0.1, end_s - time.monotonic()))
        ray.kill(actor, no_restart=True)
    return names


def status() -> list[dict[str, Any]]:
    """Return one row per actor: its name and the state of its process."""
    import ray
    from ray.exceptions import RayError

    need_ray()
    rows = []
    for name in running():
        row: dict[str, Any] = {"name": name}
        try:
            row |= ray.get(ray.get_actor(name, namespace=NAMESPACE).status.remote(), timeout=_ASK_S)
        except (RayError, ValueError) as error:
            row |= {"is_ready": False, "url": "", "problem": str(error).split("\n", 1)[0]}
        rows.append(row)
    return rows


def running() -> list[str]:
    """Return the names of all sophon actors that exist."""
    import ray

    found = ray.util.list_named_actors(all_namespaces=True)
    names = [one["name"] for one in found if one["namespace"] == NAMESPACE]
    return sorted(name for name in names if name.startswith(_PREFIX))


def need_ray() -> None:
    """Raise unless this process is connected to a Ray cluster."""
    try:
        import ray
    except ImportError as error:
        raise ConfigError('Ray is not installed; pip install "sophon-loader[ray]"') from error
    if not ray.is_initialized():
        raise ConfigError("this process is not connected to Ray; call ray.init(address='auto') first")


def _wait(actors: dict[str, Any], wait_s: float) -> str:
    import ray
    from ray.exceptions import RayError

    end_s = time.monotonic() + wait_s
    address, left, problem = "", dict(actors), {}
    while left:
        for name, actor in list(left.items()):
            try:
                told = ray.get(actor.status.remote(), timeout=min(_ASK_S, max(0.1, end_s - time.monotonic())))
            except RayError as error:
                told = {"is_ready": False, "problem": str(error).split("\n", 1)[0]}
            if told["is_ready"]:
                del left[name]
                address = told["url"] if name == REGISTRY else address
            else:
                problem[name] = told["problem"]
        if left and time.monotonic() > end_s:
            name = next(iter(left))
            raise UnavailableError(
                f"{name} is not ready after {wait_s:g} s: {problem.get(name) or 'it gave no reason'}. Check that a Ray "
                "node has the labels and data paths that the layout names"
            )
        time.sleep(_POLL_S)
    return address
