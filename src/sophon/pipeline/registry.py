"""The table of ops, and the way from a JSON spec to an op.

A new op is one class, one row in `ops.__all__` and one test. Specs come from the network, so whatever is wrong with one
ends in a `ConfigError` that names the op and the remedy; nothing in a spec is ever code.
"""

from __future__ import annotations

import dataclasses
import difflib
from typing import TypeVar

from sophon.errors import ConfigError
from sophon.pipeline import ops
from sophon.pipeline.op import Json, Op

OPS: dict[str, type[Op]] = {name: getattr(ops, name) for name in ops.__all__}

_MAX_DEPTH = 8  # of ops inside ops; a deeper spec is not a recipe but an attack
_OpClass = TypeVar("_OpClass", bound=type[Op])


def register(op: _OpClass) -> _OpClass:
    """Add an op of your own to the table; trainer and storage node must both do it."""
    if OPS.setdefault(op.name(), op) is not op:
        raise ConfigError(f"an op named {op.name()} is registered already: {OPS[op.name()]!r}; choose another name")
    return op


def op_from_spec(spec: Json, depth: int = 0) -> Op:
    """Return the op that a JSON spec describes."""
    if depth > _MAX_DEPTH:
        raise ConfigError(f"expected ops nested at most {_MAX_DEPTH} deep; flatten the pipeline")
    if not isinstance(spec, dict) or not isinstance(spec.get("op"), str):
        raise ConfigError(f'expected an op as {{"op": NAME, "version": N, …}}, got {_short(spec)}')
    name = spec["op"]
    op = OPS.get(name)
    if op is None:
        near = difflib.get_close_matches(name, OPS, n=1)
        hint = f"did you mean {near[0]}?" if near else "sophon.OPS has those that are known."
        raise ConfigError(f"unknown op {_short(name)}; {hint} Register an op of your own on both sides.")
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
    if depth > _MAX_DEPTH:
        raise ConfigError(f"expected lists nested at most {_MAX_DEPTH} deep")
    if isinstance(value, dict):
        return op_from_spec(value, depth + 1)
    if isinstance(value, list):
        return tuple(_from_json(part, depth + 1) for part in value)
    return value


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "…"
