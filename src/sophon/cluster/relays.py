"""How many relays a registry wants, judging by trainers' reports; and the relays that it runs itself.

With ``--relays 0-4`` a registry starts and stops relays on its own host, each run by a `Keeper`, so they outlive the
registry and are adopted by the next one. Otherwise it only says how many are wanted: `sophon nodes` shows the number,
and on Ray the registry's actor acts on it (`on_ray`).

Concurrency: the registry's lock protects `Demand`. One thread of `RelayCrew` looks after all processes; other threads
only read the addresses.
"""

from __future__ import annotations

import contextlib
import hashlib
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from sophon.artifact import replacing
from sophon.cluster.keeper import LOOK_S, Keeper
from sophon.cluster.members import gives_way
from sophon.cluster.steady import Steady
from sophon.errors import ConfigError
from sophon.link.membership import TrainerReport
from sophon.plan.resources import kind_named
from sophon.plan.scaling import Bounds, Report, Scale, rescaled
from sophon.server.access import Tokens
from sophon.server.journal import LOG
from sophon.server.relay.behind import Behind

_MOST_TRAINERS = 4096
_STOP_S = 35.0  # a relay finishes the requests that it has

Upstreams = Mapping[str, Sequence[str]]
"""Addresses of the nodes of each data set or part, by the name that a relay gives it."""


class Demand:
    """The reports of trainers, and the number of relays that follows from them.

    Args:
        bounds: Bounds on the number.
    """

    def __init__(self, bounds: Bounds) -> None:
        self.bounds = bounds
        self._scale = Scale(bounds.least)
        self._reports: dict[tuple[int, str], Report] = {}  # by the trainer's token and name

    @property
    def wanted(self) -> int:
        """Number of relays wanted."""
        return self._scale.relays

    def heard(self, told: TrainerReport, now_s: float, tenant: int = 0) -> None:
        """Record a trainer's report; beyond the limit on trainers, the token with most of them gives way.

        Args:
            told: The report.
            now_s: The time.
            tenant: Number of the trainer's token; trainers of different tokens may have the same name.
        """
        self._forget(now_s)
        key = (tenant, told.trainer)
        if key not in self._reports and len(self._reports) >= _MOST_TRAINERS:
            giver = gives_way((owner for owner, _ in self._reports), tenant)
            if giver == tenant:
                return
            del self._reports[next(one for one in self._reports if one[0] == giver)]
        bottleneck = told.bottleneck
        try:
            kind_named(bottleneck)
        except ConfigError:  # a resource that only a different release knows, or none
            bottleneck = ""
        self._reports[key] = Report(now_s, bottleneck, told.waited_share, told.relay_share)

    def look(self, running: int, now_s: float) -> int:
        """Return the number of relays wanted now.

        Args:
            running: Number of relays that work. No more are wanted until those wanted earlier are running.
            now_s: The time.
        """
        before = self._scale
        self._forget(now_s)
        self._scale = rescaled(before, list(self._reports.values()), self.bounds, now_s)
        if self._scale.relays > before.relays > running:
            self._scale = replace(self._scale, relays=before.relays)
        return self._scale.relays

    @property
    def trainers(self) -> int:
        """Number of trainers that have reported recently."""
        return len(self._reports)

    def _forget(self, now_s: float) -> None:
        old = [name for name, one in self._reports.items() if now_s - one.at_s > self.bounds.stale_s]
        for name in old:
            del self._reports[name]


@dataclass(frozen=True)
class RelayCommand:
    """How the relays of a registry are run.

    Args:
        host: Address that the relays listen on.
        cores: Number of cores that each relay has for ops.
        folder: Folder for the state of the processes.
        options: Further options of `sophon relay`.
    """

    host: str
    cores: float
    folder: Path
    options: tuple[str, ...] = ()

    def arguments(self, behind: Behind) -> list[str]:
        """Return what follows `sophon` on the command line, and write the file of nodes that it names."""
        told = behind.to_json()
        # Named by its content, so that a relay is started again if it changes.
        path = self.folder / f"nodes-{hashlib.blake2b(told, digest_size=8).hexdigest()}.json"
        if not path.exists():
            self.folder.mkdir(parents=True, exist_ok=True)
            for old in self.folder.glob("nodes-*.json"):
                old.unlink(missing_ok=True)
            with replacing(path) as file:
                file.write(told)
        return ["relay", "--announced", str(path), "--host", self.host, "--cores", f"{self.cores:g}", *self.options]


class RelayCrew:
    """Runs as many relays as are wanted.

    Args:
        command: How the relays are run.
        most: Largest number of relays.
        wanted: Returns the number wanted, given the number that work.
        upstreams: Returns the nodes that the relays fetch from.
        readers: Tokens of the registry, which the relays require too; None for none.
    """

    def __init__(
        self,
        command: RelayCommand,
        most: int,
        wanted: Callable[[int], int],
        upstreams: Callable[[], Upstreams],
        readers: Tokens | None,
    ) -> None:
        self._command, self._most, self._readers = command, most, readers
        self._wanted, self._upstreams = wanted, upstreams
        self._steady: Steady[Upstreams] = Steady({})
        self._keepers: dict[int, Keeper] = {}
        self._leaving: dict[int, threading.Thread] = {}  # relays that are finishing their last requests
        self._has_looked = False
        self._told = -1
        self._problem = ""
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="sophon-relays", daemon=True)
        self._thread.start()

    def urls(self) -> list[str]:
        """Return the addresses of the relays that work."""
        ready = [keeper.ready for keeper in list(self._keepers.values())]
        return [str(one["url"]) for one in ready if one]

    def names(self) -> list[str]:
        """Return the names that the relays have for the nodes' data."""
        return list(self._steady.value)

    def close(self, *, stop: bool) -> None:
        """Stop looking after the relays, and either stop them too or leave them to the next registry."""
        self._ended.set()
        self._thread.join(_STOP_S)
        for number, keeper in list(self._keepers.items()):
            if stop:
                self._end(number, keeper)
            else:
                keeper.close()
        for thread in list(self._leaving.values()):
            thread.join(_STOP_S)

    def _run(self) -> None:
        while not self._ended.is_set():
            try:
                self._look()
                self._problem = ""
            except (ConfigError, OSError) as error:
                if str(error) != self._problem:
                    self._problem = str(error)
                    LOG.warning("relays: %s", error, extra={"event": "relays"})
            self._ended.wait(LOOK_S)

    def _look(self) -> None:
        wanted, found = self._wanted(len(self.urls())), self._upstreams()
        if not found:  # there is no node to fetch from
            return
        upstreams = self._steady.look(found, time.monotonic())
        if wanted != self._told:
            LOG.info(
                "running %d %s",
                wanted,
                "relay" if wanted == 1 else "relays",
                extra={"event": "relays", "relays": wanted},
            )
            self._told = wanted
        arguments = self._command.arguments(Behind(upstreams, self._readers is not None, self._readers))
        self._leaving = {number: thread for number, thread in self._leaving.items() if thread.is_alive()}
        for number in range(self._most):
            folder = self._command.folder / f"relay-{number}"
            keeper = self._keepers.get(number)
            if number in self._leaving:
                continue
            if number < wanted:
                if keeper is None or keeper.arguments != tuple(arguments):
                    if keeper is not None:
                        keeper.close()
                    keeper = self._keepers[number] = Keeper(folder, arguments)
                keeper.look()
            elif keeper is not None:
                self._end(number, keeper)
            elif not self._has_looked and folder.exists():  # a relay that an earlier registry has left
                self._end(number, Keeper(folder, arguments))
        self._has_looked = True

    def _end(self, number: int, keeper: Keeper) -> None:
        """Let a relay finish its requests, in a separate thread, so that the others are still looked after."""
        self._keepers.pop(number, None)

        def stop() -> None:
            with contextlib.suppress(OSError):
                keeper.stop(_STOP_S)
            keeper.close()

        thread = self._leaving[number] = threading.Thread(target=stop, name="sophon-relays-stop", daemon=True)
        thread.start()
