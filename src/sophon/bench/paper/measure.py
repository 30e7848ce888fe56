"""A full profile: every sample at every exact cut, measured in this thread."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from sophon.codec import RAW, finish_payload, legal_cuts, make_payload
from sophon.errors import OpError
from sophon.pipeline import Key, Pipeline
from sophon.profile.table import Profile
from sophon.store import Store


def measure(
    store: Store,
    pipeline: Pipeline,
    *,
    seed: int = 0,
    epoch: int = 0,
    on_step: Callable[[int, int], None] | None = None,
) -> Profile:
    """Return what every sample costs at every exact cut, in CPU seconds of this thread and bytes.

    Args:
        store: The samples.
        pipeline: What is divided.
        seed: Of the boxes.
        epoch: Likewise.
        on_step: Told how many samples are done, of how many.
    """
    cuts = legal_cuts(pipeline)
    tables = np.full((3, len(store), len(cuts)), np.inf)
    for sample in range(len(store)):
        data, key = store.read(sample), Key(seed, epoch, sample)
        for column, cut in enumerate(cuts):
            try:
                if cut.k == 0:
                    make_payload(pipeline, data, key, cut)  # an index is built when a file is first touched
                start_s = time.thread_time()
                payload = make_payload(pipeline, data, key, cut)
                storage_s = 0.0 if cut == RAW else time.thread_time() - start_s
            except OpError:  # this file cannot be cut so
                continue
            if cut == RAW:
                finish_payload(pipeline, payload, key, cut)  # the same index, at the trainer
            start_s = time.thread_time()
            finish_payload(pipeline, payload, key, cut)
            tables[:, sample, column] = len(payload), storage_s, time.thread_time() - start_s
        if on_step is not None:
            on_step(sample + 1, len(store))
    return Profile(tuple(cuts), *tables, pipeline=pipeline.fingerprint, dataset=store.manifest.fingerprint)
