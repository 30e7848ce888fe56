"""Measures the cost of every sample of a local data set at every cut, on this machine's clock.

Both halves of each cut are run here, in one thread, and timed by the thread's CPU clock. The trainer and the storage
node may have different CPUs; a running loader learns the difference from the replies (see `recorder`), but a
measurement here cannot.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import numpy as np

from sophon.codec.cut import RAW, Cut, finish_payload, make_payload
from sophon.codec.route import Route
from sophon.errors import ConfigError, OpError
from sophon.pipeline import Key, Pipeline
from sophon.pipeline.pipeline import in_words
from sophon.profile.columns import cuts_to_profile, resize_k
from sophon.profile.table import Profile
from sophon.store import Store

OnStep = Callable[[], None]


def measure(
    store: Store,
    pipeline: Pipeline,
    *,
    seed: int = 0,
    epoch: int = 0,
    cuts: Sequence[Cut] | None = None,
    on_step: OnStep | None = None,
) -> Profile:
    """Return the profile of one epoch, every sample measured at every cut.

    Args:
        store: The samples.
        pipeline: Pipeline of the samples.
        seed: Seed of the random ops.
        epoch: Epoch of the random ops.
        cuts: Which cuts to measure; by default those that a plan may use.
        on_step: Called after every sample, for a progress bar.
    """
    columns = tuple(cuts_to_profile(pipeline) if cuts is None else cuts)
    if len(store) == 0:
        raise ConfigError("the data set is empty; give one with at least one sample")
    dataset, store = store.manifest.fingerprint, store.narrowed(())  # only the field that the pipeline works on
    shape = (len(store), len(columns))
    tables = [np.full(shape, np.inf, np.float32, order="F") for _ in range(3)]
    for sample in range(len(store)):
        data = store.read(sample)
        for column, cut in enumerate(columns):
            found = measure_cut(pipeline, data, Key(seed, epoch, sample), cut)
            if found is not None:
                for table, number in zip(tables, found, strict=True):
                    table[sample, column] = number
        if on_step is not None:
            on_step()
    offloaded = [cut.k > 0 for cut in columns]
    if any(offloaded) and not np.isfinite(tables[0][:, offloaded]).any():
        first = store.manifest.ids[0].as_py()
        raise ConfigError(f"no sample could be preprocessed; check the files, such as {first}, and the pipeline")
    return Profile(
        tuple(map(Route.of, columns)),
        tables[0],
        tables[1],
        tables[2],
        pipeline=pipeline.fingerprint,
        dataset=dataset,
        provenance={
            "how": "both halves of every cut were run on one machine",
            "ops": [op.name() for op in pipeline.ops],
            "recipe": in_words(pipeline),
            "seed": seed,
            "epoch": epoch,
        },
        resize_k=resize_k(pipeline),
    )


def measure_cut(pipeline: Pipeline, data: bytes, key: Key, cut: Cut) -> tuple[int, float, float] | None:
    """Return payload bytes, storage CPU seconds and trainer CPU seconds of one sample at one cut.

    None if the cut is impossible for the sample. A file that cannot be decoded can only be sent raw.
    """
    start_s = time.thread_time()
    try:
        payload = data if cut == RAW else make_payload(pipeline, data, key, cut)
    except (OpError, ConfigError):
        return None
    made_s = time.thread_time()
    try:
        finish_payload(pipeline, payload, key, cut, pipeline.max_cut)
    except OpError:
        if cut != RAW:
            return None
    finished_s = time.thread_time()
    return len(payload), made_s - start_s if cut != RAW else 0.0, finished_s - made_s
