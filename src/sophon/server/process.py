"""The life of a server process: it starts, listens, announces that it is ready, and drains when told to stop."""

from __future__ import annotations

import faulthandler
import importlib
import json
import os
import resource
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

import pyarrow as pa

from sophon.artifact import replacing
from sophon.errors import ConfigError
from sophon.link.membership import Held, NodeRecord
from sophon.link.telling import tell_all
from sophon.process.arenas import bound_arenas, keep_buffers
from sophon.process.stop import StopSignals
from sophon.server.access import Access
from sophon.server.announcing import Announcer, Announcing, held_by, node_name
from sophon.server.budget import CpuBudget
from sophon.server.call_threads import bound_call_threads, watch_in_call_threads
from sophon.server.executor import Executor
from sophon.server.isolation.processes import Processes
from sophon.server.journal import LOG
from sophon.server.limit import RateLimit
from sophon.server.limits import Limits
from sophon.server.maker import Maker, Threads
from sophon.server.metrics import Metrics, serve_metrics
from sophon.server.service import Service
from sophon.store import Store
from sophon.store.address import Address
from sophon.store.bucket.account import Prices
from sophon.version import __version__

_LISTEN_S = 0.05  # between checks for running requests


@dataclass(frozen=True)
class ServerConfig:
    """How a server runs.

    Args:
        host: Address to listen on.
        port: Port to listen on; 0 for any free one.
        cores: CPU cores for ops; fractions allowed, 0 for none.
        limit_bytes_per_s: Limit on the sending rate, or None.
        metrics_port: HTTP port for health and metrics, 0 for any free one, None for none.
        ready_file: File to write once requests are accepted: JSON with url, port, metrics_port and pid.
        patience_s: Longest time a sample waits for a core before it is sent raw.
        drain_s: Longest time for running requests to end after SIGTERM.
        access: Who may read, and how connections are protected.
        limits: Limits for one request and one sample.
        isolation: Where ops run: "process" or "thread".
        modules: Python modules to import; they register ops and stores.
        indexes: Files of window indexes, which child processes open too.
        metrics_host: Address for health and metrics, which anyone who can reach it may read.
        debug: Whether tracebacks and paths of this machine are sent to trainers.
        prices: Prices of object stores.
        announcing: The registry to announce this node to; None for none.
    """

    host: str = "127.0.0.1"
    port: int = 7077
    cores: float = 1.0
    limit_bytes_per_s: float | None = None
    metrics_port: int | None = None
    ready_file: Path | None = None
    patience_s: float = 30.0
    drain_s: float = 30.0
    access: Access = field(default_factory=Access)
    limits: Limits = field(default_factory=Limits)
    isolation: str = "process"
    modules: tuple[str, ...] = ()
    indexes: tuple[Path, ...] = ()
    metrics_host: str = "127.0.0.1"
    debug: bool = False
    prices: Prices = field(default_factory=Prices)
    announcing: Announcing | None = None


@dataclass(frozen=True)
class Ready:
    """Where a server can be reached."""

    url: str
    port: int
    metrics_port: int | None
    pid: int


def run_server(stores: Mapping[str, Store], config: ServerConfig, on_ready: Callable[[Ready], None]) -> bool:
    """Serve until SIGTERM or SIGINT, then finish the requests in progress; return whether it was SIGINT."""

    def executor(budget: CpuBudget, maker: Maker) -> Executor:
        return Executor(stores, budget, config.patience_s, config.limits, maker)

    watch_in_call_threads()
    is_interrupt = run_executor(executor, config, on_ready, stores)
    for store in stores.values():
        store.close()
    return is_interrupt


def run_executor(
    make: Callable[[CpuBudget, Maker], Executor],
    config: ServerConfig,
    on_ready: Callable[[Ready], None],
    stores: Mapping[str, Store] = MappingProxyType({}),
) -> bool:
    """Serve with an executor of any kind; see `run_server`.

    Args:
        make: Returns the executor, given the CPU budget and the maker for ops.
        config: How the server runs.
        on_ready: Called once requests are accepted.
        stores: Data sets that the server holds, for the registry and the prices of object stores; a relay has none.
    """
    _check_place(config, stores)
    tell_all(config.debug)
    _set_bounds(config.limits)
    metrics = Metrics()
    if any(isinstance(store.path, Address) for store in stores.values()):
        metrics.price_buckets(config.prices)
    import_modules(config.modules)
    budget = CpuBudget(config.cores)
    in_threads = config.isolation == "thread"
    is_shared = config.access.tokens is not None and len(config.access.tokens) > 1
    maker = (
        Threads()
        if in_threads
        else Processes(budget.slots, config.limits, config.modules, config.indexes, has_reserve=is_shared)
    )
    executor = make(budget, maker)
    limit = None if config.limit_bytes_per_s is None else RateLimit(config.limit_bytes_per_s)
    try:
        service = Service(_url(config, config.port), executor, metrics, limit, config.access)
    except (OSError, ValueError, pa.ArrowException) as error:
        raise ConfigError(
            f"cannot listen on {config.host}:{config.port}: {error}; choose another --host or --port"
        ) from error
    metrics.backlog_s.set_function(lambda: budget.backlog_s)
    readings = executor.readings.values()
    metrics.reads_under_way.set_function(lambda: sum(reading.under_way for reading in readings))
    executor.on_smaller_cut = lambda reason: metrics.smaller_cuts.labels(reason).inc()
    http = None
    if config.metrics_port is not None:
        try:
            http = serve_metrics(metrics, config.metrics_host, config.metrics_port, lambda: service.accepts)
        except OSError as error:
            place = f"{config.metrics_host}:{config.metrics_port}"
            remedy = "choose another --metrics-host or --metrics-port"
            raise ConfigError(f"cannot listen on {place}: {error}; {remedy}") from error
    with StopSignals() as signals:
        metrics_port = None if http is None else http.server_port
        ready = Ready(_url(config, service.port), service.port, metrics_port, os.getpid())
        if config.ready_file is not None:
            _write(config.ready_file, ready)
        announcer = _announcer(stores, config, ready)
        on_ready(ready)
        # The main thread only waits for signals; Flight's own threads do the work.
        signals.wait()
        LOG.info("stopping: waiting for running requests", extra={"event": "stopping"})
        if announcer is not None:
            announcer.leave()
        _drain((service.drain, executor.close, budget.close, maker.close), signals, config.drain_s)
    if announcer is not None:
        announcer.close()
    if http is not None:
        http.shutdown()
    return signals.is_interrupt


def _announcer(stores: Mapping[str, Store], config: ServerConfig, ready: Ready) -> Announcer | None:
    """Start announcing this node to the registry, if there is one."""
    if config.announcing is None:
        return None
    url = config.announcing.url(config.access.scheme, config.host, ready.port)
    held = held_by(stores) | {name: Held() for name in config.announcing.names}
    told = (config.announcing.role, config.cores, __version__, held)
    return Announcer(config.announcing, NodeRecord(node_name(ready.pid), url, *told))


def _drain(steps: Sequence[Callable[[], None]], signals: StopSignals, most_s: float) -> None:
    """Let running requests end, and tasks left by cancelled ones; if they do not end in time, end the process."""
    drain = threading.Thread(target=lambda: [step() for step in steps], daemon=True)
    drain.start()
    end_s = time.monotonic() + most_s
    while drain.is_alive() and time.monotonic() < end_s:
        signals.listen(_LISTEN_S)
    if drain.is_alive():
        # A trainer that does not read its replies would keep us waiting forever. The stacks show any other reason.
        sys.stderr.write(f"sophon: requests are still running after {most_s:g} s and are aborted:\n")
        faulthandler.dump_traceback(all_threads=True)
        os._exit(1)


def _set_bounds(limits: Limits) -> None:
    """Set what this process keeps: descriptors, threads and memory."""
    bound_call_threads(limits.requests)
    bound_arenas()
    keep_buffers()
    # Every connection and every open file takes a descriptor.
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def import_modules(modules: tuple[str, ...]) -> None:
    """Import the user's own modules, which register ops and stores; repeated imports do no harm."""
    for name in modules:
        try:
            importlib.import_module(name)
        except Exception as error:  # a user's module may raise anything
            problem = f"{type(error).__name__}: {error}"
            raise ConfigError(
                f"--import {name}: {problem}; is it installed here, or its folder in PYTHONPATH?"
            ) from error


def _url(config: ServerConfig, port: int) -> str:
    host = f"[{config.host}]" if ":" in config.host else config.host
    return f"{config.access.scheme}://{host}:{port}"


def _check_place(config: ServerConfig, names: Iterable[str]) -> None:
    """Check that the address is free and belongs to this host, and that the names of data sets can be announced.

    gRPC would only log a problem with the address, and the registry would refuse the node again and again.
    """
    if config.announcing is not None:
        config.announcing.check((*names, *config.announcing.names))
    config.access.check_place(config.host)
    try:
        family = socket.getaddrinfo(config.host, config.port, type=socket.SOCK_STREAM)[0][0]
        with socket.create_server((config.host, config.port), family=family):
            pass
    except OSError as error:
        raise ConfigError(
            f"cannot listen on {config.host}:{config.port}: {error}; choose another --host or --port"
        ) from error
    if config.ready_file is not None and not config.ready_file.parent.is_dir():
        raise ConfigError(f"--ready-file: there is no folder {config.ready_file.parent}")


def _write(path: Path, ready: Ready) -> None:
    try:
        with replacing(path) as file:  # a process that waits for the file never sees half of it
            file.write(json.dumps(ready.__dict__).encode() + b"\n")
    except OSError as error:
        raise ConfigError(f"--ready-file {path} cannot be written: {error.strerror or error}") from error
