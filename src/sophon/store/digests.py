"""Digests of a data set's files, with which a trainer checks that a node sends the right bytes.

Digests are made where the files are trusted (`sophon index --digests FILE`) and kept on the trainer, since a dishonest
node could forge them too.

File layout: `artifact`, format ``digests``, with the columns ``low`` and ``high`` (the halves of a BLAKE2b digest of
128 bits) and ``label`` (-1 if a sample has none).
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from sophon.artifact import Header, load, save
from sophon.errors import StoreError
from sophon.store.manifest import NO_LABEL
from sophon.store.store import Store

_FORMAT, _VERSION = "digests", 1
_DIGEST_BYTES = 16
_BATCH = 512  # samples in memory at once: about 100 MB of large photos
_UNREADABLE = bytes(_DIGEST_BYTES)  # digest of an unreadable sample; no file has it
_COLUMNS = {"low": pa.uint64(), "high": pa.uint64(), "label": pa.int64()}


def digest_of(data: bytes | memoryview) -> bytes:
    """Return the digest of a file."""
    return hashlib.blake2b(data, digest_size=_DIGEST_BYTES).digest()


class Digests:
    """The digests and labels of all samples of a data set.

    Args:
        fingerprint: Fingerprint of the data set.
        halves: The two halves of each sample's digest, as integers.
        labels: Label of each sample, -1 if it has none.
    """

    def __init__(self, fingerprint: str, halves: NDArray[np.uint64], labels: NDArray[np.int64]) -> None:
        self.fingerprint = fingerprint
        self._halves = halves
        self._labels = labels

    def __len__(self) -> int:
        return len(self._labels)

    @property
    def has_labels(self) -> bool:
        """Whether any sample has a label."""
        return bool((self._labels != NO_LABEL).any())

    @property
    def name(self) -> str:
        """16 hex digits over all digests and labels: they differ if any file does, even if the sizes are equal."""
        return digest_of(self._halves.tobytes() + self._labels.tobytes()).hex()[:16]

    def problem(self, sample: int, data: bytes | memoryview, label: int | None) -> str | None:
        """Return the problem with a sample's file or label; None if both are correct."""
        if not 0 <= sample < len(self):
            return f"there are digests for only {len(self):,} samples"
        found, expected = digest_of(data), self._halves[sample].astype("<u8").tobytes()
        if found != expected:
            return f"{len(data):,} bytes with digest {found.hex()}, expected {expected.hex()}"
        said, true = NO_LABEL if label is None else label, int(self._labels[sample])
        return None if said == true else f"label {said}, expected {true}"

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Digests:
        """Read a digest file.

        Raises:
            ArtifactError: The file is missing, damaged, or not a digest file.
        """
        with load(path, format=_FORMAT, version=_VERSION) as file:
            file.require_columns(_COLUMNS)
            halves, labels = np.empty((file.rows, 2), np.uint64), np.empty(file.rows, np.int64)
            for number, name in enumerate(("low", "high")):
                column = np.empty(file.rows, np.uint64)
                file.read(name, column)
                halves[:, number] = column
            file.read("label", labels)
            return cls(file.header.fingerprints.get("dataset", ""), halves, labels)


def write_digests(
    store: Store,
    path: str | os.PathLike[str],
    threads: int = 1,
    on_progress: Callable[[int, int | None], None] | None = None,
) -> int:
    """Write the digests of all samples of a store; return how many could not be read.

    Args:
        store: The data set.
        path: The file to write.
        threads: How many samples to read at once.
        on_progress: Called with the number of samples done and the total.
    """

    def digest(sample: int) -> bytes:
        try:
            return digest_of(store.read(sample))
        except StoreError:
            return _UNREADABLE

    parts: list[bytes] = []
    with ThreadPoolExecutor(threads) as pool:
        for start in range(0, len(store), _BATCH):
            parts += pool.map(digest, range(start, min(start + _BATCH, len(store))))
            if on_progress is not None:
                on_progress(len(parts), len(store))
    halves = np.frombuffer(b"".join(parts), "<u8").reshape(-1, 2)
    manifest = store.manifest
    labels = np.full(len(store), NO_LABEL, np.int64) if manifest.labels is None else manifest.labels
    columns = {"low": halves[:, 0].copy(), "high": halves[:, 1].copy(), "label": labels}
    save(path, Header(_FORMAT, _VERSION, {"dataset": manifest.fingerprint}), columns)
    return parts.count(_UNREADABLE)
