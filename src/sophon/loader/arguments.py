"""The arguments of a loader: how they are checked, and their defaults."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from os import PathLike
from typing import Any

import numpy as np

from sophon.codec.cut import Cut
from sophon.errors import ConfigError
from sophon.link.credentials import Credentials
from sophon.link.transport import Transport
from sophon.loader.dataset import RemoteDataset, joined
from sophon.loader.epoch.collate import Collate
from sophon.loader.epoch.device import Device
from sophon.loader.machine.tuner import Setting, Tuner
from sophon.loader.options import Faults, OnError, Output, Planning, Ranks, Workers, at_least
from sophon.loader.order.log import Relaxed, Replay
from sophon.loader.order.order import Order
from sophon.loader.order.sampling import OwnOrder, Sampling, ToldOrder
from sophon.loader.planning.shared import MEASURED
from sophon.loader.sources.prefix_cache import Cache
from sophon.loader.torch_arguments import TorchArguments
from sophon.loader.torch_import import torch
from sophon.pipeline import Pipeline
from sophon.process.cores import cores_here

_MOST_REQUESTS = 32  # a storage node answers each with its own stream and a few samples of lookahead
_USUAL_BATCH = 64  # a guess for batch samplers that do not state their batch size
_SHALLOW = 8  # an eighth of the buffer's bytes is read ahead until that proves too little


@dataclass(frozen=True)
class Own:
    """Arguments beyond torch's; see `DataLoader`."""

    seed: int | None = None
    policy: Any = None
    order: str | Relaxed | Replay | None = None
    on_error: str | OnError | None = None
    output: str | Output | None = None
    target_transform: Callable[[Any], Any] | None = None
    credentials: Credentials | None = None
    faults: Faults | None = None
    cache: bool | str | Cut | Cache = False
    ranks: Ranks | None = None

    @property
    def device(self) -> Any:
        """The device for batches, if the user named one."""
        return self.output.device if isinstance(self.output, Output) else None

    def on_host(self) -> Own:
        """Return these arguments without a device, so samples are finished on the host, wherever their batches go."""
        return replace(self, output=replace(self.output, device=None)) if isinstance(self.output, Output) else self

    @property
    def planning(self) -> Planning:
        """How cuts are chosen."""
        return self.policy if isinstance(self.policy, Planning) else Planning(self.policy)

    def check_not_told_twice(self, dataset: RemoteDataset) -> None:
        """Raise if a loader gets settings that its data set already has."""
        policy = self.planning.policy
        told = {
            "seed": self.seed is not None and self.seed != dataset.seed,
            "policy": policy is not None and not (isinstance(policy, str) and policy in MEASURED),
            "on_error": self.on_error is not None,
            "output": self.output is not None,
            "target_transform": self.target_transform is not None,
            "credentials": self.credentials is not None,
            "faults": self.faults is not None,
            "cache": self.cache is not False,
        }
        names = ", ".join(name for name, is_told in told.items() if is_told)
        if names:
            raise ConfigError(f"a RemoteDataset has its own {names}; set them there, not on the loader")

    def open(self, data: Any, pipeline: Any, generator: Any) -> RemoteDataset:
        """Return the data set for an address, a path or an object; an open data set is returned unchanged."""
        if isinstance(data, Several):
            is_drawn = generator is not None and not any(isinstance(one, RemoteDataset) for one in data.members)
            told = replace(self, seed=_drawn(generator)) if is_drawn else self
            return joined([told.open(one, pipeline, None) for one in data.members])
        if isinstance(data, RemoteDataset):
            if pipeline is not None:
                raise ConfigError("a RemoteDataset has its own pipeline; leave out the loader's")
            self.check_not_told_twice(data)
            return data
        if self.seed is not None and generator is not None:
            raise ConfigError("seed and generator both set the seed; leave one of them out")
        policy, planning = self.planning.policy, self.planning
        measures = isinstance(policy, str) and policy in MEASURED
        return RemoteDataset(
            data,
            pipeline,
            seed=_drawn(generator) if self.seed is None else self.seed,
            policy=replace(planning, policy=None) if measures else planning,
            on_error="raise" if self.on_error is None else self.on_error,
            output="torch" if self.output is None else self.output,
            target_transform=self.target_transform,
            credentials=self.credentials,
            faults=self.faults,
            cache=self.cache,
        )


def _drawn(generator: Any) -> int:
    """Return a seed drawn from a torch generator; 0 if there is none."""
    if generator is None:
        return 0
    return int(torch.empty((), dtype=torch.int64).random_(generator=generator).item())


@dataclass(frozen=True)
class Several:
    """Data sets that are used as one, without duplicates."""

    members: tuple[Any, ...]


def unwrapped(data: Any) -> tuple[Any, Order | None]:
    """Return where samples come from, and which of them take part, resolving `Subset` and `ConcatDataset`."""
    if torch is not None and isinstance(data, torch.utils.data.Subset):
        inner, outer = unwrapped(data.dataset)
        mine = np.asarray(list(data.indices), np.int64)
        return inner, mine if outer is None else outer[mine]
    if torch is None or not isinstance(data, torch.utils.data.ConcatDataset):
        return data, None
    datasets: list[Any] = data.datasets
    found = [(*unwrapped(one), len(one)) for one in datasets]
    flat = [member for inner, _, _ in found for member in (inner.members if isinstance(inner, Several) else [inner])]
    members = list({id(member): member for member in flat}.values())
    starts, total = {}, 0
    for member in members:
        starts[id(member)] = total
        total += len(member)
    indices = np.concatenate([_in_whole(inner, outer, count, starts) for inner, outer, count in found])
    whole = members[0] if len(members) == 1 else Several(tuple(members))
    return whole, None if np.array_equal(indices, np.arange(total)) else indices


def _in_whole(inner: Any, outer: Order | None, count: int, starts: dict[int, int]) -> Order:
    """Return the indexes, in the whole data set, of the samples of one or several members."""
    mine = inner.members if isinstance(inner, Several) else (inner,)
    places = np.concatenate([np.arange(len(one)) + starts[id(one)] for one in mine])
    assert outer is not None or len(places) == count
    return places if outer is None else places[outer]


def divided(data: Any, pipeline: Any, positional: tuple[Any, ...]) -> tuple[Any, tuple[Any, ...]]:
    """Return the pipeline and torch's positional arguments; if the first is an object, the second may be either."""
    if isinstance(data, str | PathLike | list | tuple | Transport):
        if positional:
            raise ConfigError(
                f"{positional[0]!r} after the pipeline: with an address or a path, torch's arguments are keywords "
                "(batch_size=…, shuffle=…)"
            )
        return pipeline, ()
    is_pipeline = isinstance(pipeline, Pipeline | list | tuple) or callable(pipeline)
    if is_pipeline or (pipeline is None and not positional):
        return pipeline, positional
    return None, (pipeline, *positional)


def sampling_of(told: TorchArguments, dataset: RemoteDataset, indices: Order | None, uneven: str) -> Sampling:
    """Return what determines the order of samples."""
    given = told.sampler if told.batch_sampler is None else told.batch_sampler
    if given is None:
        return OwnOrder(len(dataset), dataset.seed, bool(told.shuffle), uneven, indices)
    return ToldOrder(given, told.batch_sampler is not None, len(dataset), dataset.seed, indices)


def batch_size_of(told: TorchArguments) -> int:
    """Return how many samples a batch has; an estimate if a batch sampler decides."""
    if told.batch_sampler is not None:
        size = getattr(told.batch_sampler, "batch_size", None)
        return size if isinstance(size, int) and size > 0 else _USUAL_BATCH
    return told.batch_size or 1


@dataclass(frozen=True)
class Single:
    """Makes a "batch" of one sample when there are no batches: the sample itself, as in torch.

    Args:
        output: "torch" or "numpy".
        collate: The user's own function, which is given the sample and not a list.
    """

    output: str
    collate: Callable[[Any], Any] | None = None

    def __call__(self, items: list[Any]) -> Any:
        """Return the sample."""
        if self.collate is not None:
            return self.collate(items[0])
        convert: Callable[[Any], Any] = torch.utils.data.default_convert
        return convert(items[0]) if self.output == "torch" else items[0]


def collate_of(told: TorchArguments, output: str) -> Collate | None:
    """Return the function that makes batches; None for torch's default."""
    return Single(output, told.collate_fn) if told.batch_size is None else told.collate_fn


def workers_of(told: int | str | Workers | None, is_remote: bool) -> Workers:
    """Return the `num_workers` setting: as given, or "auto" if there is a link to wait for."""
    if isinstance(told, Workers):
        return told
    if told is None:
        return Workers("auto" if is_remote else 0)
    return Workers(told)


def workers_kind(workers: Workers, told: TorchArguments, own_code: str) -> str:
    """Return whether workers are threads or processes; raise if that kind is impossible.

    Args:
        workers: Setting given by the user.
        told: Torch's arguments.
        own_code: The user code that the loader runs, in words; "" for none.
    """
    if workers.kind == "threads" and told.multiprocessing_context is not None:
        raise ConfigError("multiprocessing_context: threads are not started that way; leave out this or kind='threads'")
    if workers.kind == "threads" and own_code and workers.number != 0:
        raise ConfigError(
            f"kind='threads': {own_code} may draw from the global generators, which belong to the training loop, "
            "and holds the GIL; leave out kind to run it in worker processes, or use num_workers=0"
        )
    asks = own_code or told.multiprocessing_context is not None
    return workers.kind or ("processes" if asks else "threads")


def order_of(order: Any, in_order: bool) -> Any:
    """Return the order of batches, which torch's `in_order` can also set."""
    if in_order not in (True, False):
        raise ConfigError(f"in_order: expected True or False, got {in_order!r}")
    if not in_order and order == "strict":
        raise ConfigError("in_order=False asks for samples as they are finished, order='strict' for the opposite")
    return ("strict" if in_order else "relaxed") if order is None else order


def bound_ahead(buffer_bytes: int, prefetch_factor: Any, workers: int, batch_size: int, result_bytes: int) -> int:
    """Return how many bytes may be held: `buffer_bytes`, or `prefetch_factor` batches per worker if that is less."""
    if prefetch_factor is None:
        return buffer_bytes
    at_least("prefetch_factor", prefetch_factor, 1)
    return min(buffer_bytes, int(prefetch_factor) * max(workers, 1) * batch_size * result_bytes)


def tuner_for(kind: str, max_requests: int | None, requests: int, buffer_bytes: int) -> Tuner:
    """Return the tuner for a loader.

    Args:
        kind: "threads" or "processes".
        max_requests: Fixed number given by the user; None to tune it.
        requests: Initial number of requests.
        buffer_bytes: Bound on the bytes read ahead.
    """
    cores = cores_here()
    start = Setting(cores, requests, max(buffer_bytes // _SHALLOW, 1))
    # There may be more threads than cores, since some only wait; processes are all started beforehand.
    most = 4 * cores if kind == "threads" else cores
    return Tuner(start, Setting(most, max_requests or _MOST_REQUESTS, buffer_bytes), cores)


def relaxed_order(order: Any) -> Relaxed | None:
    """Return how far samples may deviate from their order; None if they may not."""
    if isinstance(order, Relaxed):
        return order
    if order == "relaxed":
        return Relaxed()
    if order != "strict" and not isinstance(order, Replay):
        raise ConfigError(f"order: expected 'strict', 'relaxed', Relaxed(max_delay) or Replay(log), got {order!r}")
    return None


def device_of(device: Any, dataset: RemoteDataset, told: TorchArguments) -> Device | None:
    """Return the device for batches; None if they stay on the host.

    Args:
        device: The loader's argument.
        dataset: The opened data set, which may have its own setting.
        told: Torch's arguments.
    """
    if dataset.table is not None and told.collate_fn is not None:
        raise ConfigError("device: a collate_fn is given finished samples; leave device out of the data set's output")
    name = dataset.device if device is None else device
    return None if name is None else Device(name, dataset.table)


def can_pin(wanted: bool, device: str, output: str) -> bool:
    """Return whether batches are to be copied into pinned memory."""
    if device and (not wanted or not _is_current(device)):
        raise ConfigError(
            f"pin_memory_device={device!r}: batches are pinned for the current accelerator, with pin_memory=True; "
            "leave it out"
        )
    if wanted and output == "numpy":
        raise ConfigError('pin_memory: only torch tensors can be pinned; use output="torch"')
    if wanted and not torch.accelerator.is_available():
        warnings.warn("pin_memory is set but there is no accelerator; batches are not pinned", stacklevel=3)
        return False
    return wanted


def _is_current(device: str) -> bool:
    """Return whether a device has the same type as this machine's accelerator; True if there is no accelerator."""
    here = torch.accelerator.current_accelerator() if torch is not None else None
    return here is None or torch.device(device).type == here.type
