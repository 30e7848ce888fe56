"""What-if predictions from a profile: every policy with different links and numbers of storage cores."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from sophon.plan.cost import Prediction, predict
from sophon.plan.frontier import FIGURE_4_CORES, frontier
from sophon.plan.plan import make_plan
from sophon.plan.policies import DEFAULTS, Options, applicable, policy
from sophon.plan.resources import Resources
from sophon.profile.table import Profile
from sophon.report import figures
from sophon.report.chart import Bar, Chart, Line, Lines, Span, Spans
from sophon.report.palette import bottleneck_tint, policy_tint
from sophon.report.words import WORTHWHILE, cores
from sophon.units import format_bandwidth

_MOST_SAMPLES = 50_000  # most samples to plan in each of about two hundred what-ifs: half a minute in total
_BALANCED = 1.02  # parts within two percent of each other count as equally limiting
_SPEEDS = tuple(2.0 ** (step / 3) for step in range(-10, 11))  # from a tenth of the link to ten times as fast
_CORES_STEPS = (0, 0.1, 0.2, 0.4, 0.6, 0.8, 1, 1.5, 2)  # multiples of the available storage cores


@dataclass(frozen=True)
class Thinned:
    """A reduced profile for quick planning.

    Args:
        profile: Every n-th sample.
        scale: How many samples each row represents.
    """

    profile: Profile
    scale: float


def thin(profile: Profile) -> Thinned:
    """Return every n-th sample if there are too many to plan hundreds of times."""
    step = -(-len(profile) // _MOST_SAMPLES)
    if step == 1:
        return Thinned(profile, 1.0)
    part = profile.rows(slice(None, None, step))
    return Thinned(part, len(profile) / len(part))


def predictions(profile: Profile, resources: Resources, options: Options = DEFAULTS) -> dict[str, Prediction]:
    """Return the predicted cost of an epoch with each policy."""
    return {name: make_plan(profile, resources, name, options).prediction for name in applicable(profile, options)}


def policy_bars(found: dict[str, Prediction]) -> tuple[Chart, Chart]:
    """Return epoch seconds and traffic of each policy, as predicted."""
    best = min(found, key=lambda name: found[name].rank)
    least = min(found, key=lambda name: found[name].link_bytes)
    bars = [(name, policy_tint(name), made) for name, made in found.items()]
    return (
        figures.by_policy(
            "epoch-seconds",
            [Bar(name, made.epoch_s, tint) for name, tint, made in bars],
            f"Shorter is better; {best} is predicted to finish first.",
            what="predicted",
        ),
        figures.by_policy(
            "traffic",
            [Bar(name, made.link_bytes, tint) for name, tint, made in bars],
            f"Shorter is better; {least} sends the least.",
            what="predicted",
        ),
    )


def cores_charts(thinned: Thinned, resources: Resources, options: Options = DEFAULTS) -> tuple[Chart, Chart]:
    """Return epoch seconds and traffic over the number of storage cores."""
    counts = _counts(resources.storage_cores)
    names = applicable(thinned.profile, options)
    points = {name: frontier(thinned.profile, resources, counts, name, options) for name in names}

    def lines(value: str) -> tuple[Line, ...]:
        return tuple(
            Line(
                name,
                policy_tint(name),
                tuple((point.amount, getattr(point.prediction, value) * thinned.scale) for point in row),
            )
            for name, row in points.items()
        )

    mark = (resources.storage_cores, "now") if resources.storage_cores > 0 else None
    title = "What if storage had more or fewer cores"
    scarce = "If cores are scarce, a good plan first offloads the samples that save the most bytes per CPU second."
    seconds, traffic = lines("epoch_s"), lines("link_bytes")
    return (
        figures.over_cores("cores-seconds", f"{title}: seconds", _cores_caption(seconds), "seconds", seconds, mark),
        figures.over_cores("cores-traffic", f"{title}: bytes", scarce, "bytes", traffic, mark),
    )


def link_charts(thinned: Thinned, resources: Resources, options: Options = DEFAULTS) -> tuple[Chart, Chart]:
    """Return epoch seconds over the link's speed, and the bottleneck at each speed."""
    profile = thinned.profile
    lines, rows = [], []
    for name in applicable(profile, options):
        found = []
        for factor in _SPEEDS:
            given = resources.having(link_bytes_per_s=resources.link_bytes_per_s * factor)
            found.append((given.link_bytes_per_s, predict(profile, policy(name)(profile, given, options).cut, given)))
        lines.append(
            Line(name, policy_tint(name), tuple((speed, made.epoch_s * thinned.scale) for speed, made in found))
        )
        rows.append((name, _spans([(speed, _binding(made)) for speed, made in found])))
    return (
        Lines(
            key="link-seconds",
            title="What if the link were faster or slower",
            caption="Where the lines meet, the link is no longer the bottleneck and offloading gains nothing more.",
            x="link speed",
            x_unit="bandwidth",
            y_unit="seconds",
            lines=tuple(lines),
            log_x=True,
            log_y=True,
            mark=(resources.link_bytes_per_s, format_bandwidth(resources.link_bytes_per_s)),
        ),
        Spans(
            key="link-bottleneck",
            title="What training waits for, by link speed",
            caption="The earlier the colour of the link ends, the slower a link the policy can cope with.",
            x="link speed",
            x_unit="bandwidth",
            rows=tuple(rows),
            log_x=True,
        ),
    )


def _counts(now: float) -> tuple[float, ...]:
    if now == 0 or 1 < now <= FIGURE_4_CORES[-1]:
        return tuple(sorted({*map(float, FIGURE_4_CORES), now}))
    return tuple(sorted({step * now for step in _CORES_STEPS}))


def _cores_caption(lines: Sequence[Line]) -> str:
    best = next((line for line in lines if line.label == "optimal"), lines[-1])
    most, fastest_s = best.points[-1]
    enough = next((x for x, y in best.points if y <= WORTHWHILE * fastest_s), most)
    if enough == best.points[0][0]:
        return f"More storage cores gain nothing here: {best.label} is as fast with {enough:g}."
    if enough == most:
        return f"Every further core up to {most:g} makes {best.label} faster."
    return f"Beyond {cores(enough, 'storage')} there is little more to gain for {best.label}."


def _binding(made: Prediction) -> str:
    # A good plan balances several parts; naming the one that is slightly longer would mean nothing.
    binding = sum(seconds >= made.epoch_s / _BALANCED for seconds in made.busy_s.values())
    return made.bottleneck if binding < 2 else "several in balance"


def _spans(points: Sequence[tuple[float, str]]) -> tuple[Span, ...]:
    spans: list[Span] = []
    for place, (speed, what) in enumerate(points):
        # The border between two speeds lies halfway, on the logarithmic axis.
        start = spans[-1].end if spans else speed
        end = speed if place + 1 == len(points) else (speed * points[place + 1][0]) ** 0.5
        if spans and spans[-1].label == what:
            spans[-1] = replace(spans[-1], end=end)
        elif end > start:
            spans.append(Span(start, end, what, bottleneck_tint(what)))
    return tuple(spans)
