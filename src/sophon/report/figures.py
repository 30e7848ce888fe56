"""Figures shared by the reports on results, profiles and plans, with the same title, axes and units in all of them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from sophon.report.chart import Bar, Bars, Line, Lines
from sophon.report.palette import bottleneck_tint

OPS_ALONE = ("ops only, as in the paper", "third")
ALL_EXACT = ("all exact codecs", "first")
"""Label and tint of each of the two lines in `efficiency`."""

_BY_POLICY = {
    "epoch-seconds": ("Epoch seconds, by policy", "seconds"),
    "traffic": ("Bytes on the link per epoch, by policy", "bytes"),
}


def by_policy(key: str, bars: Sequence[Bar], caption: str, *, what: str = "measured", beside: str = "") -> Bars:
    """Return one bar per policy: ``epoch-seconds`` or ``traffic``."""
    title, unit = _BY_POLICY[key]
    return Bars(key=key, title=title, caption=caption, unit=unit, what=what, bars=tuple(bars), beside=beside)


def busy(seconds: Iterable[tuple[str, str, float | None]]) -> Bars:
    """Return how long each part is busy in an epoch.

    Args:
        seconds: Predicted seconds of each part under each policy; an idle part gets no bar.
    """
    return Bars(
        key="busy",
        title="How long each part is busy in an epoch",
        caption="The longest bar of a policy decides how long its epoch takes; the others wait for it.",
        unit="seconds",
        what="predicted",
        bars=tuple(Bar(f"{policy}: {part}", value, bottleneck_tint(part)) for policy, part, value in seconds if value),
    )


def over_cores(
    key: str, title: str, caption: str, unit: str, lines: Sequence[Line], mark: tuple[float, str] | None = None
) -> Lines:
    """Return a quantity over the number of storage cores."""
    return Lines(
        key=key,
        title=title,
        caption=caption,
        x="storage cores",
        x_unit="number",
        y_unit=unit,
        lines=tuple(lines),
        log_y=_wide_spread(lines),
        mark=mark,
    )


def bytes_after_ops(caption: str, ops: Sequence[str], lines: Sequence[Line]) -> Lines:
    """Return the paper's Figure 1a: sizes of samples after 0, 1, … ops."""
    return Lines(
        key="bytes-after-ops",
        title="Sample size after each op",
        caption=caption,
        x="after the op",
        x_unit="number",
        y_unit="bytes",
        ticks=tuple(ops),
        lines=tuple(lines),
        log_y=True,
    )


def efficiency(key: str, title: str, caption: str, lines: Sequence[Line]) -> Lines:
    """Return the paper's Figure 1c: bytes saved per CPU second, sorted from the smallest to the largest saving."""
    return Lines(
        key=key,
        title=title,
        caption=caption,
        x="share of samples",
        x_unit="share",
        y_unit="bytes_per_s",
        lines=tuple(lines),
        log_y=True,
    )


def _wide_spread(lines: Sequence[Line]) -> bool:
    # For lines that differ so much that the small ones would vanish on a linear axis.
    values = [y for line in lines for _, y in line.points if math.isfinite(y) and y > 0]
    return bool(values) and max(values) > 6 * min(values)
