"""Mutated messages, tried in a process of their own: ``python -m tests.support.mutate KIND COUNT SEED``.

Prints JSON: how many were refused, the names of errors that nobody expects, and the most CPU time and memory that one
took.
"""

from __future__ import annotations

import copy
import json
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa

from sophon.codec import Cut
from sophon.errors import ConfigError, ProtocolError
from sophon.link.answer import opened_from, parse_answer
from sophon.link.closed import clock_and_message, enclosed, opened_batch
from sophon.link.wire import REPLY_SCHEMA, Reply, Request, StreamClock, agreed, batch_of, replies_of
from sophon.pipeline import Pipeline, ops
from tests.support.answer import ANSWER

SPEC = Pipeline(
    [
        ops.Decode(),
        ops.RandomResizedCrop(224),
        ops.RandomApply([ops.ColorJitter(0.4, 0.4, 0.4, 0.1), ops.GaussianBlur(5)], 0.8),
        ops.RandomHorizontalFlip(),
        ops.ToTensor(),
        ops.Normalize((0.5, 0.5, 0.5), (0.2, 0.2, 0.2)),
    ]
).to_spec()
REQUEST = Request("train", SPEC, 3, 4, (5, 6, 7, 8), (Cut(0), Cut(1), Cut(2), Cut(2)), columns=("id",))
REPLIES = [
    Reply(at, REQUEST.cuts[at], bytes(range(200)), at, 0.5, columns={"id": str(at)}, op_s=(0.1,) * at, size=(9, 9))
    for at in range(4)
]
_STATUS, _FORGET = Path("/proc/self/status"), Path("/proc/self/clear_refs")
ODD: list[Any] = [
    *(None, True, -1, 0, 1, 1.5, 1e308, -1e308, 10**30, float("nan"), float("inf"), "", "x", "x" * 100_000),
    *([], {}, [[]], [0] * 10_000, {"op": "Decode"}, {"ops": []}),
]


def _places(value: Any, found: list[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        found.append((value, key))
        _places(inner, found)
    return found


def mutated_json(value: Any, rng: random.Random) -> bytes:
    """Return JSON in which values were replaced, repeated, left out or nested, or bytes were changed."""
    value = copy.deepcopy(value)
    for _ in range(rng.choice((1, 1, 2, 3))):
        places = _places(value, [])
        if not 0 < len(places) < 10_000:
            break
        holder, key = rng.choice(places)
        how = rng.randrange(5)
        if how == 0:
            holder[key] = copy.deepcopy(rng.choice(ODD))
        elif how == 1:
            other, name = rng.choice(places)
            holder[key] = copy.deepcopy(other.get(name) if isinstance(other, dict) else other[name % len(other)])
        elif how == 2:
            for _ in range(rng.choice((1, 10, 100))):
                holder[key] = [holder[key]] if rng.random() < 0.5 else {"op": "RandomApply", "ops": [holder[key]]}
        elif how == 3 and isinstance(holder, list):
            holder[key:key] = [holder[key]] * rng.choice((1, 20, 300))
        else:
            holder.pop(key)
    try:
        data = json.dumps(value).encode()
    except (ValueError, RecursionError):
        data = b"["
    return mutated_bytes(data, rng) if rng.random() < 0.3 else data


def mutated_bytes(data: bytes, rng: random.Random) -> bytes:
    """Return bytes of which some are changed, left out, repeated or cut off."""
    made = bytearray(data)
    for _ in range(rng.choice((1, 1, 3, 12))):
        at = rng.randrange(len(made)) if made else 0
        how = rng.randrange(4)
        if how == 0 and made:
            made[at] = rng.choice((0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)))
        elif how == 1:
            made[at : at + 4] = rng.choice((0, 1, 2**31 - 1, 2**31, 2**32 - 1, 64)).to_bytes(4, "little")
        elif how == 2:
            del made[at : at + rng.choice((1, 8, 64, len(made)))]
        else:
            made[at:at] = made[at : at + rng.choice((1, 8, 64))]
    return bytes(made)


def _spec(rng: random.Random) -> Callable[[], object]:
    whole = json.loads(REQUEST.to_bytes())
    if rng.random() < 0.6:
        whole["pipeline"] = parsed if isinstance(parsed := _loose(mutated_json(SPEC, rng)), dict) else {"ops": parsed}
        data = json.dumps(whole).encode()
    else:
        data = mutated_json(whole, rng)
    return lambda: Pipeline.from_spec(Request.from_bytes(data).pipeline)


def _loose(data: bytes) -> Any:
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return {}


def _answer(rng: random.Random) -> Callable[[], object]:
    data = mutated_json(ANSWER, rng)

    def take() -> object:
        message = parse_answer(data)
        return agreed(message.get("protocols")), opened_from(message, "grpc://node")

    return take


def _batch(rng: random.Random) -> Callable[[], object]:
    whole = enclosed(batch_of(REPLIES), rng.choice([b"", StreamClock().to_bytes()])).to_pybytes()
    envelope = pa.py_buffer(mutated_bytes(whole, rng))

    def take() -> object:
        clock, message = clock_and_message(envelope)
        told = StreamClock.from_bytes(clock) if clock else None
        return told, [] if message is None else list(replies_of(opened_batch(message, REPLY_SCHEMA), REQUEST))

    return take


KINDS = {"spec": _spec, "answer": _answer, "batch": _batch}


def attempt(kind: str, count: int, seed: int) -> dict[str, Any]:
    """Try mutated messages of a kind."""
    rng = random.Random(seed)
    refused, slowest_s, grown, strange = 0, 0.0, 0, {}
    for _ in range(count):
        take = KINDS[kind](rng)
        _FORGET.write_text("5")  # what the process had at its largest
        before = _kilobytes("VmRSS")
        start_s = time.thread_time()
        try:
            take()
        except (ProtocolError, ConfigError):
            refused += 1
        except BaseException as error:  # noqa: BLE001 - what nobody expects is what is looked for
            strange[type(error).__name__] = str(error)[:200]
        slowest_s = max(slowest_s, time.thread_time() - start_s)
        grown = max(grown, _kilobytes("VmHWM") - before)
    return {"refused": refused, "strange": strange, "slowest_s": slowest_s, "megabytes": grown >> 10}


def _kilobytes(name: str) -> int:
    return int(_STATUS.read_text().partition(f"{name}:")[2].split(None, 1)[0])


if __name__ == "__main__":
    sys.stdout.write(json.dumps(attempt(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))) + "\n")
