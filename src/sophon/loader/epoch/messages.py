"""The messages between a loader and its worker processes over a line.

A message is a pickled tuple and a body: the payload of a sample on the way out, the numbers of a small result on the
way back. Large results are in shared memory, whose descriptor is sent once.

Only these two processes write to the line, so pickles are safe here; see `parcel`.
"""

from __future__ import annotations

import os
import traceback
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from sophon.codec.cut import Cut
from sophon.errors import Error
from sophon.loader.epoch.finishing import Layout
from sophon.loader.epoch.parcel import NewFile, Parcel, dump, load, pack
from sophon.pipeline import Key, Trace
from sophon.process.line import Line
from sophon.process.segments import map_file


@dataclass(frozen=True)
class Spot:
    """A place in shared memory for a sample.

    Args:
        segment: Number of the segment.
        segment_bytes: Its size.
        offset: Offset in the segment.
        layout: Shape and dtype of the sample.
    """

    segment: int
    segment_bytes: int
    offset: int
    layout: Layout


@dataclass(frozen=True)
class Finish:
    """Finish a sample, whose payload is the body. A file sent along is that of the segment.

    Args:
        key: Identifies the sample and the epoch.
        cut: The cut at which the sample arrived.
        label: Label of the sample.
        spot: Place for the result, if known.
        wants_trace: Whether to record the cost of each op.
        gone: Segments that are no longer needed.
        columns: Columns that are part of the sample; others stay with the loader.
    """

    key: Key
    cut: Cut
    label: Any
    spot: Spot | None
    wants_trace: bool
    gone: tuple[int, ...] = ()
    columns: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Collate:
    """Make a batch of samples with the user's own function; the body is the memory of the parcel.

    Args:
        key: Key that identifies the batch.
        spots: Places of the samples in shared memory; None for those in the parcel.
        rest: Parcel of a list: for each sample its value (unless it has a spot), its target and its columns.
        gone: Segments that are no longer needed.
    """

    key: Key
    spots: tuple[Spot | None, ...]
    rest: Parcel
    gone: tuple[int, ...] = ()


@dataclass(frozen=True)
class Failure:
    """An error in transit.

    Args:
        error: The pickled error; if it cannot be pickled, its type and text.
        cause: Its cause, in the same form.
        words: Its type and text.
        notes: Its notes.
        where: Its traceback, as text.
    """

    error: bytes
    cause: bytes
    words: str
    notes: tuple[str, ...]
    where: str

    @classmethod
    def of(cls, error: BaseException) -> Failure:
        """Return an error in a form that can always be sent."""
        where = "".join(traceback.format_exception(error))
        notes = getattr(error, "__notes__", ())
        texts = tuple(note for note in notes if isinstance(note, str)) if isinstance(notes, list) else ()
        return cls(_packed(error), _packed(error.__cause__), _words(error), texts, where)

    def to_error(self) -> Exception:
        """Return the original error, with a note that says where it happened."""
        error: Exception
        try:
            error, cause = load(self.error), load(self.cause)
        except Exception:  # noqa: BLE001 - the user's own class may raise anything, perhaps only here
            error, cause = Error(self.words), None
        error.__cause__ = cause
        error.__notes__ = [*self.notes, f"traceback in the worker process:\n{self.where}"]
        return error


@dataclass(frozen=True)
class Ready:
    """A worker process has started.

    Args:
        failure: Error raised by the user's own start function.
    """

    failure: Failure | None = None


@dataclass(frozen=True)
class Finished:
    """The result for a sample.

    Args:
        rest: Parcel of the target, and of the value unless it is in its spot.
        layout: Shape and dtype of the value, if it is an array or a tensor that fits into the array of a batch.
        is_placed: Whether the value is in its spot.
        size_bytes: Size of the value.
        cpu_s: CPU seconds that the sample took.
        trace: Costs of the ops, if requested.
        failure: Error, if the sample failed.
    """

    rest: Parcel
    layout: Layout | None
    is_placed: bool
    size_bytes: int
    cpu_s: float
    trace: Trace | None
    failure: Failure | None


@dataclass(frozen=True)
class Collated:
    """The result for a batch.

    Args:
        rest: Parcel of the result of the user's own function.
        failure: Error raised by that function.
    """

    rest: Parcel
    failure: Failure | None = None


def _packed(error: BaseException | None) -> bytes:
    try:
        text = dump(error)
        is_whole = type(load(text)) is type(error)  # some errors can be pickled but not unpickled
    except Exception:  # noqa: BLE001 - the user's own class may raise anything
        is_whole = False
    return text if is_whole else dump(Error(_words(error)))


def _words(error: BaseException | None) -> str:
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:  # noqa: BLE001 - making the error's text may fail too
        return type(error).__name__


def send(line: Line, message: Any, body: Any = b"", file: int | None = None) -> None:
    """Send a message."""
    line.send(dump(message), body, () if file is None else (file,))


def receive(line: Line) -> tuple[Any, bytearray, int | None]:
    """Wait for a message; return it, its body and the file that came with it."""
    text, body, files = line.receive()
    return load(text), body, files[0] if files else None


def packed(value: Any) -> tuple[Parcel, Any, int | None]:
    """Return a parcel without its memory, and separately that memory if it is small, or else a file with it."""
    new = NewFile()
    parcel = pack(value, new)
    bare = Parcel(parcel.text, parcel.sizes)
    return (bare, parcel.memory, None) if new.file is None else (bare, b"", new.file)


def packed_inline(value: Any) -> tuple[Parcel, Any]:
    """Return a parcel without its memory, and separately that memory."""
    parcel = pack(value, lambda size_bytes: np.empty(size_bytes, np.uint8))
    return Parcel(parcel.text, parcel.sizes), parcel.memory


def unpacked(bare: Parcel, body: bytearray, file: int | None) -> Parcel:
    """Return the parcel with its memory; closes the file."""
    if file is None:
        return Parcel(bare.text, bare.sizes, bytes(body))
    try:
        return Parcel(bare.text, bare.sizes, map_file(file, os.fstat(file).st_size))
    finally:
        os.close(file)
