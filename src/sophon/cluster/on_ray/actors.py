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
from sophon.cluster.on_ray.layout import NAMESPACE, REGISTRY, Layout, NodeLayout, RelaysLayout
from sophon.cluster.relays import RelayCommand
from sophon.cluster.steady import Steady
from sophon.errors import ConfigError, Error
from sophon.link.registry import RegistryClient
from sophon.link.wire import parse_json
from sophon.server.relay.behind import Behind

_ADDRESS_S = 2.0  # between two lookups of the registry's address
_ASK_S = 5.0
_DRAIN_S = 40.0  # a relay finishes the requests that it has
_MOST_STATUS_BYTES = 64 << 20


class Watched:
    """Base class of the actors: keeps one process running.

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
                    if not self._ended.is_set() and self._is_due():
                        self._keeper.look()
                        self._problem = ""
                except (ConfigError, OSError) as error:
                    self._problem = str(error)
            self.between()
            self._ended.wait(LOOK_S)

    def _is_due(self) -> bool:
        """Return whether the process can be started."""
        return True

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
    """Keeps `sophon registry` running, and as many relay actors as the registry wants.

    Args:
        layout: The whole layout.
    """

    def __init__(self, layout: Layout) -> None:
        told, folder = layout.registry, layout.place(REGISTRY)
        self._layout = layout
        self._asked_s = -_ADDRESS_S
        self._rests = False
        self._leaving: dict[int, tuple[float, Any]] = {}  # relays that are finishing their last requests
        arguments = ["registry", "--host", told.host or own_host(), "--state", str(folder / "state.json")]
        if layout.relays.most:
            arguments += ["--relays", f"{layout.relays.least}-{layout.relays.most}", "--relays-elsewhere"]
        super().__init__(folder, [*arguments, *told.options], told.port)

    def rest(self) -> None:
        """Stop starting and stopping relays, because all of them are being taken down."""
        self._rests = True

    def between(self) -> None:
        """Start or stop relays to match the number that the registry wants."""
        if not self._layout.relays.most or self._rests or time.monotonic() - self._asked_s < _ADDRESS_S:
            return
        self._asked_s = time.monotonic()
        if (told := registry_status(self.address())) is not None and told.get("upstreams"):
            self._staff(int(told["relays"]["wanted"]))

    def _staff(self, wanted: int) -> None:
        """Start the relay actors that are wanted; let the others finish their work, then end them."""
        import ray

        for number, (since_s, drained) in list(self._leaving.items()):
            is_over = bool(ray.wait([drained], timeout=0)[0]) or time.monotonic() - since_s > _DRAIN_S
            if is_over:
                with contextlib.suppress(ValueError):
                    ray.kill(ray.get_actor(RelaysLayout.actor(number), namespace=NAMESPACE), no_restart=True)
                del self._leaving[number]
        layout = self._layout
        for number in range(min(wanted, layout.relays.most)):
            if number not in self._leaving:
                start_actor(
                    RelayKeeper,
                    RelaysLayout.actor(number),
                    layout.relays.label,
                    layout,
                    number,
                    cores=layout.relays.cores,
                )
        for number in range(wanted, layout.relays.most):
            if number not in self._leaving:
                with contextlib.suppress(ValueError):  # there is no such actor
                    actor = ray.get_actor(RelaysLayout.actor(number), namespace=NAMESPACE)
                    self._leaving[number] = time.monotonic(), actor.drain.remote()

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
        self._written = write_address(self._address_file, registry_address(), self._written)


class RelayKeeper(Watched):
    """Keeps `sophon relay` running in front of all current nodes.

    Args:
        layout: The whole layout.
        number: Number of the relay.
    """

    def __init__(self, layout: Layout, number: int) -> None:
        self._folder = layout.place(RelaysLayout.actor(number))
        self._folder.mkdir(parents=True, exist_ok=True)
        self._address_file = self._folder / "registry"
        options = (*layout.relays.options, "--registry", f"@{self._address_file}")
        self._command = RelayCommand(layout.relays.host or own_host(), layout.relays.cores, self._folder, options)
        self._asked_s = -_ADDRESS_S
        self._written = ""
        self._steady: Steady[dict[str, list[str]]] = Steady({})
        super().__init__(self._folder, (), 0)  # not started until the nodes are known

    def _is_due(self) -> bool:
        return bool(self._keeper.arguments)

    def between(self) -> None:
        """Find out which nodes there are; if they have changed, restart the relay in front of the new ones."""
        if time.monotonic() - self._asked_s < _ADDRESS_S:
            return
        self._asked_s = time.monotonic()
        address = registry_address()
        told = registry_status(address)
        if told is None or not told.get("upstreams"):
            return
        self._written = write_address(self._address_file, address, self._written)
        upstreams = self._steady.look(told["upstreams"], time.monotonic())
        needs_tokens = told.get("relays", {}).get("needs_tokens") is True
        arguments = tuple(self._command.arguments(Behind(upstreams, needs_tokens)))
        if arguments != self._keeper.arguments:
            with self._lock:
                if not self._ended.is_set():
                    self._keeper.close()
                    self._keeper = Keeper(self._folder, arguments)


def registry_status(address: str) -> dict[str, Any] | None:
    """Return a registry's status of nodes and relays; None if it does not answer."""
    if not address:
        return None
    try:
        return parse_json(RegistryClient(address).action("status"), _MOST_STATUS_BYTES)
    except Error:
        return None


def write_address(path: Path, address: str, written: str) -> str:
    """Write the registry's address to a file that a process reads; return the file's content."""
    if address and address != written:
        with contextlib.suppress(OSError), replacing(path) as file:
            file.write(address.encode() + b"\n")
            return address
    return written


def own_host() -> str:
    """Return the address of this Ray node."""
    import ray

    return str(ray.util.get_node_ip_address())


def registry_address(timeout_s: float = _ASK_S) -> str:
    """Return the registry's address, as its actor reports it; "" if there is none yet."""
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


def start_actor(kind: type[Any], name: str, label: Any, *arguments: Any, cores: float = 0) -> Any:
    """Return a detached actor, starting it unless it exists.

    Args:
        kind: Class of the actor.
        name: Name of the actor.
        label: Labels of the Ray node to run on; empty for any.
        arguments: Arguments of the class.
        cores: Number of cores that Ray reserves for the actor.
    """
    options: dict[str, Any] = {"label_selector": dict(label)} if label else {}
    return (
        remote(kind)
        .options(
            name=name,
            namespace=NAMESPACE,
            lifetime="detached",
            get_if_exists=True,
            max_restarts=-1,
            max_task_retries=-1,
            num_cpus=cores,
            max_concurrency=8,
            **options,
        )
        .remote(*arguments)
    )
