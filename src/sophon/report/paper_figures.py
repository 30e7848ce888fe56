"""The paper's own figures, from the `figures` of a result; each is left out if it was not measured."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sophon.codec.route import UNTOUCHED, Route
from sophon.errors import ConfigError
from sophon.plan.policies import POLICIES
from sophon.report import figures
from sophon.report.chart import Bar, Bars, Chart, Line, show
from sophon.report.facts import Section
from sophon.report.fields import number, numbers, part, parts, rows, text
from sophon.report.palette import cut_tints, policy_tint
from sophon.report.words import WORTHWHILE, cores, cut_label, most_words

LEFT_OUT = {
    "1a": "bytes after each op",
    "1b": "where samples are smallest",
    "1c": "bytes saved per CPU second",
    "1d": "light and heavy models",
    "3": "both data sets of the paper",
    "4": "other numbers of storage cores",
}
_OPS = ("raw", "Decode", "RandomResizedCrop", "RandomHorizontalFlip", "ToTensor", "Normalize")  # the paper's recipe
_SETS = {"openimages": "OpenImages", "imagenet": "ImageNet"}


def samples_section(result: Mapping[str, Any]) -> Section:
    """Return Figures 1a, 1b and 1c: sizes of samples, where they are smallest, and what that costs."""
    found = part(result, "figures")
    # Figures of similar height side by side.
    charts = [*_smallest(part(found, "1b")), *_bytes_after_ops(part(found, "1a")), *_efficiency(part(found, "1c"))]
    intro = "Whether a sample shrinks on its way depends on the sample, which is why every sample has its own cut."
    return Section("The samples", intro, tuple(charts))


def datasets_section(result: Mapping[str, Any]) -> Section:
    """Return Figure 3: gains on both data sets, next to the paper's."""
    figure = part(part(result, "figures"), "3")
    paper = part(figure, "paper") or part(result, "paper")
    charts: list[Chart] = []
    for name, measured in parts(figure, "datasets").items():
        gains = parts(measured, "gains")
        for kind, title in (("traffic", "less traffic"), ("time", "shorter epochs")):
            published = part(part(paper, name), kind)
            bars = tuple(
                Bar(policy, number(gains[policy], kind), policy_tint(policy), number(published, policy))
                for policy in ordered(gains)
            )
            if not bars:
                continue
            best = max(bars, key=lambda bar: bar.value or 0.0)
            charts.append(
                Bars(
                    key=f"gain-{_slug(name)}-{kind}",
                    title=f"{_SETS.get(name, name)}: how many times {title}",
                    caption=f"Longer is better, 1× is no gain; {best.label} gains {show(best.value, 'times')}.",
                    unit="times",
                    bars=bars,
                    beside="the paper",
                )
            )
    return Section("Both data sets of the paper", "Gains over sending raw files (the paper's Figure 3).", tuple(charts))


def cores_section(result: Mapping[str, Any]) -> Section:
    """Return Figure 4: epoch seconds and traffic over the number of storage cores."""
    figure = part(part(result, "figures"), "4")
    names = ordered(part(figure, "policies"))
    measured = {name: rows(part(figure, "policies"), name) for name in names}
    charts: list[Chart] = []
    for key, value, unit, title in (
        ("cores-seconds", "epoch_s", "seconds", "Storage cores and epoch seconds"),
        ("cores-traffic", "link_bytes", "bytes", "Storage cores and bytes on the link"),
    ):
        lines = tuple(
            Line(name, policy_tint(name), _points(points, "storage_cores", value)) for name, points in measured.items()
        )
        lines = tuple(line for line in lines if line.points)
        if lines:
            charts.append(figures.over_cores(key, title, _cores_caption(lines, value), unit, lines))
    predicted = tuple(
        line
        for name, points in measured.items()
        if name in ("resize", "optimal")
        for line in (
            Line(f"{name}, measured", policy_tint(name), _points(points, "storage_cores", "epoch_s")),
            Line(f"{name}, predicted", policy_tint(name), _points(points, "storage_cores", "predicted_s"), dashed=True),
        )
        if line.points
    )
    if any(line.dashed for line in predicted):
        title = "Storage cores: predicted against measured"
        caption = "A dashed line on top of its solid line means a good prediction."
        charts.append(figures.over_cores("cores-predicted", title, caption, "seconds", predicted))
    intro = f"Measured on {text(figure, 'data', 'the same data')} (the paper's Figure 4)."
    return Section("Scarce storage CPU", intro, tuple(charts))


def models_section(result: Mapping[str, Any]) -> Section:
    """Return Figure 1d: how busy light and heavy models are."""
    figure = part(part(result, "figures"), "1d")
    bars = []
    for model in rows(figure, "models"):
        like = text(model, "like")
        for name, row in parts(model, "policies").items():
            beside = number(part(figure, "paper"), like) if name == "none" else None
            bars.append(
                Bar(f"{text(model, 'name', like)}: {name}", number(row, "utilisation"), policy_tint(name), beside)
            )
    if not bars:
        return Section("", "", ())
    chart = Bars(
        key="models",
        title="Share of the epoch in which the model is busy",
        caption="Longer is better: a heavy model is busy anyway, a light one only when less has to cross the link.",
        unit="share",
        bars=tuple(bars),
        beside="the paper",
    )
    return Section(
        "Light and heavy models", "The lighter the model, the more it waits for data (the paper's Figure 1d).", (chart,)
    )


def cuts_chart(name: str, policies: Mapping[str, Mapping[str, Any]]) -> Chart | None:
    """Return how many samples had each cut under a policy."""
    counts = _by_cut(part(policies.get(name, {}), "cuts"))
    whole = sum(counts.values())
    if not whole:
        return None
    tints = cut_tints(list(counts))
    ordered = sorted(counts, key=lambda cut: (-counts[cut], cut))
    return Bars(
        key=f"cuts-{_slug(name)}",
        title=f"Share of samples by their cut: {name}",
        caption=f"{most_words(counts[ordered[0]] / whole)} crossed the link as {ordered[0]}.",
        unit="share",
        bars=tuple(Bar(cut_label(cut), counts[cut] / whole, tints[cut]) for cut in ordered),
    )


def _bytes_after_ops(figure: Mapping[str, Any]) -> list[Chart]:
    names = figure.get("ops")
    samples = rows(figure, "samples")
    if not isinstance(names, list) or not samples:
        return []
    ops = tuple(str(name)[:40] for name in names)
    lines = []
    for place, sample in enumerate(samples):
        values = numbers(sample, "bytes")[: len(ops)]
        tint = ("first", "second", "third")[place % 3]
        lines.append(
            Line(text(sample, "name", f"sample {place}"), tint, tuple((float(k), v) for k, v in enumerate(values)))
        )
        letter = text(sample, "name")[:1]
        published = part(part(figure, "paper"), letter)
        points = tuple((float(ops.index(op)), value) for op in ops if (value := number(published, op)) is not None)
        if points:
            lines.append(Line(f"the paper's {letter}", tint, points, dots=True))
    return [figures.bytes_after_ops(_smallest_words(lines, ops), ops, lines)]


def _smallest_words(lines: list[Line], ops: tuple[str, ...]) -> str:
    parts = []
    for line in lines:
        if line.points and not line.dots:
            place = int(min(line.points, key=lambda point: point[1])[0])
            parts.append(
                f"{line.label.split(':')[0]} is smallest {f'after {ops[place]}' if place else 'as a raw file'}"
            )
    return f"{'; '.join(parts)}."


def _smallest(figure: Mapping[str, Any]) -> list[Chart]:
    charts: list[Chart] = []
    for name, measured in parts(figure, "datasets").items():
        title = _SETS.get(name, name)
        shares, published = part(measured, "shares"), part(part(figure, "paper"), name)
        bars = tuple(
            Bar(
                "raw file" if op == "raw" else f"after {op}"[:40],
                number(shares, op),
                _op_tint(op),
                number(published, op),
            )
            for op in sorted(shares, key=lambda op: _OPS.index(op) if op in _OPS else len(_OPS))
        )
        if bars:
            raw = number(shares, "raw") or 0.0
            charts.append(
                Bars(
                    key=f"smallest-{_slug(name)}",
                    title=f"{title}: where samples are smallest, uncompressed",
                    caption=f"{show(raw, 'share')} are smallest as raw files: these are better sent unchanged.",
                    unit="share",
                    bars=bars,
                    beside="the paper",
                )
            )
        counts = _by_cut(part(measured, "with_codecs"))
        if counts:
            tints = cut_tints(list(counts))
            raw = counts.get(UNTOUCHED, 0.0)
            charts.append(
                Bars(
                    key=f"smallest-cuts-{_slug(name)}",
                    title=f"{title}: where samples are smallest, all exact codecs",
                    caption=f"With exact codecs {show(raw, 'share') if raw else 'none'} are smallest as raw files.",
                    unit="share",
                    bars=tuple(Bar(cut_label(cut), counts[cut], tints[cut]) for cut in sorted(counts)),
                )
            )
    return charts


def _efficiency(figure: Mapping[str, Any]) -> list[Chart]:
    charts: list[Chart] = []
    for name, measured in parts(figure, "datasets").items():
        lines = []
        for key, (label, tint) in (("bytes_per_cpu_s", figures.OPS_ALONE), ("with_codecs", figures.ALL_EXACT)):
            values = numbers(measured, key)
            if len(values) > 1:
                last = len(values) - 1
                lines.append(Line(label, tint, tuple((place / last, value) for place, value in enumerate(values))))
        if lines:
            zero = number(measured, "zero_share")
            said = number(part(part(figure, "paper"), name), "zero_share")
            theirs = "" if said is None else f" (the paper: {show(said, 'share')})"
            title = f"{_SETS.get(name, name)}: bytes saved per CPU second near storage"
            caption = f"Smallest saving first; with ops only {show(zero, 'share')} save nothing{theirs}."
            charts.append(figures.efficiency(f"efficiency-{_slug(name)}", title, caption, lines))
    return charts


def _points(found: list[dict[str, Any]], x: str, y: str) -> tuple[tuple[float, float], ...]:
    pairs = [(number(row, x), number(row, y)) for row in found]
    return tuple(sorted((a, b) for a, b in pairs if a is not None and b is not None))


def _cores_caption(lines: tuple[Line, ...], value: str) -> str:
    if value != "epoch_s":
        return "With few cores a good plan offloads less and sends more, but never more than raw files."
    ends = {line.label: dict(line.points) for line in lines}
    if "none" in ends and "resize" in ends:
        slow = [x for x, y in ends["resize"].items() if x in ends["none"] and y > WORTHWHILE * ends["none"][x]]
        if slow:
            return (
                f"With {cores(max(slow), 'storage')} or fewer, cropping everything near storage is slower than doing "
                "nothing."
            )
    return "Shorter is better: fewer seconds at the same number of cores."


def _by_cut(counts: Mapping[str, Any]) -> dict[Route, float]:
    found: dict[Route, float] = {}
    for name in counts:
        try:
            cut = Route.parse(name)
        except ConfigError:
            continue  # a cut that this version cannot name cannot be shown either
        found[cut] = number(counts, name) or 0.0
    return {cut: count for cut, count in found.items() if count > 0}


def _op_tint(op: str) -> str:
    return f"cut-raw-{_OPS.index(op)}" if op in _OPS else "third"


def ordered(found: Mapping[str, Any]) -> list[str]:
    """Return the policies of a result in our order, followed by unknown ones."""
    return [*(name for name in POLICIES if name in found), *(name for name in found if name not in POLICIES)]


def _slug(name: str) -> str:
    return "".join(letter if letter.isascii() and letter.isalnum() else "-" for letter in name.lower())[:40]
