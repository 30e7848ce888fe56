"""A part of a data set: every n-th sample, in the order of the ids.

With all ids sorted, sample i is in part 1 + i mod n of n. So the sizes of parts differ by at most one sample, and
all nodes have work at the same time in any epoch order, shuffled or not. The division depends only on the ids: nodes
that list the same files divide them in the same way, and each node tells trainers the fingerprint of the whole data
set, so a node with different files is noticed.
"""

from __future__ import annotations

import re
import socket
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sophon.errors import ConfigError
from sophon.store.pages.columns import whole
from sophon.store.store import Store

MOST_PARTS = 4096  # per data set; a loader can distinguish 65,535 combinations of holders
_TEXT = re.compile(r"(\d{1,6}|ordinal)/(\d{1,6})")
_ORDINAL = re.compile(r"-(\d{1,6})$")


@dataclass(frozen=True)
class Part:
    """One part of several, such as 3/8.

    Args:
        number: Number of the part, from 1.
        of: Number of parts.
    """

    number: int
    of: int

    def __post_init__(self) -> None:
        if not 1 <= self.of <= MOST_PARTS or not 1 <= self.number <= self.of:
            raise ConfigError(
                f"part {self.number}/{self.of}: expected a number from 1, and at most {MOST_PARTS:,} parts, such as 3/8"
            )

    def __str__(self) -> str:
        return f"{self.number}/{self.of}"

    @classmethod
    def parse(cls, text: str) -> Part:
        """Parse a part such as ``3/8``.

        With ``ordinal/8``, the part is the number at the end of this host's name, counted from 0, as in the pod names
        of a Kubernetes StatefulSet.

        Raises:
            ConfigError: The text is not a part.
        """
        found = _TEXT.fullmatch(text.strip())
        if found is None:
            raise ConfigError(f"part {text[:40]!r}: expected NUMBER/PARTS, such as 3/8")
        if found[1] != "ordinal":
            return cls(int(found[1]), int(found[2]))
        host = socket.gethostname()
        ordinal = _ORDINAL.search(host)
        if ordinal is None:
            raise ConfigError(f"part {text}: the name of this host, {host!r}, does not end in a number, such as node-2")
        return cls(int(ordinal[1]) + 1, int(found[2]))


def part_of(store: Store, part: Part) -> Store:
    """Return a store with one part of a data set; it records the fingerprint of the whole.

    Raises:
        ConfigError: There are fewer samples than parts.
    """
    if len(store) < part.of:
        raise ConfigError(f"part {part}: {store.path} has only {len(store):,} samples, fewer than the number of parts")
    ids = whole(store.manifest.ids).cast(pa.large_binary())
    rank = np.empty(len(store), np.int64)
    rank[pc.sort_indices(ids).to_numpy()] = np.arange(len(store))
    mine = np.flatnonzero(rank % part.of == part.number - 1)
    held = store.holding(store.manifest.select(mine))
    held.part, held.whole = str(part), store.manifest.fingerprint
    held.index_at = store.index_at
    return held
