"""RemoteDataset: the samples of a storage node as a map-style data set for any torch DataLoader.

Concurrency: may be used by several threads, and by forked or spawned worker processes, each of which makes its own
connection.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from os import PathLike
from typing import Any, TypeAlias

import numpy as np

from sophon.codec.cut import RAW, Cut, finish_payload
from sophon.codec.wire import Reply, Request
from sophon.errors import (
    BudgetError,
    ConfigError,
    Error,
    OpError,
    ProtocolError,
)
from sophon.loader.bad import DEFAULT_BUDGET, BadSample, BadSamples, row_of
from sophon.loader.collate import OUTPUTS, numpy_collate
from sophon.loader.credentials import Credentials
from sophon.loader.cuts import Assignment, agreed_cut, assignment_for, within
from sophon.loader.machine import MachineConfig
from sophon.loader.memory import bound_arenas
from sophon.loader.prefix_cache import DEFAULT_BYTES, CachedTransport, cache_cut, cache_for
from sophon.loader.sources import Address, Sources, addresses_of, explain, transport_to
from sophon.loader.stats import Stats
from sophon.loader.torch_import import Dataset, in_worker, need_torch, torch
from sophon.loader.transport import Transport
from sophon.pipeline import Key, Kind, Pipeline, Tensor, Trace, Value

Finished: TypeAlias = tuple[Value, Any, Reply]  # a value after all ops, its target, and the reply it was made of

_NAME_S = 2.0  # that the name of a bad sample's file is worth
_DEFAULT_SAMPLE_BYTES = 1 << 20  # a guess for pipelines whose result has no fixed size


class RemoteDataset(Dataset[Any]):
    """The samples of ``grpc://host:port/dataset``, or of a path, after a pipeline.

    Several nodes that hold the same data set share the work, and any of them may fail.

    An item is (value, label), or the value alone where the data set has no labels; with `columns` a dict of them
    follows. Random ops depend on (seed, epoch, index): call `set_epoch` before each epoch, or use
    `sophon.EpochSampler`, which tells the epoch with every index.

    Args:
        url: Address of the data set, a list of addresses of nodes that hold it, or a path for local mode.
        pipeline: A `Pipeline`, a list of ops, or a torchvision transform.
        seed: Of all randomness.
        policy: "none", "all", "resize" or a cut such as "2:webp" for all samples.
        plan: One cut per sample; overrides the policy.
        target_transform: Applied to labels.
        columns: Further columns to bring along; "id" is the sample's id.
        deadline_s: How long nothing may come before an error is raised.
        fallback: Path of the same files, which are read directly while no node answers.
        on_error: What becomes of a sample that cannot be had: "raise" its error, "substitute" the next good one of the
            data set, or "skip" it, which makes its batch smaller.
        error_budget: How many samples may be bad: a number, or a share of the data set; more are a `BudgetError`.
        output: "torch" tensors, or "numpy" arrays, which need no torch.
        cache: Keep what the ops before the first random one give, and run them once: True, or a cut such as "1:webp".
        cache_dir: Where; by default the user's cache folder.
        cache_bytes: How many bytes may be kept of this data set and these ops.
        token: Shown to the storage node; SOPHON_TOKEN by default.
        tls_ca: PEM file of who vouches for a ``grpc+tls://`` node; SOPHON_TLS_CA, else the system's, by default.
        tls_cert: PEM file of this trainer's certificate, for mutual TLS; SOPHON_TLS_CERT by default.
        tls_key: PEM file of its key; SOPHON_TLS_KEY by default.
    """

    def __init__(
        self,
        url: Address,
        pipeline: Any,
        *,
        seed: int = 0,
        policy: str | Cut | None = None,
        plan: Any = None,
        target_transform: Callable[[Any], Any] | None = None,
        columns: Sequence[str] = (),
        deadline_s: float = MachineConfig.deadline_s,
        fallback: str | PathLike[str] | None = None,
        on_error: str = "raise",
        error_budget: float = DEFAULT_BUDGET,
        output: str = "torch",
        cache: bool | str | Cut = False,
        cache_dir: str | PathLike[str] | None = None,
        cache_bytes: int = DEFAULT_BYTES,
        transport: Transport | None = None,
        token: str | None = None,
        tls_ca: str | PathLike[str] | None = None,
        tls_cert: str | PathLike[str] | None = None,
        tls_key: str | PathLike[str] | None = None,
    ) -> None:
        if output not in OUTPUTS:
            raise ConfigError(f"output: expected torch or numpy, got {output!r}")
        if output == "torch":
            need_torch('output="torch"')
        self.output = output
        addresses = addresses_of(url)
        self.url = ", ".join(addresses)
        self.pipeline = as_pipeline(pipeline)
        self.seed = Key(seed, 0, 0).seed
        self.target_transform = target_transform
        self.columns = tuple(columns)
        self.deadline_s = deadline_s
        credentials = Credentials(token, tls_ca, tls_cert, tls_key)
        reached = (transport_to(address, credentials, deadline_s) for address in addresses)
        nodes = [transport] if transport else list(reached)
        self.sources = Sources(nodes, fallback, self.pipeline, self.url, deadline_s)
        bound_arenas()
        self.opened = self.sources.open(self.pipeline)
        unknown = set(self.columns) - set(self.opened.columns)
        if unknown:
            raise ConfigError(f"no column {min(unknown)!r} in {self.url}; there is {', '.join(self.opened.columns)}")
        self.is_cached = cache is not False
        if self.is_cached:
            if plan is not None or policy is not None:
                raise ConfigError(
                    "a cache decides by itself what is done before it; give no policy and no plan with it"
                )
            policy = cache_cut(self.pipeline, cache)
        wanted = assignment_for(self.pipeline, policy, plan, len(self))
        # Digests take a moment, and matter only if something is to run elsewhere.
        offloads = any(cut.k for cut in wanted.cuts)
        self.agreed_cut = agreed_cut(self.pipeline, self.opened) if offloads else 0
        self.assignment = within(wanted, self.agreed_cut)
        if self.is_cached:
            (cut,) = wanted.cuts
            kept = cache_for(self.pipeline, self.opened, cut, cache_dir, cache_bytes)
            asks = self.assignment.cuts[0]
            self.sources.wrap(lambda source: CachedTransport(source, kept, self.pipeline, asks))
            self.assignment = wanted
        # All ops that can run elsewhere, since a codec may look ahead at those behind its cut.
        reach = self.pipeline.max_cut
        self._spec: dict[str, Any] = self.pipeline.prefix(reach).to_spec() if reach else {"ops": []}
        self.bad_samples = BadSamples(on_error, error_budget, len(self))
        self.stats = Stats()  # of samples that are got one by one or list by list; the loader's threads count elsewhere
        # Shared with worker processes, forked or spawned, also persistent ones; those come with torch.
        self._epoch: Any = np.zeros(1, np.int64)
        if torch is not None:
            self._epoch = torch.from_numpy(self._epoch).share_memory_()  # type: ignore[no-untyped-call]

    @property
    def transport(self) -> Transport:
        """The first source of samples."""
        return self.sources[0]

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the classes, by label."""
        return self.opened.classes

    @property
    def epoch(self) -> int:
        """The epoch that plain indexes belong to."""
        return int(self._epoch[0])

    def set_epoch(self, epoch: int) -> None:
        """Tell which epoch comes next; worker processes learn of it too."""
        self._epoch[0] = Key(0, epoch, 0).epoch

    def reassign(self, assignment: Assignment) -> None:
        """Use other cuts from now on; the tensors stay the same."""
        self.assignment = within(assignment, self.agreed_cut)

    @property
    def result_bytes(self) -> int:
        """Size of a finished sample, or a guess."""
        room = self.room
        return _DEFAULT_SAMPLE_BYTES if room is None else int(np.prod(room[0])) * np.dtype(room[1]).itemsize

    @property
    def room(self) -> tuple[tuple[int, ...], str] | None:
        """Shape and dtype of a finished sample, if it is a tensor of known size."""
        spec = self.pipeline.specs[-1]
        if self.has_calls or spec.kind is not Kind.TENSOR or None in spec.shape:
            return None
        return tuple(d or 0 for d in spec.shape), spec.dtype

    def __len__(self) -> int:
        return self.opened.samples

    def __getitem__(self, index: int | tuple[int, int]) -> Any:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int | tuple[int, int]]) -> list[Any]:
        """Return several samples, asked for in one request; an index may be (epoch, index)."""
        items = self.items(indices)
        if indices and not items:
            raise BudgetError(
                f"all {len(indices)} samples of a batch are bad, and nothing is left of it; the last one: "
                f"{list(self.bad_samples)[-1].message} Use on_error='substitute'."
            )
        return items

    def items(self, indices: Sequence[int | tuple[int, int]]) -> list[Any]:
        """Return several samples as `__getitems__` does; maybe none, where bad ones are skipped."""
        epochs, samples = zip(*(self._resolve(index) for index in indices), strict=True) if indices else ((), ())
        items: list[Any] = [None] * len(samples)
        for epoch in dict.fromkeys(epochs):
            places = [i for i, e in enumerate(epochs) if e == epoch]
            part = [samples[i] for i in places]
            for position, reply in self._fetch_all(epoch, part):
                sample = part[position]
                try:
                    found: Finished | None = self._finish_whole(reply, epoch, sample)
                except Exception as error:  # noqa: BLE001 - decoders and the user's own code may raise anything
                    found = self.mend(epoch, sample, error)
                items[places[position]] = found and (self.item(self.as_output(found[0]), *found[1:]),)
        return [item[0] for item in items if item is not None]

    def _finish_whole(self, reply: Reply, epoch: int, sample: int) -> Finished:
        start_s = time.thread_time()
        value, target = self.finish(reply, epoch, sample)
        value = self.run_calls(value, Key(self.seed, epoch, sample))
        self.stats.add(finish_cpu_s=time.thread_time() - start_s)
        return value, target, reply

    def mend(self, epoch: int, sample: int, error: Exception) -> Finished | None:
        """Return what takes the place of a bad sample, or None for nothing; raise where that is the policy."""

        def get(other: int) -> Finished:
            ((_, reply),) = self._fetch_all(epoch, [other])
            return self._finish_whole(reply, epoch, other)

        def row(bad: int, why: Exception) -> BadSample:
            return row_of(bad, epoch, why, self.bad_samples.name_of(bad) or self._name_of(bad))

        return self.bad_samples.mend(sample, error, len(self), get, row)

    def _resolve(self, index: int | tuple[int, int]) -> tuple[int, int]:
        epoch, sample = index if isinstance(index, tuple) else (self.epoch, index)
        sample = int(sample)
        if not -len(self) <= sample < len(self):
            raise IndexError(f"{self.url} has {len(self):,} samples; there is no sample {sample}")
        return int(epoch), sample % len(self)

    def request(self, epoch: int, samples: Sequence[int]) -> Request:
        """Return the request for some samples of an epoch, each with its cut."""
        return Request(
            dataset=self.opened.name,
            dataset_fingerprint=self.opened.fingerprint,
            pipeline=self._spec,
            seed=self.seed,
            epoch=epoch,
            samples=tuple(samples),
            cuts=self.assignment.of(samples),
            columns=self.columns,
        )

    def _fetch_all(self, epoch: int, samples: list[int]) -> Any:
        """Yield (position, reply) for all samples, trying again what fails, until the deadline."""
        config = self.sources.config(request_samples=min(len(samples), self.opened.max_samples), request_bytes=1 << 62)
        machine = self.sources.machine(len(samples), len(samples) or 1, config, 0)
        remaining = len(samples)
        before_s, before_cpu_s = time.monotonic(), time.thread_time()
        while remaining:
            ask = machine.ask(time.monotonic())
            if ask is None:
                if machine.fatal:
                    raise explain(machine.fatal, self.url)
                time.sleep(machine.wait_s(time.monotonic()))
                continue
            try:
                request = self.request(epoch, [samples[p] for p in ask.positions])
                is_fallback = self.sources.is_fallback(ask.node)
                for reply in self.sources[ask.node].fetch(request, self.deadline_s):
                    position = ask.positions[reply.position]
                    if machine.reply(ask.request, position, len(reply.payload), time.monotonic()):
                        remaining -= 1
                        self.stats.received(reply, request.cuts[reply.position], is_fallback)
                        fetch_cpu_s = time.thread_time() - before_cpu_s
                        self.stats.add(fetch_s=time.monotonic() - before_s, fetch_cpu_s=fetch_cpu_s)
                        yield position, reply
                        before_s, before_cpu_s = time.monotonic(), time.thread_time()
                machine.ended(ask.request, time.monotonic())
            except Error as error:
                self.stats.add(retries=1)
                machine.failed(ask.request, error, time.monotonic())
        self.sources.keep(machine)
        if self.stats.fallback and not in_worker():
            self.sources.warn_of_fallback(stacklevel=5)

    def finish(
        self, reply: Reply, epoch: int, sample: int, out: Tensor | None = None, trace: Trace | None = None
    ) -> tuple[Value, Any]:
        """Run what is left of the pipeline on a reply, up to the user's own code; return the value and the target."""
        if reply.error is not None:
            raise reply.error
        if self.opened.has_labels and reply.label is None:
            raise ProtocolError(f"{self.url}: a reply without a label from a data set that has labels")
        key, stop = Key(self.seed, epoch, sample), self.pipeline.max_cut
        try:
            value = finish_payload(self.pipeline, reply.payload, key, reply.cut, stop, out, trace)
        except OpError as error:
            raise self._named(error, sample) from error.__cause__
        target = reply.label
        if self.target_transform is not None and self.opened.has_labels:
            target = self.target_transform(target)
        return value, target

    def _named(self, error: OpError, sample: int) -> OpError:
        """Return the error of a sample with the name of its file, which is what people look for."""
        name = self._name_of(sample)
        if name is None:
            return error
        problem = f"{name}: {error.problem}"
        return OpError(problem, remedy=error.remedy, op=error.op, position=error.position, sample=error.sample)

    def _name_of(self, sample: int) -> str | None:
        request = replace(self.request(0, [sample]), cuts=(RAW,), columns=("id",))
        for source in self.sources:
            try:
                (reply,) = source.fetch(request, min(_NAME_S, self.deadline_s))
            except (Error, ValueError):
                continue
            name = reply.columns.get("id")
            return None if name is None else str(name)
        return None

    @property
    def has_calls(self) -> bool:
        """Whether the pipeline has steps of the user's own."""
        return self.pipeline.max_cut < len(self.pipeline)

    def run_calls(self, value: Value, key: Key) -> Value:
        """Run the user's own steps and what is behind them.

        They may draw from the global generators, which the training loop uses too: so they run in the thread that
        iterates, or in a worker process, and never in a worker thread.
        """
        return self.pipeline.run(value, key, self.pipeline.max_cut)

    def item(self, value: Any, target: Any, reply: Reply) -> Any:
        """Return a sample as users see it."""
        parts = [value, target] if self.opened.has_labels else [value]
        if self.columns:
            parts.append(reply.columns)
        return tuple(parts) if len(parts) > 1 else parts[0]

    def as_output(self, value: Value) -> Any:
        """Return a value as users want it: an array as a tensor that may be written to, or as it is."""
        if not isinstance(value, np.ndarray):
            return value
        own = value if value.flags.writeable else value.copy()
        return torch.from_numpy(own) if self.output == "torch" else own

    def collate(self, items: list[Any]) -> Any:
        """Make a batch of samples, as torch does by default."""
        if self.output == "numpy":
            return numpy_collate(items)
        return torch.utils.data.default_collate(items)


def as_pipeline(pipeline: Any) -> Pipeline:
    """Return a pipeline, given one, a list of ops or a torchvision transform."""
    if isinstance(pipeline, Pipeline):
        return pipeline
    if isinstance(pipeline, list | tuple):
        return Pipeline(pipeline)
    return Pipeline.from_torchvision(pipeline)
