"""Facts about a profile: sizes of samples after each op, the smallest cuts, and the cost of saving a byte."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from sophon.codec.cut import RAW
from sophon.codec.route import Route
from sophon.errors import ConfigError
from sophon.plan.cost import Prediction
from sophon.plan.plan import Plan, make_plan
from sophon.plan.policies import DEFAULTS
from sophon.plan.policies.choice import exact_columns
from sophon.plan.resources import Resources
from sophon.profile.measures import measure_named
from sophon.profile.table import Profile
from sophon.report import figures, outlook
from sophon.report.chart import Bar, Bars, Chart, Layer, Line, Lines, Stacks, Table, show
from sophon.report.facts import Facts, Headline, Section
from sophon.report.palette import cut_tints
from sophon.report.words import Epoch, claim, cut_label, given, most_words, ratio, sentences, times
from sophon.units import format_bytes, parse_bandwidth

_BINS = 28
_EQUAL = 1.001
_USUAL = 0.02  # share of all samples: a rarer cut says nothing about sizes
_QUANTILES = np.linspace(0.0, 1.0, 101)


# Resources assumed for a profile without its own: the paper's link, and a small node at each end.
ASSUMED = Resources(link_bytes_per_s=parse_bandwidth("500mbit"), storage_cores=2, trainer_cores=8)


def profile_facts(profile: Profile, resources: Resources | None = None) -> Facts:
    """Return the facts about a profile.

    Args:
        profile: The profile.
        resources: Resources for plans and what-ifs; by default those measured by the loader that made the profile, or
            `ASSUMED`.
    """
    seen = _seen(profile)
    told = resources is not None
    resources = resources or seen or ASSUMED
    plan = make_plan(profile, resources)
    found = outlook.predictions(profile, resources)
    small = _smallest(profile, exact_columns(profile, DEFAULTS))
    raw = profile.payload_bytes[:, profile.column(RAW)].sum(dtype=np.float64)
    least = _chosen(profile.payload_bytes, small).sum()
    words = (
        f"A raw file weighs {format_bytes(raw / len(profile))} on average; at its smallest exact cut a sample weighs "
        f"{format_bytes(least / len(profile))}, {times(ratio(raw, least))} less.",
        *sentences(Epoch.of(plan.untouched), Epoch.of(plan.prediction), plan.policy, measured=False),
    )
    remarks = [f"Predicted for {given(resources)}."]
    if seen is not None and not told:
        remarks.append("These were measured by the loader that made the profile.")
    elif not told:
        remarks.append(
            "These resources are assumed, since the profile does not contain any: give --link, --storage-cores, "
            "--trainer-cores and --consumer for your own."
        )
    return Facts(
        title="What this data set costs",
        subject=f"Profile of {len(profile):,} samples at {len(profile.routes)} cuts",
        words=words,
        headlines=(
            Headline(times(ratio(raw, least)), "fewer bytes at the smallest exact cut"),
            Headline(times(ratio(plan.untouched.epoch_s, plan.prediction.epoch_s)), "shorter epoch predicted"),
            Headline(f"{len(profile):,}", "samples"),
        ),
        summary=cuts_table(profile),
        sections=(
            *sample_sections(profile),
            *plan_sections(plan, profile),
            *policy_sections(profile, resources, found),
        ),
        remarks=(*remarks, *profile_remarks(profile)),
        claim=claim(Epoch.of(plan.untouched), Epoch.of(plan.prediction), plan.policy, measured=False),
    )


def _seen(profile: Profile) -> Resources | None:
    said = profile.provenance.get("resources")
    try:
        return Resources.from_json(said) if isinstance(said, dict) else None
    except (ConfigError, TypeError):
        return None  # from a different version: what-ifs work without the resources


def cuts_table(profile: Profile) -> Table:
    """Return the average cost of each cut."""
    rows = []
    names = op_names(profile)
    for column, route in enumerate(profile.routes):
        legal = np.isfinite(profile.payload_bytes[:, column])
        means = [
            show(float(table[legal, column].mean(dtype=np.float64)) if legal.any() else None, measure_named(name).unit)
            for name, table in profile.measures.items()
        ]
        rows.append(
            (
                str(route),
                _cut_words(route, names),
                *means,
                show(float(legal.mean()), "share"),
            )
        )
    spent = [measure_named(name).title for name in profile.measures]
    header = ("cut", "what crosses the link", *spent, "share of samples")
    return Table(header, tuple(rows), names=2)


def sample_sections(profile: Profile) -> tuple[Section, ...]:
    """Return the sizes of single samples, where samples are smallest, and what saving bytes costs."""
    # Figures of similar height side by side.
    charts: list[Chart] = [_efficiency(profile)]
    if len(profile.raw_columns()) > 1:
        charts.insert(0, _bytes_after_ops(profile))
        charts.append(_smallest_bars(profile, profile.raw_columns(), "ops", "uncompressed, as in the paper"))
    charts.append(_smallest_bars(profile, exact_columns(profile, DEFAULTS), "cuts", "all exact codecs allowed"))
    intro = "Whether a sample shrinks on its way depends on the sample, which is why every sample has its own cut."
    return (Section("The samples", intro, tuple(charts)),)


def plan_sections(plan: Plan, profile: Profile) -> tuple[Section, ...]:
    """Return how a plan treats the samples."""
    return (
        Section(
            "How the plan treats the samples",
            f"The policy {plan.policy}: {plan.reason}.",
            (cut_bars(plan), busy_bars(plan), _cuts_by_size(plan, profile)),
        ),
    )


def policy_sections(profile: Profile, resources: Resources, found: dict[str, Prediction]) -> tuple[Section, ...]:
    """Return all policies side by side, with the given resources and with different ones."""
    thinned = outlook.thin(profile)
    return (
        Section("Comparison of policies", f"Predicted for {given(resources)}.", outlook.policy_bars(found)),
        Section(
            "What if",
            "Every point has its own plan: what more cores or a faster link would gain.",
            (*outlook.cores_charts(thinned, resources), *outlook.link_charts(thinned, resources)),
        ),
    )


def profile_remarks(profile: Profile) -> list[str]:
    """Return remarks on how much of the profile was measured, and how it was reduced for what-ifs."""
    remarks = []
    if profile.measured is not None:
        remarks.append(
            f"{show(float(profile.measured.mean()), 'share')} of the entries were measured, the rest predicted."
        )
        errors = [quality.payload_bytes_error for quality in profile.quality]
        worst = max((error for error in errors if error is not None), default=0.0)
        if worst > 0:
            remarks.append(f"Predicted bytes are off by at most {show(worst, 'share')} on average, by cut.")
        unknown = errors.count(None)
        if unknown:
            cuts = "one cut" if unknown == 1 else f"{unknown} cuts"
            remarks.append(f"Too few samples of {cuts} were measured to know the error of their predictions.")
    thinned = outlook.thin(profile)
    if thinned.scale > 1:
        remarks.append(f"What-ifs are planned with every {round(thinned.scale)}th sample.")
    return remarks


def cut_bars(plan: Plan) -> Bars:
    """Return the share of samples by cut."""
    tints = cut_tints(plan.routes)
    counts = plan.counts()
    most = next(iter(counts))
    return Bars(
        key="cuts",
        title="Share of samples by their cut",
        caption=f"{most_words(counts[most] / len(plan))} cross the link as {most}.",
        unit="share",
        what="of all samples",
        bars=tuple(Bar(cut_label(cut), count / len(plan), tints[cut]) for cut, count in counts.items()),
    )


def busy_bars(plan: Plan) -> Bars:
    """Return how long each part is busy, with raw files and with the plan."""
    before_and_after = (("none", plan.untouched), (plan.policy, plan.prediction))
    return figures.busy((name, part, made.busy_s[part]) for name, made in before_and_after for part in made.busy_s)


def _cuts_by_size(plan: Plan, profile: Profile) -> Stacks:
    raw = profile.payload_bytes[:, profile.column(RAW)].astype(np.float64)
    low, high = _size_range(raw)
    edges = np.geomspace(low, high, _BINS + 1)
    tints = cut_tints(plan.routes)
    clipped = np.clip(raw, low, high)
    layers, medians = [], {}
    for cut in plan.counts():
        chosen = plan.cut == plan.routes.index(cut)
        counts, _ = np.histogram(clipped[chosen], edges)
        layers.append(Layer(str(cut), tints[cut], tuple(map(float, counts))))
        medians[cut] = float(np.median(raw[chosen]))
    usual = [cut for cut, count in plan.counts().items() if count >= _USUAL * len(plan)] or list(medians)
    small, large = min(usual, key=lambda cut: medians[cut]), max(usual, key=lambda cut: medians[cut])
    caption = (
        f"Small files tend to cross as {small}, large ones as {large}."
        if small != large
        else f"Nearly every sample crosses as {small}, whatever its size."
    )
    return Stacks(
        key="cuts-by-size",
        title="Cuts by file size",
        caption=caption,
        x="size of the raw file",
        x_unit="bytes",
        y="samples",
        edges=tuple(map(float, edges)),
        layers=tuple(layers),
        log_x=True,
    )


def _size_range(raw: NDArray[np.float64]) -> tuple[float, float]:
    # Without the outermost half percent on both sides, which goes into the first and last bin.
    low, high = np.quantile(raw[raw > 0], [0.005, 0.995]) if (raw > 0).any() else (1.0, 2.0)
    return float(low), float(max(high, low * 1.01))


def op_names(profile: Profile) -> list[str]:
    """Return labels for a sample after 0, 1, … ops: the name of the last op, if the profile records it."""
    last = max(cut.k for cut in profile.cuts)
    said = profile.provenance.get("ops")
    known = [str(name)[:40] for name in said] if isinstance(said, list | tuple) else []
    return ["raw file", *(known[k] if k < len(known) else f"op {k + 1}" for k in range(last))]


def _cut_words(route: Route, names: Sequence[str]) -> str:
    cut = route.arrival
    if not route.is_direct:
        return f"{_cut_words(Route((cut,)), names)}, by way of a relay"
    if cut == RAW:
        return "the raw file"
    if cut.codec == "window":
        return "the part of the JPEG that the crop needs"
    after = f"the result of {names[cut.k]}"
    return after if cut.codec == "raw" else f"{after}, as {cut.codec}" if cut.k else f"the raw file, as {cut.codec}"


def _bytes_after_ops(profile: Profile) -> Lines:
    columns = [column for column in profile.raw_columns() if np.isfinite(profile.payload_bytes[:, column]).any()]
    names = op_names(profile)
    raw = profile.payload_bytes[:, profile.column(RAW)]
    order = np.argsort(raw, kind="stable")
    large, small = int(order[int(0.9 * (len(order) - 1))]), int(order[int(0.1 * (len(order) - 1))])
    table = np.where(np.isfinite(profile.payload_bytes), profile.payload_bytes, np.nan)
    means = [float(np.nanmean(table[:, column], dtype=np.float64)) for column in columns]
    rows = [("mean of all", "third", means)]
    rows += [
        (name, tint, [float(profile.payload_bytes[sample, column]) for column in columns])
        for name, tint, sample in (
            (f"a large file (no. {large})", "first", large),
            (f"a small file (no. {small})", "second", small),
        )
    ]
    steps = [profile.cuts[column].k for column in columns]
    least = _place(names, next(k for k, mean in zip(steps, means, strict=True) if mean <= _EQUAL * min(means)))
    return figures.bytes_after_ops(
        f"On average a sample is smallest {least}; single samples differ.",
        [names[k] for k in steps],
        [Line(name, tint, tuple(enumerate(values))) for name, tint, values in rows],
    )


def _place(names: Sequence[str], k: int) -> str:
    return "as a raw file" if k == 0 else f"after {names[k]}"


def _smallest(profile: Profile, columns: Sequence[int]) -> NDArray[np.intp]:
    # The first of those that are nearly equal (a few bytes of header): fewer ops near storage.
    table = profile.payload_bytes[:, list(columns)]
    found: NDArray[np.intp] = np.asarray(columns)[(table <= _EQUAL * table.min(axis=1, keepdims=True)).argmax(axis=1)]
    return found


def _chosen(table: NDArray[np.float32], columns: NDArray[np.intp]) -> NDArray[np.float64]:
    return np.take_along_axis(table, columns[:, None], axis=1)[:, 0].astype(np.float64)


def _smallest_bars(profile: Profile, columns: Sequence[int], key: str, which: str) -> Bars:
    ordered = sorted(columns, key=lambda column: profile.routes[column])
    counts = np.bincount(_smallest(profile, ordered), minlength=len(profile.routes))
    tints = cut_tints(profile.routes)
    names = op_names(profile)
    kept = [column for column in ordered if counts[column]]
    same = float(counts[profile.column(RAW)]) / len(profile)
    bars = []
    for column in kept:
        route, k = profile.routes[column], profile.cuts[column].k
        label = (names[k] if k == 0 else f"after {names[k]}") if key == "ops" else cut_label(route)
        bars.append(Bar(label, float(counts[column]) / len(profile), tints[route]))
    return Bars(
        key=f"smallest-{key}",
        title=f"Where samples are smallest: {which}",
        caption=f"{show(same, 'share')} of the samples are smallest as raw files: these are better sent unchanged."
        if same
        else "No sample is smallest as a raw file: all of them can be made smaller.",
        unit="share",
        what="of all samples",
        bars=tuple(bars),
    )


def _efficiency(profile: Profile) -> Lines:
    raw = profile.payload_bytes[:, profile.column(RAW)].astype(np.float64)
    lines, none = [], 1.0
    for (label, tint), columns in (
        (figures.OPS_ALONE, profile.raw_columns()),
        (figures.ALL_EXACT, exact_columns(profile, DEFAULTS)),
    ):
        cut = _smallest(profile, sorted(columns, key=lambda column: profile.routes[column]))
        saved, cost = raw - _chosen(profile.payload_bytes, cut), _chosen(profile.storage_s, cut)
        gain = np.divide(saved, cost, out=np.zeros_like(saved), where=(saved > 0) & (cost > 0))
        none = float((saved <= 0).mean())
        values = np.quantile(gain, _QUANTILES)
        lines.append(Line(label, tint, tuple(zip(map(float, _QUANTILES), map(float, values), strict=True))))
    worth = f"{show(none, 'share')} save nothing at any exact cut." if none else "every sample saves something."
    caption = f"Sorted from the smallest to the largest saving; {worth}"
    return figures.efficiency("efficiency", "Bytes saved per CPU second near storage", caption, lines)
