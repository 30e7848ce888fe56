"""The rig as one object: a link of a known rate, a server with a known number of cores, and a trainer.

Whatever happens inside the ``with`` block, even Ctrl-C, both processes, the namespaces and the cgroup are gone
afterwards.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from sophon.bench.rig import goodput, quota
from sophon.bench.rig.namespaces import ShapedLink, can_shape, loopback_congestion_control
from sophon.bench.rig.processes import RigError, Server, Trainer, cpus_for_two
from sophon.errors import ConfigError

SHAPES = ("auto", "tbf", "server")


@dataclass(frozen=True)
class RigFacts:
    """A description of a rig, for the record.

    Args:
        shaped_by: "tbf": the kernel, on a veth pair; "server": `sophon serve --limit`, on loopback.
        link_bytes_per_s: The requested rate.
        goodput_bytes_per_s: Rate of TCP payload that the link carries.
        congestion_control: Congestion control of TCP where data is sent; None if unknown.
        pinned: CPUs of server and trainer; None if they are not pinned.
        quota: How fractions of a core are enforced; None if only by the server's own budget.
    """

    shaped_by: str
    link_bytes_per_s: float
    goodput_bytes_per_s: float
    congestion_control: str | None
    pinned: dict[str, list[int]] | None
    quota: str | None

    def to_json(self) -> dict[str, Any]:
        """Return the facts as a JSON object."""
        return dict(vars(self))


class Testbed:
    """A storage node, a trainer and the link between them; opened with `open_testbed`.

    Its attributes `link` and `cpus` (of storage nodes, and of the trainer) are for processes that it does not start
    itself.

    Args:
        link: The namespaces, or None on loopback.
        link_bytes_per_s: The rate.
        trainer: The trainer's process, already running.
        shares: Share of the rate of each link, if links differ.
    """

    def __init__(
        self, link: ShapedLink | None, link_bytes_per_s: float, trainer: Trainer, shares: Sequence[float] = ()
    ) -> None:
        self.link = link
        self._shares = tuple(shares)
        self.cpus = cpus_for_two()
        self._limit_bytes_per_s = None if link is not None else link_bytes_per_s
        self.trainer = trainer
        self.facts = RigFacts(
            shaped_by="server" if link is None else "tbf",
            link_bytes_per_s=link_bytes_per_s,
            goodput_bytes_per_s=link_bytes_per_s if link is None else self._goodput(link),
            congestion_control=loopback_congestion_control() if link is None else link.congestion_control,
            pinned=None if self.cpus is None else {"server": self.cpus[0], "trainer": self.cpus[1]},
            quota=quota.mechanism(),
        )

    @property
    def interface(self) -> str:
        """The interface that counts the link's traffic; on loopback it counts all traffic in both directions."""
        return "lo" if self.link is None else self.link.trainer.interface

    @contextmanager
    def server(
        self, datasets: Mapping[str, Path], cores: float, node: int = 0, options: Sequence[str] = ()
    ) -> Iterator[Server]:
        """Run a server near storage with a number of cores; with 0 it only sends raw files.

        Args:
            datasets: Paths by name.
            cores: Number of cores for ops.
            node: Which storage node it runs on.
            options: Further options of `sophon serve`.
        """
        share = self._shares[node] if self._shares else 1.0
        limit = None if self._limit_bytes_per_s is None else self._limit_bytes_per_s * share
        storage = None if self.link is None else self.link.storages[node]
        with ExitStack() as stack:
            server = stack.enter_context(
                Server(
                    datasets,
                    cores,
                    host="127.0.0.1" if storage is None else storage.address,
                    limit_bytes_per_s=limit,
                    enter=() if storage is None else storage.enter_network,
                    cpus=None if self.cpus is None else self.cpus[0],
                    options=options,
                )
            )
            if 0 < cores < 1 and self.facts.quota is not None:  # from now on: startup is not limited
                stack.enter_context(quota.Quota(cores, server.pid))
            try:
                yield server
            finally:
                self.trainer.do("forget")

    @contextmanager
    def servers(self, datasets: Sequence[Mapping[str, Path]], cores: float) -> Iterator[list[Server]]:
        """Run a server on each of the first storage nodes, each with its own data sets."""
        with ExitStack() as stack:
            yield [stack.enter_context(self.server(its, cores, node)) for node, its in enumerate(datasets)]

    @contextmanager
    def ranks(self, count: int) -> Iterator[list[Trainer]]:
        """Run further trainers on the CPU of the first, each with its rank in the environment as torchrun sets it."""
        with ExitStack() as stack:
            trainers = []
            for rank in range(count):
                told = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": count, "LOCAL_WORLD_SIZE": count}
                trainer = Trainer(
                    () if self.link is None else self.link.trainer.enter,
                    None if self.cpus is None else self.cpus[1],
                    {name: str(value) for name, value in told.items()},
                )
                trainers.append(stack.enter_context(trainer))
            yield trainers

    def _goodput(self, link: ShapedLink) -> float:
        address = link.storage.address
        command = [*link.storage.enter, sys.executable, goodput.__file__, address]
        with subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True) as sender:
            try:
                assert sender.stdout is not None
                port = sender.stdout.readline()
                if not port:
                    raise RigError("the goodput sender did not start")
                rate: float = self.trainer.do("goodput", host=address, port=int(port), seconds=goodput.SECONDS)
            finally:
                sender.kill()
        return rate


@contextmanager
def open_testbed(
    link_bytes_per_s: float, shape: str = "auto", nodes: int = 1, shares: Sequence[float] = ()
) -> Iterator[Testbed]:
    """Set up a trainer, and one or more storage nodes.

    Args:
        link_bytes_per_s: Rate of the link from each storage node to the trainer.
        shape: How the rate is enforced: "tbf", "server", or "auto" for tbf if this process is allowed to use it.
        nodes: Number of storage nodes, each with its own link.
        shares: Share of the rate that each link has, if they differ.
    """
    if shape not in SHAPES:
        raise ConfigError(f"shape: expected one of {', '.join(SHAPES)}, got {shape!r}")
    if shape == "tbf" and not can_shape():
        raise ConfigError("shaping by the kernel needs root and iproute2 (ip, tc); become root or use --shape server")
    with ExitStack() as stack:
        stack.enter_context(_ended_in_order())
        link = (
            stack.enter_context(ShapedLink(link_bytes_per_s, nodes, shares))
            if shape != "server" and can_shape()
            else None
        )
        cpus = cpus_for_two()
        trainer = Trainer(() if link is None else link.trainer.enter, None if cpus is None else cpus[1])
        stack.enter_context(trainer)
        yield Testbed(link, link_bytes_per_s, trainer, shares)


@contextmanager
def _ended_in_order() -> Iterator[None]:
    """Make SIGTERM unwind the stack as Ctrl-C does, so that nothing is left behind."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def on_signal(number: int, _: FrameType | None) -> None:
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, on_signal)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
