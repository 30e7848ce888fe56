"""Batches on a device: they are copied as bytes, and the device turns them into floats.

For an 8-bit picture, ToTensor and Normalize amount to a table of 256 values for each channel. The table is computed on
the CPU, by the ops themselves, so the floats have the same bits on every device: a lookup involves no rounding. This is
checked on all values when a loader is created. Only a quarter of the bytes have to be written, kept and copied; the ops
before the table run where they would run without a device.

Concurrency: `send` is called by the thread that made the batch, a finishing thread or the consumer; `receive` by the
consumer. On CUDA, copies and look-ups run on a separate stream; the consumer's stream waits for it, not the consumer.
Pinned memory comes from torch's own allocator, which reuses it as soon as the copy out of it is done: two or three
batches' worth, however long the epoch.

Limits: no part of this has been run on CUDA yet.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from PIL import Image

from sophon.errors import ConfigError
from sophon.loader.torch_import import torch
from sophon.pipeline import Pipeline, Tensor
from sophon.pipeline.ops import Normalize, PILToTensor, ToFloat, ToTensor

_MODES = {1: "L", 3: "RGB"}  # by channels: pictures whose tensors have a table


def divided(pipeline: Pipeline) -> tuple[Pipeline, Tensor | None]:
    """Return the host's share of a pipeline, which ends with bytes, and the table for the device.

    The table has a row of 256 floats for each channel. If the pipeline does not end with ops that turn a picture into
    floats value by value, the host's share is the whole pipeline, and the table is None.
    """
    ops = pipeline.ops
    first = next((at for at, op in enumerate(ops) if type(op) in (ToTensor, PILToTensor)), len(ops))
    ending = ops[first:]
    mode = _MODES.get(pipeline.specs[first].channels or 0) if ending else None
    by_value = all(type(op) in (ToFloat, Normalize) for op in ending[1:])
    if mode is None or not by_value or pipeline.specs[-1].dtype != "float32" or pipeline.specs[first].mode:
        return pipeline, None
    ramp = np.arange(256, dtype=np.uint8)[None]
    value: Any = Image.merge(mode, [Image.fromarray(ramp)] * len(mode)) if mode == "RGB" else Image.fromarray(ramp)
    for op in ending:
        value = op.apply(value, None)
    return pipeline.with_ops([*ops[:first], PILToTensor()]), np.ascontiguousarray(value[:, 0])


@dataclass(frozen=True)
class Sent:
    """A batch on its way to a device.

    Args:
        batch: The batch for users.
        event: Set when the batch has arrived; None if it already has.
    """

    batch: Any
    event: Any = None


class Device:
    """Where batches go.

    Args:
        name: Its name in torch, such as "cuda:1".
        table: The float for each value of each channel; None if batches are finished before they are copied.

    Raises:
        ConfigError: There is no such device, or its look-ups do not return exactly the bits of the table.
    """

    def __init__(self, name: Any, table: Tensor | None) -> None:
        try:
            self._device = torch.device(name)
            torch.empty(1, device=self._device)
        except (RuntimeError, TypeError, AssertionError, NotImplementedError) as error:
            raise ConfigError(f"device: {name!r} is not a device that torch has here ({error})") from error
        self._stream: Any = torch.cuda.Stream(self._device) if self._device.type == "cuda" else None  # type: ignore[no-untyped-call]
        self._table: Any = None if table is None else torch.from_numpy(table).to(self._device)
        if table is not None and self._looked_up(_ramp(len(table))).cpu().numpy().tobytes() != table.tobytes():
            raise ConfigError(
                f"device: {name!r} does not give the same bits as the CPU; leave it out, and copy batches yourself"
            )

    def _looked_up(self, values: Any) -> Any:
        """Return the floats for a tensor of bytes whose third-to-last dimension is the channel."""
        values = values.to(self._device, non_blocking=True)
        floats = torch.empty(values.shape, dtype=torch.float32, device=self._device)
        for channel, row in enumerate(self._table):
            plane = values[..., channel, :, :]
            floats[..., channel, :, :] = row.index_select(0, plane.reshape(-1).long()).view(plane.shape)
        return floats

    def send(self, batch: Any) -> Sent:
        """Start copying a batch to the device and finishing it there."""
        if self._stream is None:
            return Sent(self._there(batch))
        with torch.cuda.device(self._device), torch.cuda.stream(self._stream):
            there = self._there(batch)
            event = torch.cuda.Event()  # type: ignore[no-untyped-call]
            event.record(self._stream)
        return Sent(there, event)

    def _there(self, batch: Any) -> Any:
        if self._table is None:
            return _each(batch, self._copied)
        if isinstance(batch, list | tuple):  # pictures come first, then labels and columns
            pictures, *others = batch
            return type(batch)([self._looked_up(self._pinned(pictures)), *_each(others, self._copied)])
        return self._looked_up(self._pinned(batch))

    def _pinned(self, tensor: Any) -> Any:
        return tensor if self._stream is None else tensor.pin_memory()

    def _copied(self, tensor: Any) -> Any:
        return self._pinned(tensor).to(self._device, non_blocking=True)

    def receive(self, sent: Sent) -> Any:
        """Return a batch that work on the calling thread's stream may use."""
        if sent.event is not None:
            stream = torch.cuda.current_stream(self._device)
            stream.wait_event(sent.event)
            for tensor in _tensors(sent.batch):
                tensor.record_stream(stream)  # its memory is not reused before this stream is done with it
        return sent.batch


def _ramp(channels: int) -> Any:
    """Return all values of all channels: channels × 1 × 256."""
    return torch.arange(256, dtype=torch.uint8).expand(channels, 1, 256)


def _each(value: Any, change: Callable[[Any], Any]) -> Any:
    """Return a batch with `change` applied to every tensor in it."""
    if isinstance(value, torch.Tensor):
        return change(value)
    if isinstance(value, Mapping):
        return {name: _each(part, change) for name, part in value.items()}
    if hasattr(value, "_fields"):  # a named tuple
        return type(value)(*(_each(part, change) for part in value))
    if isinstance(value, list | tuple):
        return type(value)(_each(part, change) for part in value)
    return change(value) if hasattr(value, "to") and hasattr(value, "pin_memory") else value


def _tensors(value: Any) -> Iterator[Any]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, Mapping):
        for part in value.values():
            yield from _tensors(part)
    elif isinstance(value, list | tuple):
        for part in value:
            yield from _tensors(part)
