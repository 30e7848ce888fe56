"""Checks whether two results of a callable are the same to the last bit: tensors, pictures, dicts of them.

There are three answers: True, False, and None if the results cannot be compared. One part that differs is enough for
False; True needs all parts to be equal.
"""

from __future__ import annotations

import dataclasses
import struct
from collections.abc import Callable, Iterable, Mapping
from enum import Enum
from types import SimpleNamespace
from typing import Any

import numpy as np
from PIL import Image

from sophon.loader.torch_import import torch

_PLAIN = (int, str, bytes, bytearray, Enum, type(None))  # a boolean is an integer
_ELEMENTS = (int, float, str, bytes, type(None))  # of sets


def same_bits(one: Any, other: Any) -> bool | None:
    """Return whether two values are the same, or None if that cannot be known."""
    if type(one) is not type(other):
        return False
    if torch is not None and isinstance(one, torch.Tensor):
        return _same_tensors(one, other)
    for kind, compare in _COMPARED:
        if isinstance(one, kind):
            return compare(one, other)
    if dataclasses.is_dataclass(one):
        return _same_fields(one, other, [field.name for field in dataclasses.fields(one)])
    if hasattr(type(one), "__attrs_attrs__"):
        return _same_fields(one, other, [field.name for field in type(one).__attrs_attrs__])
    return None


def _all(answers: Iterable[bool | None]) -> bool | None:
    found = list(answers)
    if False in found:
        return False
    return None if None in found else True


def _same_tensors(one: Any, other: Any) -> bool | None:
    if one.dtype != other.dtype or one.shape != other.shape:
        return False
    if one.is_quantized:  # torch crashes if the bytes of such a tensor are accessed
        return None
    try:
        return torch.equal(_bytes_of(one), _bytes_of(other))
    except (RuntimeError, TypeError):  # sparse, nested, on no device …
        return None


def _bytes_of(tensor: Any) -> Any:
    plain = tensor.detach().as_subclass(torch.Tensor).cpu().resolve_conj().resolve_neg()
    return plain.contiguous().reshape(-1).view(torch.uint8)


def _same_arrays(one: Any, other: Any) -> bool | None:
    if one.dtype != other.dtype or one.shape != other.shape:
        return False
    if one.dtype.names:  # there may be padding between the fields, with arbitrary bytes
        return _all(_same_arrays(one[name], other[name]) for name in one.dtype.names)
    if one.dtype.hasobject:
        return _same_items(one.ravel().tolist(), other.ravel().tolist())
    return bool(np.ascontiguousarray(one).tobytes() == np.ascontiguousarray(other).tobytes())


def _same_pictures(one: Image.Image, other: Image.Image) -> bool:
    if (one.mode, one.size) != (other.mode, other.size):
        return False
    return one.getpalette() == other.getpalette() and one.tobytes() == other.tobytes()


def _same_items(one: Any, other: Any) -> bool | None:
    return len(one) == len(other) and _all(map(same_bits, one, other))


def _same_mappings(one: Mapping[Any, Any], other: Mapping[Any, Any]) -> bool | None:
    if list(one) != list(other):  # the order too, since a batch keeps it
        return False
    return _all(same_bits(one[key], other[key]) for key in one)


def _same_sets(one: Any, other: Any) -> bool | None:
    if one == other:
        return True
    # Objects without their own equality compare as different even if they mean the same.
    return False if all(isinstance(element, _ELEMENTS) for element in one | other) else None


def _same_fields(one: Any, other: Any, names: Iterable[str]) -> bool | None:
    return _all(same_bits(getattr(one, name, None), getattr(other, name, None)) for name in names)


def _same_floats(one: float, other: float) -> bool:
    return struct.pack("d", one) == struct.pack("d", other)


_COMPARED: tuple[tuple[Any, Callable[[Any, Any], bool | None]], ...] = (
    ((np.ndarray, np.generic), _same_arrays),
    (Image.Image, _same_pictures),
    (_PLAIN, lambda one, other: bool(one == other)),
    (float, _same_floats),
    (complex, lambda one, other: _same_floats(one.real, other.real) and _same_floats(one.imag, other.imag)),
    ((tuple, list), _same_items),
    (Mapping, _same_mappings),
    ((set, frozenset), _same_sets),
    (SimpleNamespace, lambda one, other: _same_mappings(vars(one), vars(other))),
)
