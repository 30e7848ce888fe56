"""The sources of several data sets that are used as one, as with torch's `ConcatDataset`.

The samples of the first come first, then those of the second, and so on. Each data set keeps its nodes and its labels.
To the machine they are parts of a whole with different holders, as if nodes held different samples of one data set; so
one engine, one plan and one state serve all of them. Random ops identify a sample by its index in the whole.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from sophon.errors import ConfigError
from sophon.link.transport import Opened
from sophon.loader.sources.sources import Sources
from sophon.loader.sources.union import Holding, Union
from sophon.pipeline import Pipeline

_MOST = np.iinfo(np.uint16).max  # parts that a union can distinguish


class JoinedSources(Sources):
    """The nodes of several data sets.

    Args:
        joined: The sources of each data set, and its description.
        pipeline: The pipeline to divide, the same for all.
        url: Name of the joined data sets for messages.
        deadline_s: Seconds without any answer before an error is raised.
    """

    def __init__(
        self, joined: Sequence[tuple[Sources, Opened]], pipeline: Pipeline, url: str, deadline_s: float
    ) -> None:
        nodes = [node for sources, _ in joined for node in sources.plain_nodes]
        super().__init__(nodes, None, pipeline, url, deadline_s, has_parts=True)
        self._joined = list(joined)

    def open(self, pipeline: Pipeline) -> Opened:  # noqa: ARG002 - every data set was opened with it
        """Return the description of all data sets together, without asking any node again."""
        told = [opened for _, opened in self._joined]
        starts = np.cumsum([0, *(opened.samples for opened in told)])
        total, fingerprint = int(starts[-1]), _fingerprint(told)
        part_of = np.zeros(total, np.int64)
        holders: list[tuple[int, ...]] = []
        holdings: list[Holding] = []
        for (sources, opened), start in zip(self._joined, starts.tolist(), strict=False):
            mine, node = slice(start, start + opened.samples), len(holdings)
            its_parts, its_holders = sources.divided(opened.samples)
            part_of[mine] = its_parts + len(holders)
            holders += [tuple(node + number for number in numbers) for numbers in its_holders]
            its_labels = sources.labels
            labels = None if its_labels is None else np.zeros(total, np.int64)
            if labels is not None and its_labels is not None:
                labels[mine] = its_labels
            for number, (holding, its_own) in enumerate(sources.holdings(opened)):
                shifted = Holding(holding.indexes + start, holding.own)
                self._sources[node + number].hold(shifted, labels, its_own)
                holdings.append(shifted)
        if len(holders) > _MOST:
            raise ConfigError(f"the data sets have {len(holders):,} parts; at most {_MOST:,} are supported")
        classes = told[0].classes if len({one.classes for one in told}) == 1 else ()
        numbers, nothing = part_of.astype(np.uint16), np.zeros(total, np.int64)
        self._union = Union(fingerprint, classes, nothing, None, numbers, tuple(holders), tuple(holdings))
        self._holders = tuple(holders)
        return replace(
            told[0],
            name=" + ".join(dict.fromkeys(one.name for one in told)),
            samples=total,
            fingerprint=fingerprint,
            classes=classes,
            max_cut=min(one.max_cut for one in told),
            columns_digest=" ".join(one.columns_digest for one in told).strip(),
            state=" ".join(one.state for one in told).strip(),
            max_samples=min(one.max_samples for one in told),
        )

    def file_sizes(self, samples: int, fields: tuple[str, ...] = ()) -> NDArray[np.int64] | None:  # noqa: ARG002
        """Return the size of every sample's file, if all data sets report it."""
        sizes = [sources.file_sizes(opened.samples, fields) for sources, opened in self._joined]
        known = [one for one in sizes if one is not None]
        return np.concatenate(known) if len(known) == len(sizes) else None


def _fingerprint(told: Sequence[Opened]) -> str:
    return hashlib.sha256("\n".join(one.fingerprint for one in told).encode()).hexdigest()[:32]
