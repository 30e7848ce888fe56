"""Relays for tests: real processes."""

from __future__ import annotations

from typing import Any

from sophon import LocalServer


class LocalRelay(LocalServer):
    """Runs ``sophon relay`` in front of some nodes while a ``with`` block lasts.

    Args:
        nodes: Addresses of the nodes; all hold the same.
        cores: CPU cores for ops.
        name: Name of the data set.
        port: Port to listen on; 0 for any free one.
        options: Further options of ``sophon relay``, as text.
    """

    def __init__(
        self,
        *nodes: str,
        cores: float = 1,
        name: str = "data",
        port: int = 0,
        options: tuple[str, ...] = (),
        **more: Any,
    ) -> None:
        super().__init__("", cores, name=name, port=port, **more)
        self._command = ["relay", *(f"{name}={node}" for node in nodes), "--cores", f"{cores:g}", *options]
