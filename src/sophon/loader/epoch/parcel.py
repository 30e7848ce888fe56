"""Parcels: values sent from one of our own processes to another.

Values are pickled, which is safe here and nowhere else in this project: the other end is a process that this one has
started, connected by a socket without a name. The large parts of a value, the numbers of arrays and tensors, are left
out of the pickle and put into separate shared memory, from which the value is built without another copy.
"""

from __future__ import annotations

import io
import pickle
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sophon.process.segments import Bytes, make_file, map_file

_ALIGN = 64  # bytes: the size of a cache line
_SMALL = 1 << 15  # bytes of numbers sent with the pickle: a segment costs about as much as copying this many

CannotPickle = (pickle.PicklingError, AttributeError, TypeError)
"""Errors raised when a value, such as a lambda, cannot be pickled."""


@dataclass(frozen=True)
class Parcel:
    """A value in transit.

    Args:
        text: The pickle.
        sizes: Bytes of each piece of memory that the pickle refers to.
        memory: These pieces, one after the other.
    """

    text: bytes
    sizes: tuple[int, ...] = ()
    memory: Bytes | bytes = b""

    @property
    def size_bytes(self) -> int:
        """Approximate size of the value."""
        return len(self.text) + sum(self.sizes)

    def open(self) -> Any:
        """Return the value. Its arrays and tensors use the parcel's memory and keep it alive."""
        memory = self.memory
        if not isinstance(memory, np.ndarray):
            memory = np.frombuffer(bytearray(memory), np.uint8)  # arrays that are opened must be writable
        assert len(memory) >= sum(map(_aligned, self.sizes)), "a parcel without its memory"
        at, parts = 0, []
        for size in self.sizes:
            parts.append(memory[at : at + size])
            at += _aligned(size)
        return pickle.loads(self.text, buffers=parts)


def pack(value: Any, allocate: Callable[[int], Bytes]) -> Parcel:
    """Return a parcel of a value.

    Args:
        value: What to send; anything that can be pickled.
        allocate: Returns memory for the numbers in the value, if there are many.
    """
    stream, parts = io.BytesIO(), list[pickle.PickleBuffer]()
    _Pickler(stream, protocol=5, buffer_callback=parts.append).dump(value)
    raws = [part.raw() for part in parts]
    sizes = tuple(raw.nbytes for raw in raws)
    total = sum(map(_aligned, sizes))
    memory = allocate(total) if total > _SMALL else np.empty(total, np.uint8)
    at = 0
    for raw, size in zip(raws, sizes, strict=True):
        memory[at : at + size] = np.frombuffer(raw, np.uint8)
        at += _aligned(size)
    return Parcel(stream.getvalue(), sizes, memory if total > _SMALL else memory.tobytes())


def dump(value: Any) -> bytes:
    """Return a small value as bytes, for one of our own processes."""
    return pickle.dumps(value, protocol=5)


def load(text: bytes) -> Any:
    """Return the value that one of our own processes has sent."""
    return pickle.loads(text)


class NewFile:
    """Allocates the memory of one parcel in a separate file, whose descriptor is sent along."""

    def __init__(self) -> None:
        self.file: int | None = None

    def __call__(self, size_bytes: int) -> Bytes:
        """Return the memory."""
        self.file = make_file(size_bytes)
        return map_file(self.file, size_bytes)


def _aligned(size: int) -> int:
    return -(-size // _ALIGN) * _ALIGN


class _Pickler(pickle.Pickler):
    def reducer_override(self, value: Any) -> Any:
        torch: Any = sys.modules.get("torch")
        if torch is None or type(value) is not torch.Tensor:
            return NotImplemented  # arrays leave out their numbers automatically
        if value.device.type != "cpu" or value.layout != torch.strided or value.requires_grad or value.is_quantized:
            return NotImplemented
        if value.is_conj() or value.is_neg():
            return NotImplemented
        span = value.untyped_storage()
        dense = value
        # A tensor that fills its memory keeps its strides; of a larger memory, only the tensor's part is copied.
        if value.storage_offset() or span.nbytes() != value.numel() * value.element_size():
            dense = value.contiguous()
        flat = torch.as_strided(dense, (dense.numel(),), (1,), dense.storage_offset()).view(torch.uint8).numpy()
        return _tensor, (flat, value.dtype, tuple(dense.shape), dense.stride())


def _tensor(flat: NDArray[np.uint8], dtype: Any, shape: tuple[int, ...], stride: tuple[int, ...]) -> Any:
    torch: Any = sys.modules["torch"]
    if not flat.size:
        return torch.empty(shape, dtype=dtype)
    return torch.as_strided(torch.from_numpy(flat).view(dtype), shape, stride)
