"""Inputs that somebody hostile might send: seeded, from good ones."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Iterator, Sequence
from typing import Any

_TELLING = bytes((0x00, 0x01, 0x7F, 0x80, 0xFE, 0xFF))
_ODD: tuple[Any, ...] = (
    None,
    True,
    -1,
    0,
    1,
    2**31,
    2**63,
    2**64,
    10**40,
    -(10**400),
    1e308,
    -0.0,
    float("nan"),
    float("inf"),
    "",
    "x" * 5000,
    "\0",
    "\ud800",
    "../../etc/passwd",
    "٣",
    [],
    {},
    [[[[[[[[[[[[]]]]]]]]]]]],
    [0] * 9000,
    {"op": "Decode"},
    {"op": "RandomApply", "version": 1, "op_": {}},
)


def bytes_like(good: Sequence[bytes], rng: random.Random) -> bytes:
    """Return one of some good inputs with a few faults, or something else altogether."""
    data = bytearray(rng.choice(good))
    if rng.random() < 0.02:
        return rng.randbytes(rng.randrange(200))
    for _ in range(rng.choice((1, 1, 2, 3, 8))):
        # Half of the faults in the first bytes, where lengths and kinds are.
        at = rng.randrange(min(len(data), 64) if rng.random() < 0.5 else len(data)) if data else 0
        kind = rng.randrange(8)
        if kind == 0 and data:
            data[at] ^= 1 << rng.randrange(8)
        elif kind == 1 and data:
            data[at] = rng.choice(_TELLING)
        elif kind == 2:
            del data[at : at + rng.randrange(1, 9)]
        elif kind == 3:
            data[at:at] = rng.randbytes(rng.randrange(1, 9))
        elif kind == 4:
            data[at : at + 4] = rng.choice((b"\xff\xff\xff\xff", b"\xff\xff\xff\x7f", b"\0\0\0\x80", b"\0\0\0\0"))
        elif kind == 5:
            other = rng.choice(good)
            start = rng.randrange(len(other)) if other else 0
            data[at : at + 40] = other[start : start + 40]
        elif kind == 6 and rng.random() < 0.3:
            del data[at:]
        else:
            data[-rng.randrange(1, 13) :] = rng.randbytes(8)  # the last bytes, where footers are
    return bytes(data)


def json_like(good: Sequence[Any], rng: random.Random) -> Any:
    """Return one of some good JSON values with a few parts exchanged for odd ones."""
    value = [copy.deepcopy(rng.choice(good))]
    for _ in range(rng.choice((1, 1, 2, 4))):
        holder, key = rng.choice(list(_places(value)))
        how = rng.random()
        if how < 0.6:
            holder[key] = copy.deepcopy(rng.choice(_ODD))
        elif how < 0.75 and isinstance(holder, dict):
            holder[rng.choice(("op", "version", "size", "x", "", "__class__"))] = holder.pop(key)
        elif how < 0.9:
            part = holder[key]
            holder[key] = [part] * rng.choice((2, 70)) if rng.random() < 0.5 else part
        else:
            holder[key] = copy.deepcopy(rng.choice(list(_places(value)))[0])
    return value[0]


def json_text(good: Sequence[Any], rng: random.Random) -> bytes:
    """Return the text of such a value."""
    return json.dumps(json_like(good, rng)).encode("utf-8", "surrogatepass")


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    if isinstance(value, dict):
        for key in list(value):
            yield value, key
            yield from _places(value[key])
    elif isinstance(value, list):
        for index, part in enumerate(value[:50]):
            yield value, index
            yield from _places(part)
