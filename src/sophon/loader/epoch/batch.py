"""Batches under construction: samples are written into their places as they are finished, in any order."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from sophon.loader.epoch.finishing import Finishing, Layout, Made
from sophon.pipeline import Tensor
from sophon.process.blocks import Blocks
from sophon.process.segments import array_in

SMALL_BYTES = 1 << 15  # less is not worth a segment or a block: a process can map only some 65,000 pieces of memory
EMPTY = object()  # stands for an empty batch, whose samples were all bad and skipped


@dataclass(frozen=True)
class Place:
    """A place for a sample.

    Args:
        array: The sample's part of the batch.
        segment: The segment of shared memory that contains the array; None for memory that only this process uses.
        offset: Offset in the segment, in bytes.
    """

    array: Tensor
    segment: Any = None
    offset: int = 0


class Memory(Protocol):
    """Provides the arrays of batches."""

    def array(self, shape: tuple[int, ...], dtype: str) -> tuple[Any, Tensor]:
        """Return an array, and the segment of shared memory that contains it, if any."""


class OwnMemory:
    """Memory that only this process uses.

    Args:
        most_bytes: Upper bound on the bytes kept for later.
    """

    def __init__(self, most_bytes: int = 0) -> None:
        self._blocks = Blocks(most_bytes)

    def array(self, shape: tuple[int, ...], dtype: str) -> tuple[Any, Tensor]:
        """Return an array whose memory nothing else uses."""
        size_bytes = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
        if size_bytes <= SMALL_BYTES:
            return None, np.empty(shape, dtype)
        return None, array_in(self._blocks.take(size_bytes), shape, dtype)


class Batch:
    """One batch being filled.

    If finished samples are arrays of one size, they are written directly into the batch, which saves the copy that
    collating would make.

    Args:
        finishing: How its samples are finished.
        size: How many samples it holds.
        layout: Shape and dtype of the samples, if they are known; None to keep them one by one.
        memory: Memory of its array.
        hands_on: Whether samples are passed to the user's own function; arrays that the user's steps made then stay as
            they are.

    Attributes:
        errors: Errors of samples that failed, by slot.
        result: The batch for users, once it is made.
        failure: Why the batch could not be made, for example an error in the user's own function.
        is_over: Whether the batch is done, except that it must be delivered.
    """

    def __init__(
        self, finishing: Finishing, size: int, layout: Layout | None, memory: Memory, hands_on: bool = False
    ) -> None:
        self._finishing = finishing
        self._keeps_arrays = hands_on and finishing.gives_own
        self._layout = layout
        self._memory = memory
        self._made: list[Made | None] = [None] * size
        self._placed = [False] * size
        self._array: Tensor | None = None
        self._segment: Any = None
        self._lock = threading.Lock()
        self.errors: dict[int, Exception] = {}
        self.result: Any = None
        self.failure: Exception | None = None
        self.is_over = False

    def place(self, slot: int) -> Place | None:
        """Return the place into which the sample of a slot may be written; None if samples are kept one by one."""
        if self._layout is None:
            return None
        with self._lock:
            if self._array is None:
                shape, dtype = self._layout
                self._segment, self._array = self._memory.array((len(self._made), *shape), dtype)
            mine = self._array[slot, ...]  # this is a view, not a copy, even for a single number
            return Place(mine, self._segment, slot * mine.nbytes)

    @property
    def segment(self) -> Any:
        """The shared memory that contains the samples, if any."""
        return self._segment

    def put(self, slot: int, made: Made) -> None:
        """Put a finished sample into its slot, or record why it failed."""
        self._made[slot] = made
        if made.error is not None:
            self.errors[slot] = made.error
            return
        if made.is_placed:
            self._placed[slot] = True
            return
        place = None if self._keeps_arrays else self.place(slot)
        if place is None:
            return
        value = made.value if isinstance(made.value, np.ndarray) else None
        if value is None or value.shape != place.array.shape or value.dtype != place.array.dtype:
            return  # not the same size or kind as the others, so it is kept separately
        if value.__array_interface__["data"] != place.array.__array_interface__["data"]:
            place.array[...] = value
        self._placed[slot], made.value = True, None

    def at(self, slot: int) -> Made:
        """Return the finished sample in a slot."""
        made = self._made[slot]
        assert made is not None
        return made

    def take(self) -> Any:
        """Return the batch for the user, or raise its error."""
        if self.failure is not None:
            raise self.failure
        return self.result

    def mend(self, slot: int, made: Made | None) -> None:
        """Replace a bad sample with a substitute, or with nothing."""
        self.errors.pop(slot, None)
        self._placed[slot], self._made[slot] = False, None
        if made is not None:
            self.put(slot, made)

    @property
    def kept(self) -> list[int]:
        """The slots that are filled."""
        return [slot for slot, made in enumerate(self._made) if made is not None]

    def rows(self) -> list[tuple[Made, Place | None]]:
        """Return the samples one by one; those in the batch's array are views of it and come with their place."""
        found: list[tuple[Made, Place | None]] = []
        for slot in self.kept:
            made = self._made[slot]
            assert made is not None
            place = self.place(slot) if self._placed[slot] else None
            if place is not None:
                made = Made(made.key, self._finishing.as_output(place.array), made.target, made.columns)
            found.append((made, place))
        return found

    def assembled(self) -> Any:
        """Return the batch as torch's default collating would make it, without the user's own function; or EMPTY."""
        kept, finishing = self.kept, self._finishing
        if not kept:
            return EMPTY
        if not all(self._placed[slot] for slot in kept):
            return finishing.collate([finishing.item(made, fit=True) for made, _ in self.rows()])
        assert self._array is not None
        whole = len(kept) == len(self._made)
        some = [made for made in (self._made[slot] for slot in kept) if made is not None]
        parts: list[Any] = [finishing.as_output(self._array if whole else self._array[kept])]
        if finishing.has_labels:
            parts.append(finishing.collate_targets([made.target for made in some]))
        if finishing.columns:
            parts.append(finishing.collate_columns([made.columns for made in some]))
        return parts if len(parts) > 1 else parts[0]
