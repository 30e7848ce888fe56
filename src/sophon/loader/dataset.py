"""RemoteDataset: the samples of a storage node as a map-style data set for any torch DataLoader.

Concurrency: may be used by several threads, and by forked or spawned worker processes, each of which makes its own
connection.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset

from sophon.codec.cut import Cut, finish_payload
from sophon.codec.wire import Reply, Request
from sophon.errors import ConfigError, Error
from sophon.loader.cuts import Assignment, agreed_cut, assignment_for, within
from sophon.loader.machine import Machine, MachineConfig
from sophon.loader.stats import Stats
from sophon.loader.transport import Transport, transport_to
from sophon.pipeline import Key, Kind, Pipeline, Tensor, Value

_DEFAULT_SAMPLE_BYTES = 1 << 20  # a guess for pipelines whose result has no fixed size


class RemoteDataset(Dataset[Any]):
    """The samples of ``grpc://host:port/dataset``, or of a path, after a pipeline.

    An item is (value, label), or the value alone where the data set has no labels; with `columns` a dict of them
    follows. Random ops depend on (seed, epoch, index): call `set_epoch` before each epoch, or use
    `sophon.EpochSampler`, which tells the epoch with every index.

    Args:
        url: Address of the data set, or a path for local mode.
        pipeline: A `Pipeline`, or a torchvision transform.
        seed: Of all randomness.
        policy: "none", "all", "resize" or a cut such as "2:webp" for all samples.
        plan: One cut per sample; overrides the policy.
        target_transform: Applied to labels.
        columns: Further columns to bring along; "id" is the sample's id.
        deadline_s: How long nothing may come before an error is raised.
    """

    def __init__(
        self,
        url: str,
        pipeline: Any,
        *,
        seed: int = 0,
        policy: str | Cut | None = None,
        plan: Any = None,
        target_transform: Callable[[Any], Any] | None = None,
        columns: Sequence[str] = (),
        deadline_s: float = 60.0,
        transport: Transport | None = None,
    ) -> None:
        self.url = str(url)
        self.pipeline = pipeline if isinstance(pipeline, Pipeline) else Pipeline.from_torchvision(pipeline)
        self.seed = Key(seed, 0, 0).seed
        self.target_transform = target_transform
        self.columns = tuple(columns)
        self.deadline_s = deadline_s
        self.transport = transport or transport_to(self.url)
        self.opened = self.transport.open(self.pipeline)
        unknown = set(self.columns) - set(self.opened.columns)
        if unknown:
            raise ConfigError(f"no column {min(unknown)!r} in {self.url}; there is {', '.join(self.opened.columns)}")
        wanted = assignment_for(self.pipeline, policy, plan, len(self))
        # Digests take a moment, and matter only if something is to run elsewhere.
        offloads = any(cut.k for cut in wanted.cuts)
        self.agreed_cut = agreed_cut(self.pipeline, self.opened) if offloads else 0
        self.assignment = within(wanted, self.agreed_cut)
        self._spec = self.pipeline.prefix(max(1, *(cut.k for cut in self.assignment.cuts))).to_spec()
        # Shared with worker processes, forked or spawned, also persistent ones.
        self._epoch = torch.zeros((), dtype=torch.int64).share_memory_()  # type: ignore[no-untyped-call]
        self.stats = Stats()

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the classes, by label."""
        return self.opened.classes

    @property
    def epoch(self) -> int:
        """The epoch that plain indexes belong to."""
        return int(self._epoch)

    def set_epoch(self, epoch: int) -> None:
        """Tell which epoch comes next; worker processes learn of it too."""
        self._epoch.fill_(Key(0, epoch, 0).epoch)

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
        if spec.kind is not Kind.TENSOR or None in spec.shape:
            return None
        return tuple(d or 0 for d in spec.shape), spec.dtype

    def __len__(self) -> int:
        return self.opened.samples

    def __getitem__(self, index: int | tuple[int, int]) -> Any:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int | tuple[int, int]]) -> list[Any]:
        """Return several samples, asked for in one request; an index may be (epoch, index)."""
        epochs, samples = zip(*(self._resolve(index) for index in indices), strict=True) if indices else ((), ())
        items: list[Any] = [None] * len(samples)
        for epoch in dict.fromkeys(epochs):
            places = [i for i, e in enumerate(epochs) if e == epoch]
            part = [samples[i] for i in places]
            for position, reply in self._fetch_all(epoch, part):
                value, target = self.finish(reply, epoch, part[position])
                items[places[position]] = self.item(torch_value(value), target, reply)
        return items

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
        config = MachineConfig(deadline_s=self.deadline_s, request_samples=len(samples), request_bytes=1 << 62)
        machine = Machine(len(samples), len(samples) or 1, config, 0, time.monotonic())
        remaining = len(samples)
        while remaining:
            ask = machine.ask(time.monotonic())
            if ask is None:
                if machine.fatal:
                    raise explain(machine.fatal, self.transport.address)
                time.sleep(machine.wait_s(time.monotonic()))
                continue
            try:
                for reply in self.transport.fetch(self.request(epoch, [samples[p] for p in ask.positions])):
                    position = ask.positions[reply.position] if 0 <= reply.position < len(ask.positions) else -1
                    if machine.reply(ask.request, position, len(reply.payload), time.monotonic()):
                        remaining -= 1
                        yield position, reply
                machine.ended(ask.request, time.monotonic())
            except Error as error:
                machine.failed(ask.request, error, time.monotonic())

    def finish(self, reply: Reply, epoch: int, sample: int, out: Tensor | None = None) -> tuple[Value, Any]:
        """Run what is left of the pipeline on a reply; return the value and the target."""
        if reply.error is not None:
            raise reply.error
        value = finish_payload(self.pipeline, reply.payload, Key(self.seed, epoch, sample), reply.cut, out)
        target = reply.label
        if self.target_transform is not None and self.opened.has_labels:
            target = self.target_transform(target)
        return value, target

    def item(self, value: Any, target: Any, reply: Reply) -> Any:
        """Return a sample as users see it."""
        parts = [value, target] if self.opened.has_labels else [value]
        if self.columns:
            parts.append(reply.columns)
        return tuple(parts) if len(parts) > 1 else parts[0]

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"stats": Stats()}


def torch_value(value: Value) -> Any:
    """Return an array as a torch tensor that may be written to, and anything else as it is."""
    if isinstance(value, np.ndarray):
        return torch.from_numpy(value if value.flags.writeable else value.copy())
    return value


def explain(error: Error, address: str) -> Error:
    """Return the error that ends an epoch, with what to do."""
    text = str(error) if address in str(error) else f"{address}: {error}"
    return type(error)(f"{text}. Is `sophon serve` running there and reachable? Raise deadline_s to wait longer.")
