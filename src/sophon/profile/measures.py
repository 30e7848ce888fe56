"""The quantities measured for a sample at each route: the tables of a profile, with their units and names.

A resource is spent by measures (`sophon.plan.resources`); a resource with a new measure needs a row for that measure
here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from sophon.units import format_bytes, format_seconds


@dataclass(frozen=True)
class Measure:
    """One table of a profile.

    Args:
        name: Name of the table and its columns in a file.
        unit: ``bytes`` or ``seconds`` (of CPU).
        where: Where it is spent, in words.
        title: Title of a column in a report.
        is_optional: Whether a profile may lack it; the resource that it spends defines what is then assumed.
    """

    name: str
    unit: str
    where: str
    title: str
    is_optional: bool = False

    def format(self, amount: float) -> str:
        """Return an amount as text."""
        return _FORMATS[self.unit](amount)


_FORMATS: dict[str, Callable[[float], str]] = {"bytes": format_bytes, "seconds": format_seconds}

MEASURES = (
    Measure("payload_bytes", "bytes", "on the link", "bytes per sample"),
    Measure("storage_s", "seconds", "near storage", "storage CPU"),
    Measure("trainer_s", "seconds", "at the trainer", "trainer CPU"),
    Measure("read_bytes", "bytes", "from the store", "bytes read", is_optional=True),
    Measure("relay_s", "seconds", "at a relay", "relay CPU", is_optional=True),
    Measure("relay_bytes", "bytes", "from a relay", "bytes from relays", is_optional=True),
)
REQUIRED = tuple(measure.name for measure in MEASURES if not measure.is_optional)
OPTIONAL = tuple(measure.name for measure in MEASURES if measure.is_optional)


def measure_named(name: str) -> Measure:
    """Return the measure with the given table name."""
    return next(measure for measure in MEASURES if measure.name == name)
