"""Selecting rows: a small language that can only compare.

Grammar::

    either     = both {"or" both}
    both       = one {"and" one}
    one        = "not" one | "(" either ")" | NAME test
    test       = ("=" | "==" | "!=" | "<>" | "<" | "<=" | ">" | ">=") VALUE
               | ["not"] "in" "(" VALUE {"," VALUE} ")"
               | ["not"] "like" TEXT            % stands for any characters, _ for one
               | "is" ["not"] "null"
    VALUE      = NUMBER | TEXT | "true" | "false"
    TEXT       = '…' or "…", with the quote doubled inside
    NAME       = letters, digits, _ . - and /, or anything else in `…`

Keywords may be in upper or lower case. As in SQL, a comparison with a missing value is neither true nor false, and a
row is selected only if the whole condition is true.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from sophon.errors import ConfigError

_MAX_LENGTH: Final = 10_000  # characters; a condition is written by hand
_MAX_DEPTH: Final = 50
_TOKEN: Final = re.compile(
    r"""\s*(?:
        (?P<number>[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?(?![\w.]))
      | (?P<text>'(?:[^']|'')*'|"(?:[^"]|"")*")
      | (?P<quoted>`[^`]+`)
      | (?P<name>[^\W\d][\w./-]*)
      | (?P<sign><>|<=|>=|==|!=|[=<>(),])
    )""",
    re.VERBOSE,
)
_COMPARE: Final[dict[str, Callable[..., Any]]] = {
    "=": pc.equal,
    "==": pc.equal,
    "!=": pc.not_equal,
    "<>": pc.not_equal,
    "<": pc.less,
    "<=": pc.less_equal,
    ">": pc.greater,
    ">=": pc.greater_equal,
}
_WORDS: Final = ("and", "or", "not", "in", "like", "is", "null", "true", "false")

Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class _Token:
    kind: str  # number, text, name, word or sign
    value: Any
    at: int


def matches(condition: str, table: pa.Table) -> Mask:
    """Return the rows of a table for which a condition holds.

    Args:
        condition: Condition in the language above.
        table: Columns by name.

    Raises:
        ConfigError: The condition cannot be read, names an unknown column, or compares different kinds of value.
    """
    reader = _Reader(condition, table)
    found = pc.fill_null(reader.whole(), False)
    return np.asarray(found.to_numpy() if isinstance(found, pa.ChunkedArray) else found.to_numpy(zero_copy_only=False))


class _Reader:
    """Reads a condition from left to right and evaluates it at the same time."""

    def __init__(self, condition: str, table: pa.Table) -> None:
        if len(condition) > _MAX_LENGTH:
            raise ConfigError(f"where: expected at most {_MAX_LENGTH:,} characters, got {len(condition):,}")
        self._condition = condition
        self._table = table
        self._tokens = _tokens(condition)
        self._next = 0
        self._depth = 0

    def whole(self) -> Any:
        """Evaluate the whole condition, row by row."""
        truth = self._either()
        if self._peek() is not None:
            raise self._wrong("'and', 'or' or the end")
        return truth

    def _either(self) -> Any:
        truth = self._both()
        while self._take("word", "or"):
            truth = pc.or_kleene(truth, self._both())
        return truth

    def _both(self) -> Any:
        truth = self._one()
        while self._take("word", "and"):
            truth = pc.and_kleene(truth, self._one())
        return truth

    def _one(self) -> Any:
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise ConfigError(f"where: expected at most {_MAX_DEPTH} nested conditions")
        try:
            if self._take("word", "not"):
                return pc.invert(self._one())
            if self._take("sign", "("):
                truth = self._either()
                self._need("sign", ")")
                return truth
            return self._test()
        finally:
            self._depth -= 1

    def _test(self) -> Any:
        token = self._peek()
        if token is None or token.kind != "name":
            raise self._wrong("the name of a column")
        self._next += 1
        name = token.value
        if name not in self._table.column_names:
            there = ", ".join(self._table.column_names) or "none"
            raise ConfigError(f"where: there is no column {name!r}; choose from {there}")
        column = self._table[name]
        sign = self._peek()
        if sign is not None and sign.kind == "sign" and sign.value in _COMPARE:
            self._next += 1
            return self._compared(name, column, _COMPARE[sign.value], self._value())
        if self._take("word", "is"):
            is_not = self._take("word", "not")
            self._need("word", "null")
            return pc.is_valid(column) if is_not else pc.is_null(column)
        is_not = self._take("word", "not")
        if self._take("word", "in"):
            truth = self._within(name, column)
        elif self._take("word", "like"):
            truth = self._like(name, column)
        else:
            raise self._wrong("=, !=, <, <=, >, >=, in, like or is")
        return pc.invert(truth) if is_not else truth

    def _within(self, name: str, column: pa.ChunkedArray) -> Any:
        self._need("sign", "(")
        truth = self._compared(name, column, pc.equal, self._value())
        while self._take("sign", ","):
            truth = pc.or_kleene(truth, self._compared(name, column, pc.equal, self._value()))
        self._need("sign", ")")
        return truth

    def _like(self, name: str, column: pa.ChunkedArray) -> Any:
        pattern = self._value()
        if not isinstance(pattern, str) or not _is_text(column.type):
            raise ConfigError(f"where: 'like' compares strings, but column {name!r} holds {column.type}")
        return pc.match_like(_plain(column), pattern)

    def _compared(self, name: str, column: pa.ChunkedArray, compare: Callable[..., Any], value: Any) -> Any:
        plain = _plain(column)
        kind = plain.type
        if isinstance(value, bool):
            fits = pa.types.is_boolean(kind)
        elif isinstance(value, str):
            fits = _is_text(kind)
        else:
            fits = pa.types.is_integer(kind) or pa.types.is_floating(kind)
        if pa.types.is_null(kind):
            return pa.nulls(len(column), pa.bool_())
        if not fits:
            raise ConfigError(f"where: column {name!r} holds {kind} and cannot be compared with {value!r}")
        if isinstance(value, float) and pa.types.is_integer(kind):
            plain = plain.cast(pa.float64(), safe=False)
        try:
            return compare(plain, pa.scalar(value, _type_of(value, plain.type)))
        except (pa.ArrowInvalid, OverflowError) as error:
            raise ConfigError(f"where: column {name!r} cannot be compared with {value!r}: {error}") from error

    def _value(self) -> Any:
        token = self._peek()
        if token is not None and token.kind in ("number", "text"):
            self._next += 1
            return token.value
        if token is not None and token.kind == "word" and token.value in ("true", "false"):
            self._next += 1
            return token.value == "true"
        raise self._wrong("a number, a quoted string, true or false")

    def _peek(self) -> _Token | None:
        return self._tokens[self._next] if self._next < len(self._tokens) else None

    def _take(self, kind: str, value: str) -> bool:
        token = self._peek()
        if token is None or (token.kind, token.value) != (kind, value):
            return False
        self._next += 1
        return True

    def _need(self, kind: str, value: str) -> None:
        if not self._take(kind, value):
            raise self._wrong(repr(value))

    def _wrong(self, expected: str) -> ConfigError:
        token = self._peek()
        found = "the end" if token is None else repr(self._condition[token.at :][:20])
        return ConfigError(
            f"where: expected {expected}, got {found} in {self._condition!r}; "
            "write for example: split = 'train' and width >= 64"
        )


def _tokens(condition: str) -> list[_Token]:
    tokens = []
    at, end = 0, len(condition.rstrip())
    while at < end:
        match = _TOKEN.match(condition, at)
        if match is None or match.lastgroup is None:
            raise ConfigError(f"where: cannot read {condition[at:].strip()[:20]!r} in {condition!r}")
        kind, text = match.lastgroup, match[match.lastgroup]
        value: Any = text
        if kind == "number":
            value = int(text) if re.fullmatch(r"[+-]?\d{1,18}", text) else float(text)
        elif kind == "text":
            value = text[1:-1].replace(text[0] * 2, text[0])
        elif kind == "quoted":
            kind, value = "name", text[1:-1]
        elif kind == "name" and text.lower() in _WORDS:
            kind, value = "word", text.lower()
        tokens.append(_Token(kind, value, match.start(match.lastgroup)))
        at = match.end()
    if not tokens:
        raise ConfigError("where: expected a condition, got nothing; write for example: split = 'train'")
    return tokens


def _plain(column: pa.ChunkedArray) -> pa.ChunkedArray:
    return column.cast(column.type.value_type) if pa.types.is_dictionary(column.type) else column


def _is_text(kind: pa.DataType) -> bool:
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _type_of(value: Any, kind: pa.DataType) -> pa.DataType:
    if isinstance(value, bool):
        return pa.bool_()
    if isinstance(value, str):
        return kind
    return pa.float64() if isinstance(value, float) or pa.types.is_floating(kind) else pa.int64()
