"""The table of ops, and the conversion of a JSON spec to an op.

To add an op, write a class, then add a row in `ops.__all__` and a test. Specs come from the network, so an invalid spec
always raises a `ConfigError` that names the op and the remedy; a spec never contains code.
"""

from __future__ import annotations

import dataclasses
import difflib
from typing import Any, TypeVar

from sophon.errors import ConfigError
from sophon.pipeline import ops
from sophon.pipeline.op import Json, Op

OPS: dict[str, type[Op]] = {name: getattr(ops, name) for name in ops.__all__}

MOST_STEPS = 64  # most ops in a pipeline, one after the other
MOST_OPS = 256  # including nested ops: SimCLR's recipe has 9, and the largest AutoAugment policy is one op
MOST_DEPTH = 8  # nesting of ops and lists
MOST_CHARACTERS = 1 << 14  # of all names and strings together: a recipe has a few hundred
MOST_VALUES = 1 << 12  # numbers, names and strings
_MOST_DIGITS_BITS = 128  # most bits of an integer; Python is slow to print one with a million digits
_MOST_NAME = 64  # longest name that is compared with similar ones
_OpClass = TypeVar("_OpClass", bound=type[Op])


def register(op: _OpClass) -> _OpClass:
    """Add your own op to the table; do this on both trainer and storage node."""
    if OPS.setdefault(op.name(), op) is not op:
        raise ConfigError(f"an op named {op.name()} is already registered: {OPS[op.name()]!r}; choose another name")
    return op


def check_bounds(spec: Any) -> None:
    """Raise `ConfigError` unless JSON values are few, short and not deeply nested.

    Processing a spec can take longer than its size suggests: a misspelt name is compared with all known names, and an
    op made of ops asks each inner op several times for its output. So nothing is built, compared or quoted before the
    whole spec is known to be small. The check itself stops as soon as a bound is exceeded.
    """
    ops = values = characters = 0
    level = [spec]
    depth = 0
    while level:
        if depth > 2 * MOST_DEPTH + 2:  # each nested op adds itself and the list it is in
            raise ConfigError(f"expected ops nested at most {MOST_DEPTH} deep; flatten the pipeline")
        below: list[Any] = []
        for value in level:
            if isinstance(value, dict):
                ops += 1
                values += len(value)
                if values <= MOST_VALUES:
                    characters += sum(len(key) if isinstance(key, str) else 1 for key in value)
                    below.extend(value.values())
            elif isinstance(value, list | tuple):
                values += len(value)
                if values <= MOST_VALUES:
                    below.extend(value)
            elif isinstance(value, str):
                characters += len(value)
            elif isinstance(value, int):
                characters += 0 if value.bit_length() <= _MOST_DIGITS_BITS else MOST_CHARACTERS + 1
            if ops > MOST_OPS + 1 or values > MOST_VALUES or characters > MOST_CHARACTERS:
                raise ConfigError(
                    f"expected a pipeline of at most {MOST_OPS} ops, including nested ops, {MOST_VALUES:,} values and "
                    f"{MOST_CHARACTERS:,} characters; shorten it"
                )
        level = below
        depth += 1


def op_from_spec(spec: Json, depth: int = 0) -> Op:
    """Return the op that a JSON spec describes."""
    if depth > MOST_DEPTH:
        raise ConfigError(f"expected ops nested at most {MOST_DEPTH} deep; flatten the pipeline")
    if not isinstance(spec, dict) or not isinstance(spec.get("op"), str):
        raise ConfigError(f'expected an op as {{"op": NAME, "version": N, …}}, got {_short(spec)}')
    name = spec["op"]
    op = OPS.get(name)
    if op is None:
        near = difflib.get_close_matches(name[:_MOST_NAME], OPS, n=1)
        hint = f"did you mean {near[0]}?" if near else "sophon.OPS lists the known ops."
        raise ConfigError(f"unknown op {_short(name)}; {hint} Register your own op on both sides.")
    if spec.get("version") != op.version:
        raise ConfigError(
            f"{name} version {_short(spec.get('version'))} is not known here, only version {op.version}; "
            "install the same sophon release on trainer and storage node"
        )
    known = {field.name for field in dataclasses.fields(op) if field.compare}
    params = {key: value for key, value in spec.items() if key not in ("op", "version")}
    unknown = sorted(set(params) - known, key=str)
    if unknown:
        raise ConfigError(
            f"{name} has no parameter {_short(unknown[0])}; it takes {', '.join(sorted(known)) or 'none'}"
        )
    try:
        return op(**{key: _from_json(value, depth) for key, value in params.items()})
    except TypeError as error:  # a required parameter is missing
        raise ConfigError(f"{name}: {error}; it takes {', '.join(sorted(known))}") from error


def _from_json(value: Json, depth: int) -> object:
    if depth > MOST_DEPTH:
        raise ConfigError(f"expected lists nested at most {MOST_DEPTH} deep")
    if isinstance(value, dict):
        return op_from_spec(value, depth + 1)
    if isinstance(value, list):
        return tuple(_from_json(part, depth + 1) for part in value)
    return value


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "…"
