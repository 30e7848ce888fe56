"""A node's answer when a data set is opened: bounded and checked, since a trainer allocates memory based on it.

Nothing in the answer is trusted. Numbers that make no sense, or exceed what any data set has, raise a `ProtocolError`
that names the node.
"""

from __future__ import annotations

import math
from typing import Any

from sophon.codec.table import CODECS
from sophon.errors import ArtifactError, ConfigError, ProtocolError, printable
from sophon.link.membership import part_numbers
from sophon.link.transport import Behind, Opened
from sophon.link.wire import MAX_SAMPLES, parse_json
from sophon.store.fields import Field, fields_from_json

MOST_SAMPLES = 1 << 24  # more than the ten million we plan for; the order of an epoch takes 24 bytes per sample
MOST_TRUSTED = 1 << 28
MAX_ANSWER_BYTES = 1 << 20  # of JSON: fifty thousand class names; always read in less than 50 ms
MAX_TRUSTED_BYTES = 64 << 20
_MOST_CLASSES = 1 << 20
_MOST_NAMES = 1024  # columns, codecs or ops
_MOST_CORES = 1 << 16
_MOST_TEXT = 1024
_MOST_OPS = 64
_MOST_TIME = 1 << 40  # seconds since 1970: tens of thousands of years


def parse_answer(data: bytes, trusted: bool = False) -> dict[str, Any]:
    """Return the JSON of a node's answer, or raise `ProtocolError`."""
    check_answer(len(data), trusted)
    return parse_json(data, MAX_TRUSTED_BYTES)


def check_answer(size_bytes: int, trusted: bool = False) -> None:
    """Raise `ProtocolError` if a node's answer is longer than it may be."""
    if size_bytes > MAX_ANSWER_BYTES and not trusted:
        raise ProtocolError(
            f"the answer has {size_bytes:,} bytes, more than the limit of {MAX_ANSWER_BYTES:,}; does the data set have "
            "that many classes or columns? Accept more from your own node with Credentials(trusted=True)"
        )


def opened_from(message: dict[str, Any], address: str, trusted: bool = False) -> Opened:
    """Return the content of a node's answer, or raise `ProtocolError`.

    Args:
        message: The answer.
        address: Address of the node, for messages.
        trusted: Whether the user trusts the node, so that the largest data sets are accepted.
    """
    read = _Reader(message, address)
    remedy = "" if trusted else ", or more from your own node with Credentials(trusted=True)"
    return Opened(
        name=read.name("dataset"),
        samples=read.integer("samples", 0, MOST_TRUSTED if trusted else MOST_SAMPLES, remedy=remedy),
        fingerprint=read.text("fingerprint"),
        classes=read.texts("classes", _MOST_CLASSES),
        has_labels=read.flag("has_labels"),
        columns=read.texts("columns", _MOST_NAMES),
        max_cut=read.integer("max_cut", 0, _MOST_OPS, default=0),
        digests=read.texts("digests", _MOST_OPS, default=()),
        versions=read.versions("versions"),
        reason=printable(read.text("reason", default="")),
        max_samples=min(max(1, read.integer("max_samples", 0, 1 << 62, default=MAX_SAMPLES)), MAX_SAMPLES),
        cores=read.number("cores", 0.0, _MOST_CORES),
        codecs=read.codecs("codecs"),
        fields=read.fields("fields"),
        columns_digest=read.text("columns_digest", default=""),
        state=read.text("state", default=""),
        time_s=read.number("time_s", 0.0, _MOST_TIME, default=0.0),
        part=read.part("part"),
        whole=read.text("whole", default=""),
        behind=_behind(message.get("relay"), address),
    )


def _behind(message: object, address: str) -> Behind | None:
    """Return a relay's description of its node; None if the answer is from a node."""
    if message is None:
        return None
    if not isinstance(message, dict):
        raise ProtocolError(f"{address} gave an invalid answer: relay: expected its node's answer, got {message!r:.60}")
    read = _Reader(message, f"the node behind {address}")
    return Behind(
        max_cut=read.integer("max_cut", 0, _MOST_OPS, default=0),
        digests=read.texts("digests", _MOST_OPS, default=()),
        versions=read.versions("versions"),
        cores=read.number("cores", 0.0, _MOST_CORES),
        codecs=read.codecs("codecs"),
    )


_FAMILIES = frozenset(name.partition(":")[0] for name in CODECS)
_MISSING = object()


def _is_broken(text: str) -> bool:
    """Return whether a string has half of a surrogate pair, which JSON can spell but no encoding can hold."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return True
    return False


class _Reader:
    def __init__(self, message: dict[str, Any], address: str) -> None:
        self._message = message
        self._address = address

    def _value(self, name: str, default: Any) -> Any:
        value = self._message.get(name, default)
        if value is _MISSING:
            raise ProtocolError(f"{self._address} gave an answer without {name}, which this release cannot read")
        return value

    def _wrong(self, name: str, value: object, expected: str) -> ProtocolError:
        shown = f"{len(value):,} of them" if isinstance(value, list | dict) else f"{value!r:.60}"
        return ProtocolError(f"{self._address} gave an invalid answer: {name}: expected {expected}, got {shown}")

    def integer(self, name: str, least: int, most: int, default: Any = _MISSING, remedy: str = "") -> int:
        value = self._value(name, default)
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise self._wrong(name, value, f"an integer in {least} … {most:,}{remedy}")
        return value

    def number(self, name: str, least: float, most: float, default: Any = _MISSING) -> float:
        value = self._value(name, default)
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        # Compared first: an integer may be too long for a float, and NaN is in no interval.
        if not is_number or not least <= value <= most or not math.isfinite(value):
            raise self._wrong(name, value, f"a number in {least:g} … {most:,}")
        return float(value)

    def flag(self, name: str) -> bool:
        value = self._value(name, _MISSING)
        if not isinstance(value, bool):
            raise self._wrong(name, value, "true or false")
        return value

    def text(self, name: str, default: Any = _MISSING) -> str:
        value = self._value(name, default)
        if not isinstance(value, str) or len(value) > _MOST_TEXT or (not value.isascii() and _is_broken(value)):
            raise self._wrong(name, value, f"a string of at most {_MOST_TEXT:,} characters")
        return value

    def name(self, name: str) -> str:
        """Return a string that is shown verbatim, and so must not contain terminal control codes."""
        value = self.text(name)
        if printable(value) != value:
            raise self._wrong(name, value, "a name without control characters")
        return value

    def part(self, name: str) -> str:
        value = self.text(name, default="")
        if value:
            try:
                part_numbers(value)
            except ProtocolError as error:
                raise ProtocolError(f"{self._address} gave an invalid answer: {error}") from error
        return value

    def texts(self, name: str, most: int, default: Any = _MISSING) -> tuple[str, ...]:
        values = self._value(name, default)
        if not isinstance(values, list | tuple) or len(values) > most:
            raise self._wrong(name, values, f"at most {most:,} strings")
        if not all(isinstance(value, str) and len(value) <= _MOST_TEXT for value in values):
            raise self._wrong(name, values, f"strings of at most {_MOST_TEXT:,} characters")
        return tuple(values)

    def codecs(self, name: str) -> tuple[str, ...]:
        # A node of a later release may have codecs that are unknown here; they are not used.
        return tuple(text for text in self.texts(name, _MOST_NAMES) if text.partition(":")[0] in _FAMILIES)

    def fields(self, name: str) -> tuple[Field, ...]:
        try:
            return fields_from_json(self._value(name, []))
        except (ConfigError, ArtifactError, KeyError, TypeError, ValueError, AttributeError) as error:
            raise ProtocolError(f"{self._address} gave an invalid answer: {name}: {error!r:.200}") from error

    def versions(self, name: str) -> dict[str, str]:
        values = self._value(name, _MISSING)
        if not isinstance(values, dict) or len(values) > _MOST_NAMES:
            raise self._wrong(name, values, "versions by name")
        return {key[:_MOST_TEXT]: str(value)[:_MOST_TEXT] for key, value in values.items()}
