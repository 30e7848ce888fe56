"""One finding of the doctor: what was examined, what was found, and what to do about it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Final

FINE: Final = "fine"  # as it should be
NOTE: Final = "note"  # worth knowing; nothing to do
ADVICE: Final = "advice"  # works, but could be better
FAULT: Final = "fault"  # must be fixed
LEVELS: Final = (FINE, NOTE, ADVICE, FAULT)


@dataclass(frozen=True)
class Finding:
    """One line of the doctor's report.

    Args:
        about: What was examined: "installation", "machine", "pipeline", or the address or path.
        name: One word for what was examined, the same in every release; programs may rely on it.
        level: One of `LEVELS`.
        text: What was found.
        remedy: What to do about it; "" if there is nothing to do.
    """

    about: str
    name: str
    level: str
    text: str
    remedy: str = ""

    def to_json(self) -> dict[str, Any]:
        """Return the finding as JSON."""
        return asdict(self)
