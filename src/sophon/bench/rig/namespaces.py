"""Network namespaces joined by veth pairs that the kernel shapes from storage to trainer.

::

    namespace sophon-PID-N-s                     namespace sophon-PID-N-t
    192.0.2.1 ── spPIDnNs ══ tbf, RATE ═══════▶ spPIDnNt ── 192.0.2.2
                           ◀══════ unshaped ════

With several storage nodes, each has its own namespace and pair, and its own block of four addresses: 192.0.2.5 and .6
follow.

`tbf` is a token bucket on whole frames. Its bucket holds 2 ms' worth of data (at least 16 KB, ten frames), so that
bursts do not distort any second of a run, and its queue holds 100 ms' worth. Segmentation offload is off: frames have
the size that they would have on a wire, and the interface's counters count every header.

Names contain the process id, by which the next run finds and removes the leftovers of a run that was killed.
Limits: Linux, root, iproute2.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from sophon.bench.rig.shell import ToolError, call, tool
from sophon.errors import ConfigError

_NETWORK = "192.0.2"  # a block that RFC 5737 reserves for such uses
_MOST_NODES = 63  # with four addresses each
_BUCKET_S, _SMALLEST_BUCKET_BYTES, _QUEUE = 0.002, 16 * 1024, "100ms"
_FRAME_BYTES = 1514
_NAME = re.compile(r"sophon-(\d+)-\d+-[st]")
_numbers = itertools.count()


@dataclass(frozen=True)
class Node:
    """One end of the link.

    Args:
        namespace: Name of its namespace.
        interface: Name of its end of the veth pair.
        address: Its IP address.
    """

    namespace: str
    interface: str
    address: str

    @property
    def enter(self) -> tuple[str, ...]:
        """Command prefix that runs a command in the namespace."""
        return (str(tool("ip")), "netns", "exec", self.namespace)

    @property
    def enter_network(self) -> tuple[str, ...]:
        """The same without a separate /sys, which would hide the cgroups from a process that checks for a quota."""
        path = tool("nsenter")
        return self.enter if path is None else (path, f"--net=/run/netns/{self.namespace}")


class ShapedLink:
    """Storage nodes, the trainer and the links between them, for the length of a ``with`` block.

    Args:
        bytes_per_s: Rate from each storage node to the trainer, counted on whole frames.
        nodes: Number of storage nodes, each with its own link.
        shares: Share of the rate that each link has, if they differ.
    """

    def __init__(self, bytes_per_s: float, nodes: int = 1, shares: Sequence[float] = ()) -> None:
        if not 1 <= nodes <= _MOST_NODES:
            raise ConfigError(f"nodes: expected 1 … {_MOST_NODES}, got {nodes}")
        self._rates = [bytes_per_s * share for share in shares or (1.0,) * nodes]
        pid = os.getpid()  # up to seven digits; the name of an interface may have fifteen characters
        numbers = [next(_numbers) for _ in range(nodes)]
        self.storages = [
            Node(f"sophon-{pid}-{n}-s", f"sp{pid}n{n}s", f"{_NETWORK}.{4 * i + 1}") for i, n in enumerate(numbers)
        ]
        home = f"sophon-{pid}-{numbers[0]}-t"
        self._ends = [Node(home, f"sp{pid}n{n}t", f"{_NETWORK}.{4 * i + 2}") for i, n in enumerate(numbers)]
        self.storage, self.trainer = self.storages[0], self._ends[0]

    def __enter__(self) -> ShapedLink:
        remove_leftovers()
        try:
            self._build()
        except BaseException:
            self.close()
            raise
        return self

    def _build(self) -> None:
        for node in (*self.storages, self.trainer):
            call("ip", "netns", "add", node.namespace)
            call("ip", "-n", node.namespace, "link", "set", "lo", "up")
        for storage, trainer, bytes_per_s in zip(self.storages, self._ends, self._rates, strict=True):
            self._join(storage, trainer, bytes_per_s)

    def _join(self, storage: Node, trainer: Node, bytes_per_s: float) -> None:
        ends = (storage.interface, "netns", storage.namespace, trainer.interface, "netns", trainer.namespace)
        call("ip", "link", "add", *ends[:3], "type", "veth", "peer", "name", *ends[3:])
        for node in (storage, trainer):
            inside = ("ip", "-n", node.namespace)
            call(*inside, "addr", "add", f"{node.address}/30", "dev", node.interface)
            call(*inside, "link", "set", node.interface, "gso_max_size", str(_FRAME_BYTES), "gso_max_segs", "1")
            call(*inside, "link", "set", node.interface, "up")
        bucket_bytes = max(_SMALLEST_BUCKET_BYTES, int(bytes_per_s * _BUCKET_S))
        rate = (
            "rate",
            f"{bytes_per_s:.0f}bps",
            "burst",
            f"{bucket_bytes}b",
            "latency",
            _QUEUE,
        )  # tc's bps: bytes
        call("tc", "-n", storage.namespace, "qdisc", "add", "dev", storage.interface, "root", "tbf", *rate)

    def connect_all(self) -> None:
        """Let storage nodes reach each other, and every address of the trainer, through the trainer."""
        call("ip", "netns", "exec", self.trainer.namespace, "sysctl", "-qw", "net.ipv4.ip_forward=1")
        for storage, end in zip(self.storages, self._ends, strict=True):
            call("ip", "-n", storage.namespace, "route", "add", "default", "via", end.address)

    def received_bytes(self) -> int:
        """Return how many bytes of frames the trainer has received over all links so far."""
        told = json.loads(call("ip", "-json", "-statistics", "-n", self.trainer.namespace, "link", "show"))
        names = {end.interface for end in self._ends}
        return sum(int(row["stats64"]["rx"]["bytes"]) for row in told if row["ifname"] in names)

    @property
    def congestion_control(self) -> str:
        """TCP's congestion control at the storage node."""
        return call("ip", "netns", "exec", self.storage.namespace, "cat", _CONTROL).strip()

    def close(self) -> None:
        """Remove the namespaces, and with them the interfaces; does nothing if there are none."""
        for node in (*self.storages, self.trainer):
            with contextlib.suppress(ToolError):
                call("ip", "netns", "delete", node.namespace)

    def __exit__(self, *_: object) -> None:
        self.close()


_CONTROL = "/proc/sys/net/ipv4/tcp_congestion_control"


def loopback_congestion_control() -> str | None:
    """TCP's congestion control outside our namespaces; None if the system does not report it."""
    path = Path(_CONTROL)
    return path.read_text().strip() if path.exists() else None


def can_shape() -> bool:
    """Whether this process may create namespaces and the tools are installed."""
    return hasattr(os, "geteuid") and os.geteuid() == 0 and all(map(tool, ("ip", "tc")))


def remove_leftovers() -> list[str]:
    """Remove the namespaces of dead runs, and end processes that still run in them; return their names."""
    removed = []
    for line in call("ip", "netns", "list").splitlines():
        name = line.split()[0] if line.split() else ""
        found = _NAME.fullmatch(name)
        if found is None or _alive(int(found[1])):
            continue
        with contextlib.suppress(ToolError):  # another run may be removing the same namespace
            for pid in call("ip", "netns", "pids", name).split():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGKILL)
            call("ip", "netns", "delete", name)
            removed.append(name)
    return removed


def _alive(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()
