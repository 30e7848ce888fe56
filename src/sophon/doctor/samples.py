"""Examines some samples of a data set: whether they are intact, and how fast they arrive.

Concurrency: a few threads read replies; all of them end with the measurement.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Final

from sophon.codec.cut import RAW, Cut
from sophon.doctor.finding import ADVICE, FAULT, FINE, Finding
from sophon.errors import Error, OpError
from sophon.link.transport import Fetch, Opened, Transport
from sophon.link.wire import Reply, Request
from sophon.pipeline import Key, Pipeline
from sophon.pipeline.op import Decoder
from sophon.units import format_bandwidth, format_bytes, format_rate, format_seconds

_STREAMS: Final = 4  # concurrent requests: enough to fill a link with a long round trip
_REQUEST: Final = 8  # samples per request: few, so that the measurement ends soon on a slow link
_PATIENCE_S: Final = 30.0  # for a reply; a photo of 3 MB takes nearly that long at 1 Mbit/s
_TINY_BYTES_PER_S: Final = 10e6 / 8  # 10 Mbit/s: ten ImageNet photos a second
_NAMED: Final = 3  # number of damaged samples to name


@dataclass
class Taken:
    """Samples that were read raw.

    Attributes:
        files: Bytes of each sample.
        errors: Why other samples could not be read.
        link_bytes: Bytes received, including repeated samples.
        count: Number of replies.
        took_s: Seconds until the last reply.
    """

    files: dict[int, bytes] = field(default_factory=dict)
    errors: dict[int, Error] = field(default_factory=dict)
    link_bytes: int = 0
    count: int = 0
    took_s: float = 0.0


def request_for(opened: Opened, pipeline: Pipeline, samples: list[int], cut: Cut) -> Request:
    """Return a request for some samples in the first epoch, all with the same cut."""
    spec: dict[str, Any] = pipeline.prefix(pipeline.reach).to_spec() if pipeline.reach else {"ops": []}
    return Request(
        dataset=opened.name,
        dataset_fingerprint=opened.fingerprint,
        pipeline=spec,
        seed=0,
        epoch=0,
        samples=tuple(samples),
        cuts=(cut,) * len(samples),
    )


def spread(samples: int, most: int) -> list[int]:
    """Return at most a given number of the samples 0 … samples - 1, evenly spread."""
    count = min(samples, most)
    return [number * samples // count for number in range(count)]


def take(transport: Transport, opened: Opened, pipeline: Pipeline, chosen: list[int], seconds: float) -> Taken:
    """Read samples raw, each once; samples from a node are read again and again until the time is over.

    Args:
        transport: Transport to the samples' source.
        opened: The opened data set.
        pipeline: Needed to form the request; it is not run.
        chosen: Indexes of the samples.
        seconds: How long to continue; waits for at least one reply.

    Raises:
        Error: The node has failed.
    """
    groups = [chosen[at : at + _REQUEST] for at in range(0, len(chosen), _REQUEST)]
    turns = itertools.cycle(groups) if transport.is_remote else iter(groups)
    taken, lock = Taken(), threading.Lock()
    began_s = time.monotonic()
    end_s = began_s + seconds

    def stream() -> None:
        while True:
            with lock:
                group = next(turns, None)
                is_over = time.monotonic() > end_s and taken.count > 0
            if group is None or is_over:
                return
            fetch = transport.fetch(request_for(opened, pipeline, group, RAW), _PATIENCE_S)
            for reply in _until(fetch, end_s):
                with lock:
                    _note(taken, group[reply.position], reply)
                    taken.took_s = time.monotonic() - began_s

    with ThreadPoolExecutor(_STREAMS if transport.is_remote else 1, "sophon-doctor") as pool:
        for running in [pool.submit(stream) for _ in range(_STREAMS if transport.is_remote else 1)]:
            running.result()
    taken.files = dict(sorted(taken.files.items()))  # sorted, since the order of arrival is random
    return taken


def _until(fetch: Fetch, end_s: float) -> Iterator[Reply]:
    for reply in fetch:
        yield reply
        if time.monotonic() > end_s:
            fetch.cancel()
            return


def _note(taken: Taken, sample: int, reply: Reply) -> None:
    taken.count += 1
    taken.link_bytes += len(reply.payload)
    if reply.error is not None:
        taken.errors[sample] = reply.error
    else:
        taken.files.setdefault(sample, bytes(reply.payload))


def examine_link(about: str, opened: Opened, taken: Taken) -> Finding:
    """Report how fast raw samples arrive from a node."""
    per_s = taken.link_bytes / max(taken.took_s, 1e-9)
    rate = taken.count / max(taken.took_s, 1e-9)
    text = (
        f"the link carries {format_bandwidth(per_s)}: {format_rate(rate)} raw samples, "
        f"{format_seconds(opened.samples / max(rate, 1e-9))} per epoch"
    )
    if per_s < _TINY_BYTES_PER_S:
        remedy = "That is very slow: check the network, and use the default policy, which sends less."
        return Finding(about, "link", ADVICE, text, remedy)
    return Finding(about, "link", FINE, text)


def examine_samples(about: str, opened: Opened, taken: Taken, pipeline: Pipeline) -> Iterator[Finding]:
    """Decode samples, and name those that cannot be read."""
    decode = pipeline.prefix(1) if isinstance(pipeline.ops[0], Decoder) else None
    wrong: dict[int, str] = {sample: str(error) for sample, error in taken.errors.items()}
    for sample, data in taken.files.items():
        try:
            if decode is not None:
                decode.run(data, Key(0, 0, sample))
        except OpError as error:
            wrong[sample] = error.problem
    looked = len(taken.files) + len(taken.errors)
    if not wrong:
        mean = format_bytes(sum(map(len, taken.files.values())) / max(len(taken.files), 1))
        yield Finding(
            about, "samples", FINE, f"{looked} of {opened.samples:,} samples examined: all intact, {mean} each"
        )
        return
    named = "; ".join(f"sample {sample}: {text}" for sample, text in sorted(wrong.items())[:_NAMED])
    remedy = (
        "None of them is a picture: give --pipeline for other kinds of files."
        if len(wrong) == looked and not taken.errors
        else "Replace or remove them, or train with on_error='substitute' or 'skip'."
    )
    yield Finding(about, "samples", FAULT, f"{len(wrong)} of {looked} samples are damaged: {named}", remedy)
