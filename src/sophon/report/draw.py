"""Draws charts: the same picture as PNG for documents and, in two widths, as SVG for the page.

Figures are made without pyplot and with matplotlib's own defaults, so neither a user's settings nor other figures
change a byte. Text is never parsed as mathematics: labels may come from untrusted sources.
"""

from __future__ import annotations

import io
import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from matplotlib import style
from matplotlib.axes import Axes
from matplotlib.figure import Figure, SubFigure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator

from sophon.report.chart import Bars, Chart, Lines, Spans, Stacks, show
from sophon.report.palette import light
from sophon.units import parse_bandwidth

WIDE, NARROW = 528, 340  # width of the page's columns on a screen and on a phone, in CSS pixels
_PNG_DPI = 180
_POINTS_PER_INCH = 72  # one point is one pixel of the page
_HEIGHT = 290
_TITLE = 34
_LETTER = 7.0  # approximate width of a letter in pixels: DejaVu Sans at this size, which is wider than most fonts
_STYLE = {
    "font.family": "DejaVu Sans",  # shipped with matplotlib: the same picture on every machine
    "font.size": 12,
    "text.parse_math": False,
    "text.color": light("ink"),
    "axes.edgecolor": light("rule"),
    "axes.labelcolor": light("muted"),
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.spines.left": False,
    "axes.axisbelow": True,
    "axes.grid.axis": "y",
    "grid.color": light("rule"),
    "grid.linewidth": 1.0,
    "xtick.color": light("rule"),
    "ytick.color": light("rule"),
    "xtick.labelcolor": light("muted"),
    "ytick.labelcolor": light("muted"),
    "ytick.major.size": 0,
    "ytick.minor.size": 0,
    "xtick.major.size": 3,
    "xtick.minor.size": 0,
    "legend.frameon": False,
    "legend.fontsize": 12,
    "legend.handlelength": 1.3,
    "legend.handletextpad": 0.5,
    "legend.columnspacing": 1.3,
    "legend.borderaxespad": 0.2,
    "lines.linewidth": 2.2,
    "lines.markersize": 5,
    "svg.fonttype": "none",
    "path.simplify": False,
}
_LOG_RANGE = 1e-4  # smallest value shown on a logarithmic axis, relative to the largest: the rest is irrelevant
_MARKERS = ("o", "s", "^", "D", "v", "P")


def png(chart: Chart) -> bytes:
    """Return the chart as a PNG file, with its title, on white."""
    out = io.BytesIO()
    with _styled({}):
        figure = _figure(chart, WIDE, titled=True)
        figure.savefig(out, format="png", dpi=_PNG_DPI, facecolor=light("ground"), metadata={"Software": None})
    return out.getvalue()


def svg(chart: Chart, width: int) -> str:
    """Return matplotlib's SVG without title or background; `sophon.report.svg` makes it part of a page."""
    out = io.StringIO()
    salt = f"{chart.key}-{width}"  # makes ids the same in every run, but different between the figures of a page
    with _styled({"svg.hashsalt": salt}):
        figure = _figure(chart, width)
        figure.savefig(out, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    return out.getvalue()


@contextmanager
def _styled(more: dict[str, Any]) -> Iterator[None]:
    with style.context(["default", {**_STYLE, **more}]), warnings.catch_warnings():
        # A name in a script that the font lacks becomes boxes in a PNG; on the page the reader's font counts.
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        yield


def _figure(chart: Chart, width: int, *, titled: bool = False) -> Figure:
    # One function per kind: (axes, chart, width) → the handles of its legend.
    kinds: dict[type, tuple[Callable[..., list[Any]], int]] = {
        Bars: (_bars, _bars_height(chart)),
        Lines: (_lines, _HEIGHT),
        Stacks: (_stacks, _HEIGHT),
        Spans: (_spans, 96 + 34 * len(getattr(chart, "rows", ()))),
    }
    draw, height = kinds[type(chart)]
    above = _TITLE if titled else 0
    figure = Figure(figsize=(width / _POINTS_PER_INCH, (height + above) / _POINTS_PER_INCH), layout="constrained")
    figure.get_layout_engine().set(w_pad=4 / _POINTS_PER_INCH, h_pad=4 / _POINTS_PER_INCH)  # type: ignore[union-attr, call-arg]
    body: Figure | SubFigure = figure
    if titled:
        # Two parts, so that title and legend do not overlap.
        parts: Any = figure.subfigures(2, 1, height_ratios=(above, height))
        head, body = parts
        head.text(0.01, 0.35, chart.title, va="center", fontsize=14, fontweight="bold")
    axes = body.add_subplot()
    handles = draw(axes, chart, width)
    if handles:
        sizes = [_LETTER * len(str(handle.get_label())) + 36 for handle in handles]
        rows = 1 if sum(sizes) <= width else math.ceil(len(handles) / max(1, int(width / max(sizes))))
        columns = math.ceil(len(handles) / rows)  # as even as possible
        body.legend(handles=handles, loc="outside upper left", ncols=columns)
    return figure


def _bars_height(chart: Chart) -> int:
    bars = getattr(chart, "bars", ())
    return 16 + 32 * len(bars) + (28 if any(bar.beside is not None for bar in bars) else 0)


def _bars_end(chart: Bars) -> float:
    # A bar that dwarfs the others is truncated and marked, so that they stay visible. Shares of one whole are never
    # truncated.
    values = sorted(bar.value for bar in chart.bars if bar.value is not None and math.isfinite(bar.value)) or [1.0]
    others = [bar.beside for bar in chart.bars if bar.beside is not None and bar.value != values[-1]]
    second = max([*values[-2:-1], *others], default=values[-1])
    if chart.unit != "share" and values[-1] > 3 * second > 0:
        return 1.35 * second
    return max([values[-1], *(bar.beside for bar in chart.bars if bar.beside is not None)]) or 1.0


def _bars(axes: Axes, chart: Bars, width: int) -> list[Any]:
    beside = [bar.beside for bar in chart.bars if bar.beside is not None]
    end = _bars_end(chart)
    gap = 0.02 * end * WIDE / width  # the same distance at both widths
    names = [_wrapped(bar.label, width) for bar in chart.bars]
    space = width - 16 - _LETTER * max((len(line) for name in names for line in name.split("\n")), default=0)
    full = end
    for place, bar in enumerate(chart.bars):
        if bar.value is None or not math.isfinite(bar.value):
            text, shown = show(bar.value, chart.unit), 0.0
        else:
            shown = min(bar.value, end)
            text = show(bar.value, chart.unit) + (" (cut short)" if shown < bar.value else "")
        axes.barh(place, shown, 0.62, color=light(bar.tint))
        if shown < (bar.value or 0.0) and shown:
            for shift in (0.90, 0.93):
                slash = ([end * (shift - 0.006), end * (shift + 0.006)], [place - 0.34, place + 0.34])
                axes.plot(*slash, color=light("ground"), linewidth=3)
        reach = shown
        if bar.low is not None and bar.high is not None and shown == bar.value:
            axes.plot([bar.low, min(bar.high, end)], [place, place], color=light("ink"), linewidth=1.4)
            reach = max(reach, min(bar.high, end))
        if bar.beside is not None and bar.beside <= end:
            axes.plot(bar.beside, place, "D", color=light("ink"), markersize=6.5, markeredgecolor=light("ground"))
            wide = _LETTER * 1.15 * len(text) * end / space
            if reach - 3 * gap <= bar.beside <= reach + wide + 3 * gap:  # it would overlap the text
                reach = max(reach, bar.beside + gap)
        # So that the text after the bar ends within the picture.
        full = max(full, (reach + gap) * space / max(space - _LETTER * 1.15 * len(text), 0.3 * space))
        axes.text(reach + gap, place, text, va="center", fontweight="bold", fontsize=11.5)
    axes.set_xlim(0, full)
    axes.set_ylim(len(chart.bars) - 0.5, -0.5)
    axes.set_yticks(range(len(chart.bars)), names)
    axes.tick_params(axis="y", labelcolor=light("ink"))
    axes.xaxis.set_visible(False)
    axes.spines["bottom"].set_visible(False)
    if not beside:
        return []
    diamond = Line2D([], [], color=light("ink"), marker="D", linestyle="", markersize=6.5, label=chart.beside)
    return [Patch(color=light("third"), label=chart.what), diamond]


def _lines(axes: Axes, chart: Lines, width: int) -> list[Any]:
    handles: list[Any] = []
    many = max((len(line.points) for line in chart.lines), default=0) > 12
    for order, line in enumerate(chart.lines):
        points = [(x, y) for x, y in line.points if math.isfinite(y) and (y > 0 or not chart.log_y)]
        look = {
            "color": light(line.tint),
            "marker": "D" if line.dots else None if many else _MARKERS[order % len(_MARKERS)],
            # Overlapping lines all stay visible: later ones are thinner, and dashed if predicted.
            "linestyle": "" if line.dots else (0, (4, 2)) if line.dashed else "-",
            "linewidth": 3.3 - 0.2 * min(order, 5),
        }
        axes.plot([x for x, _ in points], [y for _, y in points], label=line.label, zorder=3 + order / 10, **look)  # type: ignore[arg-type]
        handles.append(Line2D([], [], label=line.label, **look))  # type: ignore[arg-type]
    if chart.log_x:
        axes.set_xscale("log")
    if chart.log_y:
        axes.set_yscale("log")
        axes.yaxis.set_minor_locator(NullLocator())
        low, high = axes.get_ylim()
        axes.set_ylim(max(low, high * _LOG_RANGE), high)
        _log_ticks(axes.yaxis, *axes.get_ylim(), most=6)
    else:
        axes.set_ylim(bottom=0)
        axes.yaxis.set_major_locator(MaxNLocator(5))
    axes.grid(True)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: _tick(value, chart.y_unit)))
    if chart.ticks:
        names = [_short(name) for name in chart.ticks]
        axes.set_xticks(range(len(names)), names, rotation=0 if width == WIDE and len(names) < 7 else 35)
        if width != WIDE or len(names) >= 7:
            for text in axes.get_xticklabels():
                text.set_horizontalalignment("right")
                text.set_rotation_mode("anchor")
    else:
        places = sorted({x for line in chart.lines for x, _ in line.points})
        _x_axis(axes, chart.x_unit, places, chart.log_x, width)
    axes.set_xlabel(chart.x)
    if chart.mark is not None:
        axes.axvline(chart.mark[0], color=light("muted"), linewidth=1.2, linestyle=(0, (2, 2)), zorder=1)
        note = chart.mark[1]
        axes.annotate(
            note,
            (chart.mark[0], 1.01),
            xycoords=("data", "axes fraction"),
            va="bottom",
            ha="center",
            color=light("muted"),
            fontsize=10,
        )
    return handles if len(handles) > 1 else []


def _stacks(axes: Axes, chart: Stacks, width: int) -> list[Any]:
    left, sizes = chart.edges[:-1], [high - low for low, high in zip(chart.edges, chart.edges[1:], strict=False)]
    bottom = [0.0] * len(left)
    handles = []
    for layer in chart.layers:
        axes.bar(
            left, layer.counts, sizes, bottom=bottom, align="edge", color=light(layer.tint),
            edgecolor=light("ground"), linewidth=0.8,
        )  # fmt: skip
        bottom = [low + count for low, count in zip(bottom, layer.counts, strict=True)]
        handles.append(Patch(color=light(layer.tint), label=layer.label))
    if chart.log_x:
        axes.set_xscale("log")
    axes.set_xlim(chart.edges[0], chart.edges[-1])
    _x_axis(axes, chart.x_unit, chart.edges, chart.log_x, width)
    axes.yaxis.set_major_locator(MaxNLocator(5, integer=True))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: show(value, "count")))
    axes.grid(True)
    axes.set_xlabel(chart.x)
    axes.set_ylabel(chart.y)
    return handles if len(handles) > 1 else []


def _spans(axes: Axes, chart: Spans, width: int) -> list[Any]:
    for place, (_, spans) in enumerate(chart.rows):
        for span in spans:
            axes.barh(
                place, span.end - span.start, 0.62, left=span.start, color=light(span.tint),
                edgecolor=light("ground"), linewidth=0.8,
            )  # fmt: skip
    ends = [edge for _, spans in chart.rows for span in spans for edge in (span.start, span.end)]
    if chart.log_x:
        axes.set_xscale("log")
    axes.set_xlim(min(ends), max(ends))
    axes.set_ylim(len(chart.rows) - 0.5, -0.5)
    axes.set_yticks(range(len(chart.rows)), [_wrapped(name, width) for name, _ in chart.rows])
    axes.tick_params(axis="y", labelcolor=light("ink"))
    _x_axis(axes, chart.x_unit, sorted(ends), chart.log_x, width)
    axes.set_xlabel(chart.x)
    return [Patch(color=light(tint), label=label) for label, tint in chart.labels().items()]


def _x_axis(axes: Axes, unit: str, places: Sequence[float], log: bool, width: int) -> None:
    most = 7 if width == WIDE else 4
    axes.xaxis.set_minor_locator(NullLocator())
    if log:
        # Round numbers of bits, if bits are shown.
        base = parse_bandwidth("1bit") if unit == "bandwidth" else 1.0
        _log_ticks(axes.xaxis, min(places), max(places), most, base)
    elif len(places) <= most:
        axes.xaxis.set_major_locator(FixedLocator(list(places)))
    else:
        axes.xaxis.set_major_locator(MaxNLocator(most))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: _tick(value, unit)))


def _log_ticks(axis: Any, low: float, high: float, most: int, base: float = 1.0) -> None:
    # 1, 2, 5, 10, … as long as they fit, then 1, 10, …
    powers = range(math.floor(math.log10(low / base)), math.ceil(math.log10(high / base)) + 1)
    for steps in ((1, 2, 5), (1, 3), (1,)):
        ticks = [base * step * 10.0**power for power in powers for step in steps]
        ticks = [tick for tick in ticks if low <= tick <= high]
        if len(ticks) <= most:
            break
    # A range without two round numbers is labelled at its ends.
    axis.set_major_locator(FixedLocator(ticks[:: math.ceil(len(ticks) / most)] if len(ticks) > 1 else [low, high]))


def _tick(value: float, unit: str) -> str:
    return show(value, unit) if value >= 0 else ""


_SHORT = {"RandomResizedCrop": "Crop", "RandomHorizontalFlip": "Flip"}  # the names of the usual recipe are long


def _short(name: str) -> str:
    name = _SHORT.get(name, name)
    return name if len(name) <= 14 else f"{name[:13]}…"


def _wrapped(label: str, width: int) -> str:
    longest = 34 if width == WIDE else 20
    if len(label) <= longest:
        return label
    words, lines = label.split(), [""]
    for word in words:
        if lines[-1] and len(lines[-1]) + 1 + len(word) > longest:
            lines.append("")
        lines[-1] = f"{lines[-1]} {word}".strip()
    lines = [line if len(line) <= longest else f"{line[: longest - 1]}…" for line in lines]
    return "\n".join(lines if len(lines) <= 2 else [lines[0], f"{lines[1][: longest - 1]}…"])
