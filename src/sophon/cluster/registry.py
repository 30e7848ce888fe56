"""`sophon registry`: serves the roll over Arrow Flight.

- ``GetFlightInfo(path=[dataset])``: one endpoint per part, with the addresses of its holders. The ticket of an endpoint
  describes the part, its metadata says how many of the holders are silent, and the metadata of the whole answer lists
  the relays.
- ``DoAction("announce")``: a `NodeRecord`; ``DoAction("leave")``: the same, from a node that stops.
- ``DoAction("status")``: all nodes that hold a data set the caller may read.
- ``DoAction("report")``: a `TrainerReport`, from a caller that may read the data set; answered with the number of
  relays wanted.
- ``DoAction("forget")``: forget the parts of a data set that no node holds.
- ``DoAction("list")``: names of the data sets.

Readers and nodes use separate tokens: a reader's token allows looking up a data set, and a node's token allows
announcing it.

Concurrency: Flight runs each call on its own thread; all calls share one lock, which is never held while waiting.
"""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import flight

from sophon.artifact import replacing
from sophon.cluster.registry_gate import NAME, NOTHING, RegistryGate, RegistryPass, pass_of
from sophon.cluster.relays import Demand, RelayCommand, RelayCrew
from sophon.cluster.roll import SETTLE_S, Roll, known_from
from sophon.errors import AccessError, ArtifactError, ConfigError, ProtocolError, RetryableError
from sophon.link.membership import NodeRecord, TrainerReport, dataset_of
from sophon.link.wire import parse_json
from sophon.plan.scaling import Bounds
from sophon.process.alarm import Alarm
from sophon.process.stop import StopSignals
from sophon.server.access import Access, Rights, Tokens
from sophon.server.call_threads import bound_call_threads
from sophon.server.guard.bouncer import Bouncer
from sophon.server.journal import LOG
from sophon.server.metrics import Metrics
from sophon.server.refusing import Refusing, typed_errors

FORMAT = "sophon-registry-1"
_MAX_STATE_BYTES = 64 << 20
_NO_NODE = (
    "this token may not announce nodes; give the node SOPHON_TOKEN=… with a token of the registry's --node-token-file"
)
_ANNOUNCING = (
    "this token may not announce data set {!r}; give the node a token whose line in --node-token-file names the data "
    "set"
)


@dataclass(frozen=True)
class RegistryConfig:
    """How a registry runs.

    Args:
        host: Address to listen on.
        port: Port to listen on; 0 for any free one.
        access: Read tokens, and how connections are protected.
        nodes: Tokens of the nodes, with the data sets that each may announce; None if any caller may announce.
        state: File that records the announced parts; None to keep no record.
        settle_s: How long to wait for announcements before the first answer; None for three announcement intervals.
        ready_file: File to write once calls are answered: JSON with url, port and pid.
        bounds: Bounds on the number of relays.
        relays: How to run relays here; None to leave that to others.
    """

    host: str = "127.0.0.1"
    port: int = 7070
    access: Access = field(default_factory=Access)
    nodes: Tokens | None = None
    state: Path | None = None
    settle_s: float | None = None
    ready_file: Path | None = None
    bounds: Bounds = field(default_factory=Bounds)
    relays: RelayCommand | None = None


_MOST_CALLS = 256  # at the same time; each takes milliseconds


class RegistryService(Refusing):
    """Answers Flight calls.

    Args:
        config: How the registry runs.
    """

    def __init__(self, config: RegistryConfig) -> None:
        self._config = config
        self._metrics = Metrics()
        self._lock = threading.Lock()
        known = _load(config.state)
        settle_s = SETTLE_S if config.settle_s is None else config.settle_s
        named = () if config.nodes is None else config.nodes.datasets
        self._roll = Roll(time.monotonic(), known, settle_s, named)
        self._bouncer: Bouncer | None = None
        self._demand = Demand(config.bounds)
        self._crew: RelayCrew | None = None
        host = f"[{config.host}]" if ":" in config.host else config.host
        alarm = Alarm()
        super().__init__(
            f"{config.access.scheme}://{host}:{config.port}",
            middleware={NAME: RegistryGate(config.access.tokens, config.nodes, alarm)},
            **config.access.tls_options(),
        )
        self.url = f"{'sophon+tls' if config.access.tls_cert else 'sophon'}://{host}:{self.port}"
        self._bouncer = Bouncer(self.port, alarm)
        if config.relays is not None:
            readers = config.access.tokens
            self._crew = RelayCrew(config.relays, config.bounds.most, self._wanted, self._upstreams, readers)

    def shutdown(self) -> None:
        """Stop after the calls in progress; also stop the relays that the registry runs."""
        if self._crew is not None:
            self._crew.close(stop=True)
        if self._bouncer is not None:
            self._bouncer.close()
        super().shutdown()

    def _pass(self, context: flight.ServerCallContext, size_bytes: int = 0) -> RegistryPass:
        """Return the caller's rights, or refuse the call; every method calls this first."""
        try:
            found = pass_of(context)
        except flight.FlightUnauthenticatedError:
            if self._bouncer is not None:
                self._bouncer.refused(context.peer())
            raise
        if self._bouncer is not None:
            self._bouncer.knows(context.peer(), size_bytes)
        return found

    def _rights(self, context: flight.ServerCallContext) -> Rights:
        return self._pass(context).reading

    def _typed_errors(self) -> typed_errors:
        return typed_errors(self._metrics, lambda error: LOG.warning("%s", error, extra={"event": "refused"}))

    # --- what is asked ------------------------------------------------------------------------------------------------

    def get_flight_info(
        self, context: flight.ServerCallContext, descriptor: flight.FlightDescriptor
    ) -> flight.FlightInfo:
        """Return one endpoint per part of a data set, with the addresses of its holders."""
        reading = self._pass(context).reading
        with self._typed_errors():
            path = descriptor.path or []
            if len(path) != 1:
                raise ProtocolError(f"expected the name of one data set, got {len(path)} names")
            dataset = path[0].decode("utf-8", "replace")
            if not reading.readable([dataset]):
                raise AccessError(f"this token does not give access to the data set {dataset[:80]!r}")
            now_s = time.monotonic()
            with self._lock:
                parts = self._roll.parts(dataset, now_s, reading)
                relays = {*self._roll.relays(dataset, now_s), *self._own_relays(dataset, now_s)}
            endpoints = [
                flight.FlightEndpoint(
                    json.dumps({"dataset": dataset, **vars(one.held)}).encode(),
                    list(one.urls),
                    app_metadata=json.dumps({"silent": one.silent, "missing": not one.urls}).encode(),
                )
                for one in parts
            ]
            samples = sum(one.held.samples for one in parts)
            about = json.dumps({"relays": sorted(relays)}).encode()
            return flight.FlightInfo(pa.schema([]), descriptor, endpoints, samples, -1, app_metadata=about)

    def list_actions(self, context: flight.ServerCallContext) -> list[tuple[str, str]]:
        """List the available actions, for generic clients."""
        self._rights(context)
        return [
            ("announce", "announce what a node holds (JSON)"),
            ("leave", "report that a node is stopping (JSON)"),
            ("status", "all nodes (JSON)"),
            ("report", "report what holds a trainer up (JSON)"),
            ("forget", "forget the parts of a data set that no node holds (JSON)"),
            ("list", "names of the data sets"),
        ]

    def do_action(self, context: flight.ServerCallContext, action: flight.Action) -> Iterable[bytes]:
        """Answer with one JSON message."""
        caller = self._pass(context, action.body.size)
        with self._typed_errors():
            body = action.body.to_pybytes()
            if action.type in ("announce", "leave"):
                return [self._announced(NodeRecord.from_json(body), caller.announcing, action.type == "leave")]
            if action.type == "status":
                return [self._status(caller.reading, caller.announcing)]
            if action.type == "report":
                return [self._reported(TrainerReport.from_json(body), caller.reading)]
            if action.type == "list":
                with self._lock:
                    return [_json({"datasets": caller.reading.readable(self._roll.datasets())})]
            if action.type == "forget":
                return [self._forgotten(str(parse_json(body).get("dataset", "")), caller.announcing)]
        raise flight.FlightServerError(
            f"no action {action.type!r:.80}; use announce, leave, status, report, forget or list"
        )

    def _announced(self, record: NodeRecord, allowed: Rights, is_leaving: bool) -> bytes:
        if allowed == NOTHING:
            raise AccessError(_NO_NODE)
        for name in sorted(map(dataset_of, record.datasets)):
            if not allowed.readable([name]):
                raise AccessError(_ANNOUNCING.format(name[:80]))
        with self._lock:
            if is_leaving:
                self._roll.leave(record.node, allowed)
                is_new = False
            else:
                is_new = self._roll.announce(record, time.monotonic(), allowed)
            is_known = self._roll.knows(record)
            known = self._roll.known() if is_new else None
        if known is not None and self._config.state is not None:
            _save(self._config.state, known)
        return _json({"known": is_known})

    # --- relays -------------------------------------------------------------------------------------------------------

    def _reported(self, report: TrainerReport, reading: Rights) -> bytes:
        if not reading.readable([report.dataset]):
            raise AccessError(f"this token does not give access to the data set {report.dataset[:80]!r}")
        now_s = time.monotonic()
        with self._lock:
            self._demand.heard(report, now_s, reading.tenant)
        return _json({"relays": self._wanted()})

    def _wanted(self, running: int | None = None) -> int:
        """Return the number of relays wanted, given the number that work (by default, the number announced)."""
        now_s = time.monotonic()
        with self._lock:
            if running is None:
                if self._crew is not None:  # the crew asks for the number itself
                    return self._demand.wanted
                running = len({url.rpartition("/")[0] for url in self._roll.relays(None, now_s)})
            return self._demand.look(running, now_s)

    def _upstreams(self) -> dict[str, list[str]]:
        with self._lock:
            return self._roll.upstreams(time.monotonic())

    def _own_relays(self, dataset: str, now_s: float) -> list[str]:
        """Return the addresses of the relays that run here, one for each part; the lock must be held."""
        if self._crew is None:
            return []
        there = self._roll.upstreams(now_s)
        names = [name for name in self._crew.names() if dataset_of(name) == dataset and name in there]
        return [f"{url}/{name}" for url in self._crew.urls() for name in names]

    def _relays(self, now_s: float, sees: Callable[[str], bool]) -> dict[str, Any]:
        """Return the status for people, and for whoever starts relays elsewhere.

        Args:
            now_s: The time.
            sees: Whether the caller may be told of a data set: nobody learns the addresses of other relays.
        """
        wanted = self._wanted()
        with self._lock:
            announced = [url.rpartition("/") for url in self._roll.relays(None, now_s)]
            own = [] if self._crew is None else self._crew.urls()
            seen = {url for url, _, name in announced if sees(name)}
            return {
                "wanted": wanted,
                "running": len({*(url for url, _, _ in announced), *own}),
                "trainers": self._demand.trainers,
                "runs_here": self._crew is not None,
                "needs_tokens": self._config.access.tokens is not None,
                "urls": sorted({*seen, *own} if any(map(sees, self._roll.datasets())) else seen),
            }

    def _status(self, reading: Rights, announcing: Rights) -> bytes:
        def sees(name: str) -> bool:
            return any(rights.readable([dataset_of(name)]) for rights in (reading, announcing))

        now_s = time.monotonic()
        with self._lock:
            rows = self._roll.status(now_s)
            upstreams = {name: urls for name, urls in self._roll.upstreams(now_s).items() if sees(name)}
            missing = []
            for name in reading.readable(self._roll.datasets()):
                with suppress(RetryableError):  # the roll is new
                    missing += [f"{name} {one.held.name}" for one in self._roll.parts(name, now_s) if not one.urls]
        for row in rows:
            row["datasets"] = {name: held for name, held in row["datasets"].items() if sees(name)}
        nodes = [row for row in rows if row["datasets"]]
        return _json({"nodes": nodes, "missing": missing, "relays": self._relays(now_s, sees), "upstreams": upstreams})

    def _forgotten(self, dataset: str, allowed: Rights) -> bytes:
        if not allowed.readable([dataset]):
            raise AccessError(_ANNOUNCING.format(dataset[:80]))
        with self._lock:
            count = self._roll.forget(dataset)
            known = self._roll.known()
        if self._config.state is not None:
            _save(self._config.state, known)
        return _json({"forgotten": count})


def run_registry(config: RegistryConfig, on_ready: Callable[[RegistryService], None]) -> bool:
    """Answer calls until SIGTERM or SIGINT; return whether it was SIGINT.

    Args:
        config: How the registry runs.
        on_ready: Called once calls are answered.

    Raises:
        ConfigError: The registry cannot listen on the address.
    """
    check_access(config)
    try:
        family = socket.getaddrinfo(config.host, config.port, type=socket.SOCK_STREAM)[0][0]
        with socket.create_server((config.host, config.port), family=family):
            pass  # gRPC would report a taken port only in its log
        bound_call_threads(_MOST_CALLS)
        service = RegistryService(config)
    except (OSError, ValueError, pa.ArrowException) as error:
        raise ConfigError(
            f"cannot listen on {config.host}:{config.port}: {error}; choose another --host or --port"
        ) from error
    with StopSignals() as signals:
        if config.ready_file is not None:
            with replacing(config.ready_file) as file:
                file.write(_json({"url": service.url, "port": service.port, "pid": os.getpid()}) + b"\n")
        on_ready(service)
        signals.wait()
        service.shutdown()
    return signals.is_interrupt


def check_access(config: RegistryConfig) -> str | None:
    """Raise unless a registry with this protection may listen; return a warning or None."""
    if (config.access.tokens is None) != (config.nodes is None):
        given, other = ("--token-file", "--node-token-file")[:: 1 if config.nodes is None else -1]
        raise ConfigError(
            f"{given} was given without {other}: one lists who may read, the other who may announce nodes; give both"
        )
    return config.access.check_place(config.host)


def _load(path: Path | None) -> dict[str, Any]:
    if path is None or not path.exists():
        return {}
    try:
        data = path.read_bytes()
        said = parse_json(data, _MAX_STATE_BYTES)
        if said.get("format") != FORMAT or not isinstance(said.get("known"), dict):
            raise ProtocolError(f"expected {FORMAT}, got {said.get('format')!r:.40}")
        return known_from(said["known"])
    except (OSError, ProtocolError) as error:
        raise ArtifactError(f"--state {path} cannot be read: {error}; remove it and restart all nodes") from error


def _save(path: Path, known: dict[str, Any]) -> None:
    with replacing(path) as file:
        file.write(_json({"format": FORMAT, "known": known}) + b"\n")


def _json(message: dict[str, Any]) -> bytes:
    return json.dumps(message).encode()
