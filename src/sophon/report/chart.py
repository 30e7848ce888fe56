"""What a figure shows, as data: four kinds of chart, which do not know how they are drawn.

A chart can give its numbers as a table, which the page shows below the figure and ``--json`` writes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sophon.units import format_bandwidth, format_bytes, format_rate, format_seconds

MISSING = "–"
"""Shown in place of a missing number."""


def _format_count(value: float) -> str:
    return f"{value:,.0f}"


def _format_number(value: float) -> str:
    return f"{value:.3g}"


def _format_share(value: float) -> str:
    return "0 %" if value == 0 else f"{100 * value:.{0 if value >= 0.1 else 1}f} %"


FORMATS: dict[str, Callable[[float], str]] = {
    "bytes": format_bytes,
    "seconds": format_seconds,
    "bandwidth": format_bandwidth,
    "bytes_per_s": lambda value: f"{format_bytes(value)}/s",
    "rate": format_rate,
    "share": _format_share,
    "count": _format_count,
    "number": _format_number,
    "times": lambda value: f"{value:.2f}×",
}


def show(value: float | None, unit: str) -> str:
    """Return a number as text, with a word in place of a missing or infinite number."""
    if value is None or math.isnan(value):
        return MISSING
    return "never ends" if math.isinf(value) else FORMATS[unit](value)


@dataclass(frozen=True)
class Table:
    """Rows under a header.

    Args:
        header: Names of the columns.
        rows: Cells as text.
        names: How many columns from the left hold words; the others hold numbers.
    """

    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    names: int = 1

    def without_empty_columns(self) -> Table:
        """Return the table without empty columns; the columns of names stay."""
        columns = [
            place
            for place in range(len(self.header))
            if place < self.names or any(row[place] not in (MISSING, "") for row in self.rows)
        ]
        rows = tuple(tuple(row[place] for place in columns) for row in self.rows)
        return Table(tuple(self.header[place] for place in columns), rows, self.names)


@dataclass(frozen=True, kw_only=True)
class Chart:
    """Base class of all charts.

    Args:
        key: Name of the chart's file and anchor.
        title: Title of the chart.
        caption: What the chart shows, in one sentence.
    """

    key: str
    title: str
    caption: str

    def table(self) -> Table:
        """Return the chart's numbers as a table."""
        raise NotImplementedError


@dataclass(frozen=True)
class Bar:
    """One bar.

    Args:
        label: What the bar stands for.
        value: Length of the bar; None or infinity is written instead of drawn.
        tint: Colour of the bar, a name in the palette.
        beside: The value to compare with, drawn as a diamond.
        low: Smallest value measured.
        high: Largest value measured.
    """

    label: str
    value: float | None
    tint: str
    beside: float | None = None
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True, kw_only=True)
class Bars(Chart):
    """Horizontal bars with their values written at their ends.

    Args:
        unit: Unit of the values, a name in `FORMATS`.
        bars: The bars, from top to bottom.
        what: What the bars show, such as ``measured``.
        beside: What the diamonds show, such as ``predicted``; set to "" if no bar has a diamond.
    """

    unit: str
    bars: tuple[Bar, ...]
    what: str = "measured"
    beside: str = ""

    def __post_init__(self) -> None:
        if all(bar.beside is None for bar in self.bars):
            object.__setattr__(self, "beside", "")

    def table(self) -> Table:
        """Return one row per bar."""
        spread = any(bar.low is not None for bar in self.bars)
        header = ["", self.what, *(["least", "most"] if spread else []), *([self.beside] if self.beside else [])]
        rows = []
        for bar in self.bars:
            values = [bar.value, *([bar.low, bar.high] if spread else []), *([bar.beside] if self.beside else [])]
            rows.append((bar.label, *(show(value, self.unit) for value in values)))
        return Table(tuple(header), tuple(rows))


@dataclass(frozen=True)
class Line:
    """One line.

    Args:
        label: What the line stands for.
        tint: Colour of the line.
        points: (x, y) from left to right; an infinite y is left out.
        dashed: Whether the line is dashed, for predicted rather than measured values.
        dots: Whether to draw single points, with nothing between them.
    """

    label: str
    tint: str
    points: tuple[tuple[float, float], ...]
    dashed: bool = False
    dots: bool = False


@dataclass(frozen=True, kw_only=True)
class Lines(Chart):
    """Lines over a common axis.

    Args:
        x: Label of the horizontal axis.
        x_unit: Unit of x, a name in `FORMATS`.
        y_unit: Unit of y.
        lines: The lines, in the order of the legend.
        ticks: Names of x = 0, 1, … if x is not a number.
        log_x: Whether the x axis is logarithmic.
        log_y: Whether the y axis is logarithmic.
        mark: A value of x to mark, and its name.
    """

    x: str
    x_unit: str
    y_unit: str
    lines: tuple[Line, ...]
    ticks: tuple[str, ...] = ()
    log_x: bool = False
    log_y: bool = False
    mark: tuple[float, str] | None = None

    def table(self) -> Table:
        """Return one row per x, one column per line."""
        places = sorted({x for line in self.lines for x, _ in line.points})
        found = [dict(line.points) for line in self.lines]
        rows = []
        for x in _thinned(places):
            name = self.ticks[int(x)] if self.ticks else show(x, self.x_unit)
            rows.append((name, *(show(values.get(x), self.y_unit) for values in found)))
        return Table((self.x, *(line.label for line in self.lines)), tuple(rows))


@dataclass(frozen=True)
class Layer:
    """One layer of a stack.

    Args:
        label: What the layer stands for.
        tint: Colour of the layer.
        counts: Number of items in each bin.
    """

    label: str
    tint: str
    counts: tuple[float, ...]


@dataclass(frozen=True, kw_only=True)
class Stacks(Chart):
    """A histogram whose columns are stacked by kind.

    Args:
        x: Label of the horizontal axis.
        x_unit: Unit of the edges.
        y: What is counted.
        edges: Borders of the bins, one more than there are bins.
        layers: The layers, from bottom to top.
        log_x: Whether the x axis is logarithmic.
    """

    x: str
    x_unit: str
    y: str
    edges: tuple[float, ...]
    layers: tuple[Layer, ...]
    log_x: bool = False

    def table(self) -> Table:
        """Return one row per non-empty bin."""
        rows = []
        for place in range(len(self.edges) - 1):
            counts = [layer.counts[place] for layer in self.layers]
            if any(counts):
                name = " … ".join(show(edge, self.x_unit) for edge in self.edges[place : place + 2])
                rows.append((name, *(show(count, "count") for count in counts)))
        return Table((self.x, *(layer.label for layer in self.layers)), tuple(rows))


@dataclass(frozen=True)
class Span:
    """A stretch of an axis.

    Args:
        start: Where the stretch begins.
        end: Where the stretch ends.
        label: What applies in this stretch.
        tint: Colour of the stretch.
    """

    start: float
    end: float
    label: str
    tint: str


@dataclass(frozen=True, kw_only=True)
class Spans(Chart):
    """Rows of stretches along a common axis, such as time.

    Args:
        x: Label of the horizontal axis.
        x_unit: Unit of starts and ends.
        rows: Name of each row, and its stretches from left to right.
        log_x: Whether the x axis is logarithmic.
    """

    x: str
    x_unit: str
    rows: tuple[tuple[str, tuple[Span, ...]], ...]
    log_x: bool = False

    def labels(self) -> dict[str, str]:
        """Return each label with its tint, in order of first use."""
        return {span.label: span.tint for _, spans in self.rows for span in spans}

    def table(self) -> Table:
        """Return one row per stretch."""
        rows = [
            (name, show(span.start, self.x_unit), show(span.end, self.x_unit), span.label)
            for name, spans in self.rows
            for span in spans
        ]
        return Table(("", "from", "to", "what"), tuple(rows))


_MOST_ROWS = 24  # most rows of a table below a figure; a curve of a hundred points is better read from the figure


def _thinned(places: Sequence[float]) -> list[float]:
    if len(places) <= _MOST_ROWS:
        return list(places)
    step = (len(places) - 1) / (_MOST_ROWS - 1)
    return [places[round(index * step)] for index in range(_MOST_ROWS)]
