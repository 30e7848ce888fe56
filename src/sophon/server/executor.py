"""Turns a request into replies, without any network.

Invariant 3 is implemented here: the executor may always do less than it is asked to. If it cannot make a cut (no core
is free in time, the op is not available, fails, crashes or takes too long, the codec does not apply), it answers with
the raw bytes of the sample and counts the case; the trainer does the rest. Only a sample that cannot be read is an
error.
"""

from __future__ import annotations

import json
import math
import threading
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping
from concurrent.futures import CancelledError
from hashlib import sha256
from typing import Any, TypeVar

import numpy as np
from cachetools import LRUCache
from numpy.typing import NDArray

from sophon.bundle import MOST_PARTS
from sophon.codec.table import offered
from sophon.errors import AccessError, ConfigError, ProtocolError, RetryableError
from sophon.link.listing import piece_of
from sophon.link.wire import PROTOCOLS, Reply, Request
from sophon.pipeline import Kind, Pipeline, Spec
from sophon.pipeline.op import Decoder
from sophon.pipeline.probe import digest_of, versions
from sophon.pipeline.registry import MOST_OPS, MOST_STEPS, check_bounds
from sophon.pipeline.spec import SIGNALS
from sophon.process.wall_clock import date_s
from sophon.server.access import EVERYTHING, Rights
from sophon.server.budget import CpuBudget
from sophon.server.isolation.crashes import Crashes
from sophon.server.limits import Limits
from sophon.server.maker import Maker, Threads
from sophon.server.seats import Seat, Seats
from sophon.server.tenants.rest import Crowding
from sophon.server.tenants.slot import Slot
from sophon.server.tenants.toll import Toll
from sophon.server.work import Task, Work
from sophon.store import Store
from sophon.store.reading import Reading
from sophon.units import format_bytes

_LOOKAHEAD = 64  # samples of a request that may be made before the link can take them
_PIPELINES = 32  # kept per tenant: the most recently used
_WORTH_BYTES = 1 << 16  # a message up to this size takes a fraction of a millisecond; longer ones take turns
_MOST_OBJECTS = 2 * MOST_OPS  # in a message: enough for the ops of a pipeline, and a few more
_Known = tuple[Pipeline | None, str]
T = TypeVar("T")
_SIZED = (Kind.IMAGE, Kind.TENSOR, *SIGNALS)
_NARROW = 4  # narrowed data sets remembered per tenant; each has the sizes of all samples
_LIST_S = 0.001  # minimum charge for a list: the call itself takes a few tenths of a millisecond
_SEND_S_PER_BYTE = 2e-9  # CPU cost of TLS and copies on either side


class Executor:
    """Answers requests for the samples of some data sets.

    Args:
        stores: Data sets by name.
        budget: CPU for ops.
        patience_s: Longest time a sample may wait for a core, regardless of the request.
        limits: Limits for one request and one sample.
        maker: Where ops run.
    """

    def __init__(
        self,
        stores: Mapping[str, Store],
        budget: CpuBudget,
        patience_s: float = 30.0,
        limits: Limits | None = None,
        maker: Maker | None = None,
    ) -> None:
        self._stores = dict(stores)
        self._versions = digest_of(versions())
        self._budget = budget
        self._patience_s = patience_s
        self.limits = limits or Limits()
        # One stage per store: a store that hangs does not delay reads from another.
        self.readings = {
            name: Reading(self.limits.reads, self.limits.read_bytes, lingers=True) for name in self._stores
        }
        self.maker = maker or Threads()
        self.crashes = Crashes()
        self.crowding = Crowding()
        self._toll = Toll(budget.charge)
        # One per tenant, so that no tenant can evict the entries of another.
        self._pipelines: defaultdict[int, LRUCache[bytes, _Known]] = defaultdict(lambda: LRUCache(_PIPELINES))
        self._probes: defaultdict[int, LRUCache[str, tuple[list[str], str]]] = defaultdict(lambda: LRUCache(_PIPELINES))
        self._narrow: defaultdict[int, LRUCache[tuple[str, tuple[str, ...]], Store]] = defaultdict(
            lambda: LRUCache(_NARROW)
        )
        self._lock = threading.Lock()
        self.on_smaller_cut: Callable[[str], None] = lambda _: None

    def admitted(self, rights: Rights, host: str) -> Rights:  # noqa: ARG002 - a relay asks its nodes first
        """Return the rights of a caller that has passed the gate; raise `AccessError` to reject it after all.

        Args:
            rights: What the gate knows about the caller.
            host: The caller's address.
        """
        return rights

    def names(self, rights: Rights = EVERYTHING) -> list[str]:
        """Names of the data sets that a caller may read."""
        return rights.readable(self._stores)

    def describe(self, message: dict[str, Any], rights: Rights = EVERYTHING) -> dict[str, Any]:
        """Answer a trainer that opens a data set: describe it, and report this node's versions and op digests."""
        store = self._store(str(message.get("dataset", "")), rights)
        answer: dict[str, Any] = {
            "dataset": store.name,
            "samples": len(store),
            "fingerprint": store.manifest.fingerprint,
            "classes": list(store.manifest.classes),
            "has_labels": store.manifest.labels is not None,
            "columns": ["id", *store.manifest.columns.column_names],
            "cores": self._budget.cores,
            "max_samples": self.limits.request_samples,
            "codecs": offered(),
            "fields": [field.to_json() for field in store.manifest.fields],
            "protocols": list(PROTOCOLS),
            "columns_digest": store.manifest.columns_digest,
            "state": store.manifest.state,
            "versions": versions(),
            "time_s": date_s(),
        }
        if store.part:
            answer |= {"part": store.part, "whole": store.whole}
        if isinstance(message.get("pipeline"), dict):
            answer |= self.tried(message["pipeline"], rights.tenant)
        return answer

    def tried(self, spec: dict[str, Any], tenant: int) -> dict[str, Any]:
        """Return which ops of a pipeline can run here, with digests of their results, for the answer to a trainer."""
        pipeline, reason = self.known_part(spec, tenant)
        found, problem = ([], "") if pipeline is None else self._probe(pipeline, tenant)
        return {
            "codecs": offered(pipeline),
            "max_cut": 0 if pipeline is None else pipeline.portable,
            "digests": found,
            "reason": problem or reason,
        }

    def file_sizes(self, message: dict[str, Any], rights: Rights = EVERYTHING) -> NDArray[np.int64]:
        """Return the size of every file of a data set.

        It is for a rank that plans for all ranks, although it reads only its own share.
        """
        store = self._store(str(message.get("dataset", "")), rights)
        names = message.get("fields", [])
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise ProtocolError(f"fields: expected a list of names, got {names!r:.80}")
        narrow = self._narrowed(store, tuple(names[:MOST_PARTS]), rights.tenant)
        return self._paid_list(rights.tenant, lambda: narrow.manifest.sizes, 4 * len(store))

    def listing(self, message: dict[str, Any], rights: Rights = EVERYTHING) -> list[bytes]:
        """Return some rows of a data set's listing, for a trainer that combines it from parts."""
        manifest = self._store(str(message.get("dataset", "")), rights).manifest
        start = message.get("start", 0)
        if isinstance(start, bool) or not isinstance(start, int) or not 0 <= start <= len(manifest):
            raise ProtocolError(f"start: expected an integer in 0 … {len(manifest):,}, got {start!r:.80}")
        if message.get("fingerprint") != manifest.fingerprint:
            raise ConfigError(
                f"data set {message.get('dataset')} is {manifest.fingerprint} here, but the trainer opened "
                f"{message.get('fingerprint')!r:.80}; the files have changed: start the run again"
            )
        return self._paid_list(rights.tenant, lambda: piece_of(manifest, start))

    def parsed(self, parse: Callable[[bytes], T], data: bytes, tenant: int = 0) -> T:
        """Parse a message; unless it is short, charge the tenant for the time."""

        def bounded() -> T:
            if data.count(b"{") > _MOST_OBJECTS:  # checked before anything is parsed
                raise ProtocolError(f"expected a message of at most {_MOST_OBJECTS:,} JSON objects")
            return parse(data)

        return (self._toll.pay_little if len(data) <= _WORTH_BYTES else self._toll.pay)(tenant, bounded)

    def paid(self, tenant: int, work: Callable[[], T]) -> T:
        """Do something short, and charge the tenant for the time."""
        return self._toll.pay_little(tenant, work)

    def _probe(self, pipeline: Pipeline, tenant: int) -> tuple[list[str], str]:
        """Run the pipeline on the built-in picture, once; ops may crash on it as on any other picture."""
        with self._lock:
            if pipeline.fingerprint in self._probes[tenant]:
                return self._probes[tenant][pipeline.fingerprint]
        result = self._inside(lambda slot: self.maker.probe(slot, pipeline), tenant)
        with self._lock:
            self._probes[tenant][pipeline.fingerprint] = result
        return result

    def _inside(self, work: Callable[[Slot], T], tenant: int) -> T:
        """Run something within a tenant's share of CPU, before its samples; without cores to share, run it directly."""
        task = self._budget.submit(work, math.inf, tenant, is_first=True)
        if task is None:
            return work(Slot(0))
        try:
            return task.result()[0]
        except CancelledError as error:
            raise RetryableError("this node is shutting down") from error

    def replies(self, request: Request, rights: Rights = EVERYTHING, seat: Seat | None = None) -> Work:
        """Return one reply per sample, each with the CPU seconds it took.

        A request can only name samples of a manifest. A request that cannot be answered is rejected here, before any
        data is read.
        """
        store = self._store(request.dataset, rights)
        if request.firsts:
            raise RetryableError("this is a storage node, but it was a relay when the data set was opened")
        found = store.manifest.fingerprint
        if request.dataset_fingerprint not in ("", found):
            raise ConfigError(
                f"data set {request.dataset} is {found} here, but the trainer started with "
                f"{request.dataset_fingerprint}; the files have changed: start the run again"
            )
        self.check_versions(request)
        if request.columns_digest not in ("", store.manifest.columns_digest):
            raise ConfigError(
                f"data set {request.dataset} has different column values here from those that the trainer started "
                "with; the "
                "files have changed: start the run again"
            )
        unknown = [name for name in request.columns if name != "id" and name not in store.manifest.columns.column_names]
        if unknown:
            raise ConfigError(f"data set {request.dataset} has no column {unknown[0]!r}")
        if request.samples and max(request.samples) >= len(store):
            sample = next(sample for sample in request.samples if sample >= len(store))
            raise ConfigError(f"data set {request.dataset} has {len(store):,} samples; there is no sample {sample}")
        store = self._narrowed(store, request.fields, rights.tenant)
        self._check_size(store, request)
        pipeline, _ = self.known_part(request.pipeline, rights.tenant)
        reading = self.readings[request.dataset]
        return Work(self, store, request, pipeline, seat or Seats(self.limits).enter(), reading)

    def check_versions(self, request: Request) -> None:
        """Raise if the libraries here are not those whose results the trainer has compared with its own."""
        if request.versions not in ("", self._versions):
            here = ", ".join(map(" ".join, versions().items()))
            raise ConfigError(
                f"this node was restarted with other libraries ({here}), whose results were not compared with the "
                "trainer's: start the run again"
            )

    def close(self) -> None:
        """Stop reading."""
        for reading in self.readings.values():
            reading.close()

    def id_of(self, dataset: str, sample: int) -> str:
        """Return the id of a sample, for messages."""
        return str(self._stores[dataset].manifest.ids[sample].as_py())

    def count(self, reason: str) -> None:
        """Count a sample with a smaller cut than requested."""
        self.on_smaller_cut(reason)

    def expected_problem(self, tenant: int, work: Hashable, sample: Hashable) -> str | None:
        """Return why a sample should not be processed now, judging by earlier ones; None if nothing speaks against it.

        Args:
            tenant: Tenant whose work it is.
            work: Pipeline and cut.
            sample: Data set and sample.
        """
        if self.crashes.expected(tenant, work, sample):
            return "crash"
        return "memory" if self.crowding.expected(tenant, work) else None

    def submit(self, task: Callable[[Slot], Reply], patience_s: float, tenant: int = 0) -> Task | None:
        """Queue work on a sample, or return None if it would wait too long."""
        return self._budget.submit(task, min(patience_s, self._patience_s), tenant)

    def charge(self, tenant: int, cpu_s: float) -> None:
        """Charge a tenant for CPU seconds spent for it outside the budget's threads."""
        self._budget.charge(tenant, cpu_s)

    def withdraw(self, tasks: Iterable[Task]) -> None:
        """Drop the work of a request whose trainer has left, to free the cores for others."""
        self._budget.withdraw(tasks)

    def _check_size(self, store: Store, request: Request) -> None:
        limits = self.limits
        if len(request.samples) > limits.request_samples:
            raise ConfigError(
                f"the request is for {len(request.samples):,} samples; this node accepts at most "
                f"{limits.request_samples:,}: ask for fewer at once, or raise --max-request-samples there"
            )
        sizes = store.manifest.sizes[list(request.samples)] if request.samples else np.zeros(0, np.int64)
        # A file that is too large is not read: its sample gets an error, and the others are still served.
        size_bytes = int(sizes[sizes <= limits.sample_bytes].sum())
        if size_bytes > limits.request_bytes:
            raise ConfigError(
                f"the request is for {format_bytes(size_bytes)}; this node accepts at most "
                f"{format_bytes(limits.request_bytes)}: ask for fewer samples at once, or raise --max-request-bytes "
                "there"
            )

    @property
    def lookahead(self) -> int:
        """How many samples of one request may be queued."""
        return _LOOKAHEAD + 2 * int(self._budget.cores)

    def _store(self, name: str, rights: Rights) -> Store:
        names = self.names(rights)
        if name in names:
            return self._stores[name]
        there_is = ", ".join(names) or "none"
        if rights.datasets is None:
            raise ConfigError(f"no data set {name[:80]!r} here; available: {there_is}")
        # The same message whether it exists or not: a token reveals nothing about data sets it does not open.
        raise AccessError(f"this token may not read a data set {name[:80]!r}; it may read {there_is}")

    def _paid_list(self, tenant: int, work: Callable[[], T], size_bytes: int = 0) -> T:
        """Make a long answer, and charge the tenant for making and sending it."""
        return self._toll.pay(tenant, work, max(_LIST_S, size_bytes * _SEND_S_PER_BYTE))

    def _narrowed(self, store: Store, fields: tuple[str, ...], tenant: int) -> Store:
        """Return a data set with only the fields that a request asks for; the results are cached per tenant."""
        if not fields and not store.manifest.fields:
            return store
        key = (store.name, fields)
        with self._lock:
            found = self._narrow[tenant].get(key)
        if found is None:
            found = self._toll.pay(tenant, lambda: store.narrowed(fields))
            with self._lock:
                self._narrow[tenant][key] = found
        return found

    def known_part(self, spec: dict[str, Any], tenant: int) -> _Known:
        """Return the longest prefix of a pipeline that may run here, and why it is not longer.

        The prefix is None if it would end before the second op. The result is remembered in either case: a spec is
        examined once, and the tenant is charged for it.
        """
        if not isinstance(spec.get("ops"), list) or len(spec["ops"]) > MOST_STEPS:
            raise ProtocolError(f"expected a pipeline spec with at most {MOST_STEPS} ops")
        try:
            check_bounds(spec)
        except ConfigError as error:
            return None, str(error)
        name = sha256(json.dumps(spec).encode()).digest()
        with self._lock:
            if name in self._pipelines[tenant]:
                return self._pipelines[tenant][name]
        found = self._toll.pay(tenant, lambda: _built(spec, self.limits))
        with self._lock:
            self._pipelines[tenant][name] = found
        return found


def _built(spec: dict[str, Any], limits: Limits) -> _Known:
    pipeline, problem = Pipeline.known_part(spec)
    reason = "" if problem is None else str(problem)
    return (None, reason) if pipeline is None else _within(pipeline, limits, reason)


def _within(pipeline: Pipeline, limits: Limits, reason: str) -> tuple[Pipeline | None, str]:
    """Return the longest prefix of a pipeline that stays within the limit on pixels."""
    for k, spec in enumerate(pipeline.specs[1:]):
        if _pixels(spec) > limits.pixels:
            reason = f"{pipeline.ops[k].name()} gives {spec}, beyond the {limits.pixels:,} pixels that this node allows"
            if k == 0:
                return None, reason
            pipeline = pipeline.prefix(k)
            break
    first = pipeline.ops[0]
    if isinstance(first, Decoder) and (bounded := first.within(limits.pixels)) is not first:
        pipeline = pipeline.with_ops([bounded, *pipeline.ops[1:]])
    return pipeline, reason


def _pixels(spec: Spec) -> float:
    """Return how many pixels a value has; 0 if unknown, but infinity for views, which may be many."""
    if spec.kind is Kind.VIEWS:
        return sum(map(_pixels, spec.views)) if spec.is_sized else math.inf
    return math.prod(size or 0 for size in spec.sizes) if spec.kind in _SIZED and spec.is_sized else 0
