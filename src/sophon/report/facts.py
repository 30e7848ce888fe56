"""The content of a report, independent of its appearance."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from sophon.report.chart import Chart, Table


@dataclass(frozen=True)
class Section:
    """Figures that belong together.

    Args:
        title: What the figures are about.
        intro: One or two sentences before the figures.
        charts: The figures; empty ones are left out.
    """

    title: str
    intro: str
    charts: tuple[Chart, ...]

    def __post_init__(self) -> None:
        # Empty charts are left out: parts that are never busy have no bars.
        object.__setattr__(self, "charts", tuple(chart for chart in self.charts if chart.table().rows))


@dataclass(frozen=True)
class Headline:
    """One number that sums up a report.

    Args:
        value: The number as text, such as ``2.3×``.
        label: What the number is.
    """

    value: str
    label: str


@dataclass(frozen=True)
class Facts:
    """The whole content of a report.

    Args:
        title: The kind of report.
        subject: What was measured or planned, in one line.
        words: Plain sentences: the bottleneck, the gain, and when there would be no gain.
        headlines: A few large numbers.
        summary: The summary table; empty columns are left out.
        sections: The figures.
        remarks: What is left out and why, and how the figures were obtained.
        claim: The conclusion of the report, in one plain sentence; "" if there is none.
    """

    title: str
    subject: str
    words: tuple[str, ...]
    headlines: tuple[Headline, ...]
    summary: Table
    sections: tuple[Section, ...]
    remarks: tuple[str, ...] = ()
    claim: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "summary", self.summary.without_empty_columns())

    @property
    def charts(self) -> tuple[Chart, ...]:
        """All figures, in order."""
        return tuple(chart for section in self.sections for chart in section.charts)

    def to_json(self) -> dict[str, Any]:
        """Return everything as JSON values, including the kind of each chart."""
        data = asdict(self)
        for section, rows in zip(self.sections, data["sections"], strict=True):
            for chart, row in zip(section.charts, rows["charts"], strict=True):
                row["kind"] = type(chart).__name__.lower()
        return data
