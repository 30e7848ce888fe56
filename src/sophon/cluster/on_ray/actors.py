"""Ray actors: each starts and watches one `sophon` process on its host, and handles no samples.

When an actor dies, its process keeps running, and the actor that Ray starts in its place adopts it (`cluster.keeper`).
Labels pin an actor to the Ray node that holds the data: while that node is unreachable the actor waits, and its process
keeps running.

Concurrency: a thread of the actor watches the process; Ray calls the methods from other threads.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from sophon.artifact import replacing
from sophon.cluster.keeper import LOOK_S, Keeper
from sophon.cluster.on_ray.layout import NAMESPACE, REGISTRY, Layout, NodeLayout
from sophon.errors import ConfigError

_ADDRESS_S = 2.0  # between two lookups of the registry's address
_ASK_S = 5.0


class Watched:
    """Base of both actors: keeps one process running.

    Args:
        folder: Folder for the state of the process.
        arguments: Command line of the process.
        port: Port to listen on; 0 for any.
    """

    def __init__(self, folder: Path, arguments: Sequence[str], port: int) -> None:
        self._keeper = Keeper(folder, arguments, port)
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._problem = ""
        self._thread = threading.Thread(target=self._watch, name="sophon-keeper", daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        while not self._ended.is_set():
            with self._lock:
                try:
                    if not self._ended.is_set():
                        self._keeper.look()
                        self._problem = ""
                except (ConfigError, OSError) as error:
                    self._problem = str(error)
            self.between()
            self._ended.wait(LOOK_S)

    def between(self) -> None:
        """Hook for periodic work."""

    def status(self) -> dict[str, Any]:
        """Return the state of the process."""
        child, ready = self._keeper.child, self._keeper.ready
        return {
            "pid": None if child is None else child.pid,
            "is_ready": bool(ready),
            "url": ready.get("url", ""),
            "starts": self._keeper.starts,
            "adopted": self._keeper.adopted,
            "problem": self._problem or ("" if ready else self._keeper.words()[-500:]),
        }

    def drain(self) -> None:
        """Let the process finish its work, stop it, and do not restart it."""
        self._ended.set()
        with self._lock:
            self._keeper.stop()
        self._keeper.close()


class RegistryKeeper(Watched):
    """Keeps `sophon registry` running.

    Args:
        layout: The whole layout.
    """

    def __init__(self, layout: Layout) -> None:
        told, folder = layout.registry, layout.place(REGISTRY)
        arguments = ["registry", "--host", told.host or own_host(), "--state", str(folder / "state.json")]
        super().__init__(folder, [*arguments, *told.options], told.port)

    def address(self) -> str:
        """Return the registry's address; "" while it is not ready."""
        return str(self._keeper.ready.get("url", ""))


class StorageKeeper(Watched):
    """Keeps `sophon serve` running.

    Args:
        layout: The whole layout.
        node: What this node serves.
    """

    def __init__(self, layout: Layout, node: NodeLayout) -> None:
        folder = layout.place(node.actor)
        folder.mkdir(parents=True, exist_ok=True)
        self._address_file = folder / "registry"
        self._asked_s = -_ADDRESS_S
        self._written = ""
        arguments = ["serve", *(f"{name}={path}" for name, path in node.data.items())]
        arguments += ["--host", node.host or own_host(), "--registry", f"@{self._address_file}"]
        arguments += ["--part", node.part] if node.part else []
        arguments += [] if node.cores is None else ["--cores", f"{node.cores:g}"]
        super().__init__(folder, [*arguments, *node.options], node.port)

    def between(self) -> None:
        """Write the registry's address to a file that the process reads."""
        if time.monotonic() - self._asked_s < _ADDRESS_S:
            return
        self._asked_s = time.monotonic()
        address = registry_address()
        if address and address != self._written:
            with contextlib.suppress(OSError), replacing(self._address_file) as file:
                file.write(address.encode() + b"\n")
                self._written = address


def own_host() -> str:
    """Return the address of this Ray node."""
    import ray

    return str(ray.util.get_node_ip_address())


def registry_address(timeout_s: float = _ASK_S) -> str:
    """Return the registry's address from its actor; "" if there is none yet."""
    import ray
    from ray.exceptions import RayError

    try:
        actor = ray.get_actor(REGISTRY, namespace=NAMESPACE)
        return str(ray.get(actor.address.remote(), timeout=timeout_s))
    except (ValueError, RayError):  # the actor does not exist, is unreachable, or does not answer
        return ""


def remote(kind: Callable[..., Any]) -> Any:
    """Return an actor class wrapped for Ray."""
    import ray

    return ray.remote(kind)
