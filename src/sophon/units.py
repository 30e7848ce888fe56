"""Conversion between text and numbers in base units; the only module that knows 1024 and 8.

Base units everywhere else: bytes, seconds, bytes per second, samples per second. Prefixes are decimal (``1 MB`` = 10^6
bytes, ``1mbit`` = 10^6 bits, as network vendors and `tc` count); binary prefixes are spelled out (``MiB``). Bits are
always written ``bit`` and bytes ``B``: ``mbps`` means bits to the SOPHON paper and bytes to `tc`, so it is rejected
rather than guessed.
"""

from __future__ import annotations

import math
import re

from sophon.errors import ConfigError

_NUMBER = r"([0-9]+(?:\.[0-9]*)?(?:[eE][+-]?[0-9]{1,3})?|\.[0-9]+)"
_QUANTITY = re.compile(_NUMBER + r"\s*([A-Za-zµ/]*)")
_LONGEST_TEXT = 64

_BITS_PER_BYTE = 8
_BYTES = {"": 1, "B": 1}
_BITS = {"bit": 1}
for _power, _prefix in enumerate("KMGTP", start=1):
    _BYTES[f"{_prefix}B"] = 1000**_power
    _BYTES[f"{_prefix}iB"] = 1024**_power
    _BITS[f"{_prefix.lower()}bit"] = 1000**_power
_BYTES["kB"] = _BYTES["KB"]
_SECONDS = {"": 1.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9, "min": 60.0, "h": 3600.0}
_RATES = {"": 1.0, "/s": 1.0, "/min": 1 / 60.0, "/h": 1 / 3600.0}


def _split(text: str, kind: str, examples: str) -> tuple[float, str]:
    found = _QUANTITY.fullmatch(text.strip()) if len(text) <= _LONGEST_TEXT else None
    if found is None or not math.isfinite(float(found[1])):
        raise ConfigError(f"{text[:_LONGEST_TEXT]!r} is not {kind}; write one such as {examples}.")
    return float(found[1]), found[2]


def _unknown(text: str, unit: str, kind: str, examples: str) -> ConfigError:
    return ConfigError(f"{text!r} is not {kind}: unknown unit {unit!r}; write one such as {examples}.")


def parse_bandwidth(text: str) -> float:
    """Return bytes per second for a string such as ``500mbit``, ``1gbit/s`` or ``40MB/s``."""
    kind, examples = "a bandwidth", "500mbit, 1gbit or 40MB/s (bits are `bit`, bytes are `B`)"
    value, unit = _split(text, kind, examples)
    bits = unit.removesuffix("/s").lower()
    if bits in _BITS:
        rate = value * _BITS[bits] / _BITS_PER_BYTE
    elif unit.endswith("/s") and unit.removesuffix("/s") in _BYTES and unit != "/s":
        rate = value * _BYTES[unit.removesuffix("/s")]
    else:
        raise _unknown(text, unit, kind, examples)
    if rate <= 0:
        raise ConfigError(f"{text!r} is not a bandwidth above zero; give the link's capacity, such as {examples}.")
    return rate


def parse_bytes(text: str) -> int:
    """Return whole bytes for a string such as ``64MiB``, ``1.5GB`` or ``4096``."""
    kind, examples = "a number of bytes", "4096, 1.5GB or 64MiB"
    value, unit = _split(text, kind, examples)
    if unit not in _BYTES:
        raise _unknown(text, unit, kind, examples)
    return round(value * _BYTES[unit])


def parse_seconds(text: str) -> float:
    """Return seconds for a string such as ``20ms``, ``1.5s`` or ``2min``."""
    kind, examples = "a time", "20ms, 1.5s or 2min"
    value, unit = _split(text, kind, examples)
    if unit not in _SECONDS:
        raise _unknown(text, unit, kind, examples)
    return value * _SECONDS[unit]


def parse_rate(text: str) -> float:
    """Return events per second for a string such as ``1200/s``, ``1200`` or ``72000/min``."""
    kind, examples = "a rate", "1200/s or 72000/min"
    value, unit = _split(text, kind, examples)
    if unit not in _RATES:
        raise _unknown(text, unit, kind, examples)
    if value <= 0:
        raise ConfigError(f"{text!r} is not a rate above zero; give the rate of consumption, such as {examples}.")
    return value * _RATES[unit]


def _scaled(value: float, step: int, units: tuple[str, ...]) -> str:
    magnitude = abs(value)
    index = 0
    # 999.95 would print as 1000.0, so use the next unit where rounding needs a fifth digit.
    while magnitude >= step * 0.99995 and index < len(units) - 1:
        magnitude /= step
        index += 1
    return f"{math.copysign(magnitude, value):.4g} {units[index]}"


def format_bytes(value: float) -> str:
    """Return bytes as text, such as ``109.6 KB``."""
    if not math.isfinite(value):
        return "∞"
    return _scaled(value, 1000, ("B", "KB", "MB", "GB", "TB", "PB"))


def format_bandwidth(bytes_per_s: float) -> str:
    """Return a bandwidth as text, such as ``500 Mbit/s``."""
    if not math.isfinite(bytes_per_s):
        return "∞"
    return _scaled(bytes_per_s * _BITS_PER_BYTE, 1000, ("bit/s", "kbit/s", "Mbit/s", "Gbit/s", "Tbit/s"))


def format_seconds(value: float) -> str:
    """Return a time as text, such as ``20 ms``, ``41.2 s`` or ``2.5 h``."""
    if not math.isfinite(value):
        return "∞"
    if value >= 2 * _SECONDS["h"]:
        return f"{value / _SECONDS['h']:.3g} h"
    if value >= 10 * _SECONDS["min"]:
        return f"{value / _SECONDS['min']:.3g} min"
    for unit in ("s", "ms", "us"):
        if value >= _SECONDS[unit] or (unit == "us" and value > 0):
            return f"{value / _SECONDS[unit]:.3g} {unit}"
    return "0 s"


def format_rate(per_s: float) -> str:
    """Return events per second as text, such as ``1,200/s``."""
    if not math.isfinite(per_s):
        return "∞"
    return f"{per_s:,.0f}/s" if per_s >= 100 else f"{per_s:.3g}/s"


def counted(number: int, one: str, many: str) -> str:
    """Return a number of things in words: ``1 try``, ``2 tries``."""
    return f"{number:,} {one if number == 1 else many}"
