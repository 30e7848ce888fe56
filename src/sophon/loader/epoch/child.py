"""A worker process: finishes samples and makes batches for its loader, and does nothing else.

It is either forked, with the user's objects as they are at that moment, or spawned, with pickled copies. It opens no
connection and starts no thread, so it needs nothing that another thread of its parent held when it was forked.
"""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sophon.link.wire import Reply
from sophon.loader.epoch.collate import Collate as CollateFn
from sophon.loader.epoch.collate import collate_seeded
from sophon.loader.epoch.finishing import Finishing, Layout, Made
from sophon.loader.epoch.messages import (
    Collate,
    Collated,
    Failure,
    Finish,
    Finished,
    Ready,
    Spot,
    packed,
    receive,
    send,
    unpacked,
)
from sophon.loader.epoch.parcel import Parcel
from sophon.pipeline.rng import Key, Rng
from sophon.process.line import Line, LineClosedError, close_others
from sophon.process.segments import Bytes, array_in, map_file

_LOOK_S = 5.0  # between two checks that the parent is alive: another process may hold the other end of the line
_NOTHING = Parcel(b"")
_INIT_POSITION = (1 << 32) + 3  # nothing else draws the same random words


@dataclass(frozen=True)
class Work:
    """The task of a worker process.

    Args:
        finishing: How samples are finished.
        collate: The user's own function that makes batches, if any.
        init: The user's own function that is called first, if any.
        number: Number of the worker, from 0.
        count: Number of workers.
        dataset: What `torch.utils.data.get_worker_info` names as the data set.
    """

    finishing: Finishing
    collate: CollateFn | None = None
    init: Callable[[int], Any] | None = None
    number: int = 0
    count: int = 1
    dataset: Any = None


def run(line: Line, work: Work) -> None:
    """Follow the loader's messages until it hangs up.

    Args:
        line: Line to the loader.
        work: The task of this process.
    """
    gc.freeze()  # the parent's objects are not ours to free: its connections would wait for threads that are not here
    close_others(line)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches every process of a terminal; the loader decides
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    torch: Any = sys.modules.get("torch")
    if torch is not None:
        torch.set_num_threads(1)  # as in torch's own workers: there is a process per core, and OpenMP cannot be forked
    parent, child = os.getppid(), Child(work.finishing, work.collate)
    line.set_timeout(_LOOK_S)
    with contextlib.suppress(LineClosedError):  # the loader may have been closed, which is noticed below
        send(line, Ready(_begin(work, torch)))
    while True:
        try:
            message, body, file = receive(line)
        except TimeoutError:
            if os.getppid() != parent:
                return
            continue
        except LineClosedError:
            return
        if message is None:
            return
        line.set_timeout(None)
        try:
            child.answer(line, message, body, file)
        except LineClosedError:
            return
        line.set_timeout(_LOOK_S)


def _begin(work: Work, torch: Any) -> Failure | None:
    """Call the user's init function as torch's workers do; return its error, if any."""
    if torch is not None:
        info = torch.utils.data._utils.worker
        seed = int(Rng(Key(work.finishing.seed, 0, work.number), _INIT_POSITION).word())
        info._worker_info = info.WorkerInfo(id=work.number, num_workers=work.count, seed=seed, dataset=work.dataset)
    if work.init is None:
        return None
    try:
        work.init(work.number)
    except Exception as error:  # noqa: BLE001 - the user's own function may raise anything
        error.add_note(f"in worker_init_fn, called with {work.number}")
        return Failure.of(error)
    return None


class Child:
    """Finishes samples and makes batches.

    Args:
        finishing: How samples are finished.
        collate: The user's own function that makes batches, if any.
    """

    def __init__(self, finishing: Finishing, collate: CollateFn | None) -> None:
        self._finishing = replace(finishing, fields=())  # fields are unpacked before samples come here
        self._collate = collate
        self._segments: dict[int, Bytes] = {}

    def answer(self, line: Line, message: Finish | Collate, body: bytearray, file: int | None) -> None:
        """Carry out a message and answer it."""
        for number in message.gone:
            self._segments.pop(number, None)
        reply: Finished | Collated
        if isinstance(message, Finish):
            reply, memory, new = self._finish(message, body, file)
        else:
            reply, memory, new = self._make_batch(message, body, file)
        try:
            send(line, reply, memory, new)
        finally:
            if new is not None:
                os.close(new)

    def _finish(self, message: Finish, body: bytearray, file: int | None) -> tuple[Finished, Any, int | None]:
        out = None if message.spot is None else self._array(message.spot, file)
        reply = Reply(0, message.cut, memoryview(body), message.label, columns=message.columns)
        # A result of the user's own code is copied to its spot; our own ops may write there directly.
        made = self._finishing.make(reply, message.key, out, message.wants_trace)
        layout, is_placed, value = None, False, made.value
        if made.error is None:
            # Values passed between the user's own functions keep their type: an array stays an array.
            is_theirs = self._collate is not None and self._finishing.gives_own and isinstance(value, np.ndarray)
            array = None if is_theirs else _numbers(value)
            layout = None if array is None else (array.shape, array.dtype.str)
            if array is not None and out is not None and array.shape == out.shape and array.dtype == out.dtype:
                if array.__array_interface__["data"] != out.__array_interface__["data"]:
                    out[...] = array
                is_placed, value = True, None
        return self._told(made, value, layout, is_placed)

    def _told(self, made: Made, value: Any, layout: Layout | None, is_placed: bool) -> tuple[Finished, Any, int | None]:
        error = made.error
        parcel, memory, new, size_bytes = _NOTHING, b"", None, made.size_bytes
        if error is None:
            try:
                parcel, memory, new = packed((value, made.target))
                size_bytes = (
                    size_bytes if is_placed else parcel.size_bytes
                )  # for values without one size, such as a dict
            except Exception as unfit:  # noqa: BLE001 - the user's own class may raise anything
                unfit.add_note(f"a result of type {type(value).__name__} cannot be sent from a worker process")
                error = unfit
        failure = None if error is None else Failure.of(error)
        told = Finished(parcel, layout, is_placed, size_bytes, made.cpu_s, made.trace, failure)
        return told, memory, new

    def _make_batch(self, message: Collate, body: bytearray, file: int | None) -> tuple[Collated, Any, int | None]:
        rest = unpacked(message.rest, body, None).open()
        rows = []
        for spot, (own, target, columns) in zip(message.spots, rest, strict=True):
            value = own if spot is None else self._finishing.as_output(self._array(spot, file))
            file = file if spot is None else None  # it is mapped now
            rows.append(Made(message.key, value, target, columns))
        try:
            assert self._collate is not None
            batch = collate_seeded(self._collate, [self._finishing.item(made) for made in rows], message.key)
            parcel, memory, new = packed(batch)
        except Exception as error:  # noqa: BLE001 - the user's own function may raise anything
            return Collated(_NOTHING, Failure.of(error)), b"", None
        return Collated(parcel), memory, new

    def _array(self, spot: Spot, file: int | None) -> NDArray[Any]:
        if file is not None:
            self._segments[spot.segment] = map_file(file, spot.segment_bytes)
            os.close(file)
        shape, dtype = spot.layout
        return array_in(self._segments[spot.segment][spot.offset :], shape, dtype)


def _numbers(value: Any) -> NDArray[Any] | None:
    """Return the numbers of an array or a plain tensor, which collating would put into an array of the whole batch."""
    if type(value) is np.ndarray:
        return value if value.dtype.kind in "biufc" and value.dtype.isnative else None
    torch: Any = sys.modules.get("torch")
    if torch is None or type(value) is not torch.Tensor or value.requires_grad:
        return None
    try:
        numbers: NDArray[Any] | None = value.numpy() if value.is_contiguous() else None
    except (TypeError, RuntimeError):  # NumPy has no such dtype, or the numbers are not in this process's memory
        return None
    return numbers
