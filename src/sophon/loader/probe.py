"""probe: three short runs that show what holds training back, before anything is planned.

Concurrency: as many threads as the loader uses; none is left behind.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import torch
from torch.utils.data import default_collate

from sophon.codec.cut import RAW
from sophon.errors import ConfigError, OpError, RetryableError, UnavailableError
from sophon.link.transport import Fetch, Transport
from sophon.link.wire import Reply
from sophon.loader.dataset import RemoteDataset
from sophon.loader.loader import DataLoader
from sophon.loader.machine.machine import MachineConfig
from sophon.loader.sources.samples import named
from sophon.loader.sources.sources import explain
from sophon.pipeline import Key
from sophon.profile.verdict import Verdict

_KEPT_BYTES = 512 << 20  # of raw samples held for preprocessing
_WARM_UP = 3  # steps that do not count: allocators, cuDNN, page cache

OnStep = Callable[[str, int, int], None]


def probe(
    loader: DataLoader,
    step: Callable[[Any], Any] | None = None,
    *,
    batches: int = 50,
    seconds: float = math.inf,
    on_step: OnStep | None = None,
) -> Verdict:
    """Measure the training step, raw fetching and preprocessing, each on its own.

    Args:
        loader: The loader to measure; it is not advanced.
        step: Called with one batch, as in training; the batch holds random numbers. None if there is none to measure.
        batches: How many batches each run takes.
        seconds: How long all runs may take together; a run that is not finished by then counts with what it has
            done, at least one batch or request.
        on_step: Called with the name of the run, the number of batches done and the total.
    """
    if batches < 1:
        raise ConfigError(f"batches: expected at least 1, got {batches}")
    if not seconds > 0:
        raise ConfigError(f"seconds: expected more than 0, got {seconds}")
    report = on_step or (lambda _name, _number, _count: None)
    share_s = seconds / (2 if step is None else 3)
    dataset, size = loader.dataset, loader.usual_batch
    if len(dataset) == 0:
        raise ConfigError(f"{dataset.url} is empty; there is nothing to measure")
    consumer_per_s = math.inf
    if step is not None:
        consumer_per_s = size * _steps_per_s(_synthetic(loader), step, batches, share_s, report)
    io_per_s, replies = _fetch(dataset, size * batches, size, share_s, report)
    cpu_per_s = _preprocess(dataset, replies, max(loader.num_workers, 1), size, share_s, report)
    return Verdict(consumer_per_s, io_per_s, cpu_per_s)


def _synthetic(loader: DataLoader) -> Any:
    """Return one of the loader's batches, with its floats replaced by random ones."""
    dataset = loader.dataset
    samples = [index % len(dataset) for index in range(loader.usual_batch)]
    batch = (loader.collate_fn or default_collate)(dataset.__getitems__(samples))
    return _randomised(batch)


def _randomised(batch: Any) -> Any:
    if isinstance(batch, torch.Tensor):
        return torch.randn_like(batch) if batch.is_floating_point() else batch
    if isinstance(batch, list | tuple):
        return type(batch)(_randomised(part) for part in batch)
    return batch


def _steps_per_s(batch: Any, step: Callable[[Any], Any], batches: int, most_s: float, report: OnStep) -> float:
    end_s = time.monotonic() + most_s
    for _ in range(_WARM_UP):
        step(batch)
    _wait_for_accelerator()
    start_s, done = time.monotonic(), 0
    while done < batches and (done == 0 or time.monotonic() < end_s):
        report("training step", done, batches)
        step(batch)
        done += 1
    _wait_for_accelerator()
    return done / max(time.monotonic() - start_s, 1e-9)


def _wait_for_accelerator() -> None:
    if torch.accelerator.is_available():
        torch.accelerator.synchronize()


def _fetch(
    dataset: RemoteDataset, count: int, size: int, most_s: float, report: OnStep
) -> tuple[float, list[tuple[int, Reply]]]:
    """Fetch raw samples without processing; return samples per second and as many samples as may be held."""
    order = list(itertools.islice(itertools.cycle(range(len(dataset))), count))
    requests = _requests(dataset, order)
    kept: list[tuple[int, Reply]] = []
    held_bytes = done = 0
    end_s = time.monotonic() + most_s

    def fetch(asked: tuple[Transport, list[int]]) -> list[tuple[int, Reply]]:
        source, samples = asked
        if done and time.monotonic() > end_s:
            return []
        request = replace(dataset.samples.request(0, samples), cuts=(RAW,) * len(samples))
        try:
            return _until(end_s, source.fetch(request, dataset.samples.deadline_s), samples)
        except RetryableError as error:  # a second try would be measured, too
            raise explain(UnavailableError(str(error)), dataset.url) from error

    start_s = time.monotonic()
    sources = len({id(source) for source, _ in requests})
    with ThreadPoolExecutor(MachineConfig.max_requests * sources, "sophon-probe") as pool:
        for replies in pool.map(fetch, requests):
            if not replies:  # the time is over; the few that are still in flight count, too
                continue
            done += len(replies)
            report("raw fetch", done // size, count // size)
            for sample, reply in replies:
                if held_bytes < _KEPT_BYTES and reply.error is None:
                    kept.append((sample, reply))
                    held_bytes += len(reply.payload)
    elapsed_s = time.monotonic() - start_s
    if not kept:
        raise ConfigError(f"no sample of {dataset.url} could be read; check its files")
    return done / max(elapsed_s, 1e-9), kept


def _until(end_s: float, fetch: Fetch, samples: list[int]) -> list[tuple[int, Reply]]:
    """Return the replies that a request gets in time, at least one, in the order of its samples."""
    replies: list[Reply] = []
    for reply in fetch:
        replies.append(reply)
        if time.monotonic() > end_s:
            fetch.cancel()
            break
    return [(samples[reply.position], reply) for reply in sorted(replies, key=lambda reply: reply.position)]


def _requests(dataset: RemoteDataset, order: list[int]) -> list[tuple[Transport, list[int]]]:
    """Return requests to the first holder of each sample, taking the holders in turn."""
    by_holder: dict[int, list[int]] = {}
    for sample in order:
        by_holder.setdefault(dataset.sources.holders_of(sample)[0], []).append(sample)
    size = MachineConfig.request_samples
    queues = [
        [(dataset.sources[holder], samples[at : at + size]) for at in range(0, len(samples), size)]
        for holder, samples in by_holder.items()
    ]
    return [request for turn in itertools.zip_longest(*queues) for request in turn if request is not None]


def _preprocess(
    dataset: RemoteDataset, replies: list[tuple[int, Reply]], workers: int, size: int, most_s: float, report: OnStep
) -> float:
    """Preprocess held samples; return samples per second."""
    end_s = time.monotonic() + most_s

    def work(item: tuple[int, Reply]) -> Exception | bool:
        if done and time.monotonic() > end_s:
            return False
        return finish(item) or True

    def finish(item: tuple[int, Reply]) -> Exception | None:
        # A damaged file takes time too; reporting it is left to training.
        error = dataset.finishing.make(item[1], Key(dataset.seed, 0, item[0])).error
        return named(error, item[0], dataset.samples.name_of(item[0])) if isinstance(error, OpError) else error

    for item in replies[:_WARM_UP]:
        finish(item)
    start_s = time.monotonic()
    whole = done = 0
    with ThreadPoolExecutor(workers, "sophon-probe") as pool:
        for found in pool.map(work, replies):
            done += found is not False
            whole += found is True
            report("preprocessing", done // size, len(replies) // size)
    if not whole:
        raise ConfigError(
            f"no sample of {dataset.url} passes through the pipeline; the first error: {finish(replies[0])}"
        )
    return done / max(time.monotonic() - start_s, 1e-9)
