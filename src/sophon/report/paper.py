"""Facts about a run of ``sophon bench paper``: policies measured on one rig, next to the paper's values.

Every part of the result except `policies` is optional; what is missing is left out, with a remark.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sophon.errors import ArtifactError
from sophon.report import figures, paper_figures
from sophon.report.chart import Bar, Bars, Chart, Span, Spans, Table, show
from sophon.report.facts import Facts, Headline, Section
from sophon.report.fields import number, numbers, part, parts, rows, text
from sophon.report.palette import bottleneck_tint, policy_tint
from sophon.report.words import PART, Epoch, claim, ratio, sentences, times
from sophon.units import format_bandwidth, format_bytes, format_rate

_Rows = dict[str, dict[str, Any]]


def paper_facts(result: Mapping[str, Any]) -> Facts:
    """Return the facts about a result.

    Args:
        result: What ``sophon bench paper --json`` wrote.

    Raises:
        ArtifactError: The file is not such a result.
    """
    policies = _policies(result)
    before, best = _reference(policies)
    baseline, winner = policies[before], policies[best]
    words = sentences(_epoch(baseline), _epoch(winner), best, measured=True) if best != before else ()
    published = part(part(result, "paper"), text(result, "like"))
    wanted = [
        _policy_section(policies, before, published),
        _parts_section(policies, before, best),
        _cuts_section(policies, best),
        paper_figures.samples_section(result),
        paper_figures.datasets_section(result),
        paper_figures.cores_section(result),
        paper_figures.models_section(result),
    ]
    return Facts(
        title="Measured: comparison of policies",
        subject=text(result, "data", "a data set"),
        words=(*words, _bits(result, policies)),
        headlines=(
            Headline(times(ratio(_of(baseline, "epoch_s"), _of(winner, "epoch_s"))), f"shorter epoch with {best}"),
            Headline(times(ratio(_traffic(baseline), _traffic(winner))), f"less traffic with {best}"),
            Headline(
                show(_of(winner, "epoch_s"), "seconds"),
                f"per epoch, {show(_of(baseline, 'epoch_s'), 'seconds')} without",
            ),
        ),
        summary=_summary(policies, before, published),
        sections=tuple(section for section in wanted if section is not None and section.charts),
        remarks=_remarks(result, policies),
        claim=_claim(result, policies, before, best),
    )


def _claim(result: Mapping[str, Any], policies: _Rows, before: str, best: str) -> str:
    if not _is_identical(result, policies):
        return "The policies fed the model different bits: do not trust this run"
    if best == before:
        return ""
    return claim(_epoch(policies[before]), _epoch(policies[best]), best, measured=True)


def _is_identical(result: Mapping[str, Any], policies: _Rows) -> bool:
    return result.get("identical") is not False and len({text(row, "sha256") for row in policies.values()}) <= 1


def _policies(result: Mapping[str, Any]) -> _Rows:
    found = parts(result, "policies")
    if not found or any(number(row, "epoch_s") is None for row in found.values()):
        raise ArtifactError("the result has no measured policies; run `sophon bench paper --json FILE` to get one.")
    return {name: found[name] for name in paper_figures.ordered(found)}


def _reference(policies: _Rows) -> tuple[str, str]:
    # Compared with `none` if it was run; the best is `optimal` if it was run, since that is what users get.
    before = "none" if "none" in policies else next(iter(policies))
    fastest = min(policies, key=lambda name: _of(policies[name], "epoch_s"))
    return before, "optimal" if "optimal" in policies else fastest


def _of(row: Mapping[str, Any], key: str) -> float:
    return number(row, key) or 0.0


def _traffic(row: Mapping[str, Any]) -> float:
    # Payloads as the loader counts them: the interface's own counters include headers and acknowledgements.
    return _of(row, "link_bytes") or _of(row, "interface_bytes")


def _epoch(row: Mapping[str, Any]) -> Epoch:
    predicted = part(row, "predicted")
    return Epoch(
        _of(row, "epoch_s"),
        _traffic(row),
        text(row, "bottleneck", "link"),
        _of(predicted, "trainer_s"),
        _of(predicted, "consumer_s"),
    )


def _bits(result: Mapping[str, Any], policies: _Rows) -> str:
    prints = {text(row, "sha256") for row in policies.values()}
    if prints == {""} and result.get("identical") is None:
        return "Whether all policies fed the model the same bits was not recorded."
    if not _is_identical(result, policies):
        return "The policies did NOT feed the model the same bits: do not trust this run."
    return f"All {len(policies)} policies fed the model identical bits."


def _summary(policies: _Rows, before: str, published: Mapping[str, Any]) -> Table:
    paper = part(published, "traffic")
    rows_ = []
    for name, row in policies.items():
        gains = [ratio(of(policies[before]), of(row)) for of in (lambda r: _of(r, "epoch_s"), _traffic)]
        rows_.append(
            (
                name,
                show(number(row, "epoch_s"), "seconds"),
                show(gains[0], "times"),
                show(_traffic(row), "bytes"),
                show(gains[1], "times"),
                show(number(paper, name), "times"),
                show(number(row, "predicted_s"), "seconds"),
                PART.get(text(row, "bottleneck"), text(row, "bottleneck", "–")),
                show(number(row, "storage_cpu_s"), "seconds"),
                show(number(row, "trainer_cpu_s"), "seconds"),
                show(number(row, "idle_share"), "share"),
            )
        )
    gained = ("policy", "epoch", "shorter by", "bytes", "fewer by", "in the paper", "predicted")
    return Table((*gained, "waits for", "storage CPU", "trainer CPU", "model idle"), tuple(rows_))


def _policy_section(policies: _Rows, before: str, published: Mapping[str, Any]) -> Section:
    fastest = min(policies, key=lambda name: _of(policies[name], "epoch_s"))
    least = min(policies, key=lambda name: _traffic(policies[name]))
    seconds, traffic = [], []
    for name, row in policies.items():
        spread = numbers(row, "epoch_s_all")
        low, high = (min(spread), max(spread)) if len(spread) > 1 else (None, None)
        tint = policy_tint(name)
        paper = _paper_value(_of(policies[before], "epoch_s"), part(published, "time"), name)
        seconds.append(Bar(name, number(row, "epoch_s"), tint, paper, low, high))
        paper = _paper_value(_traffic(policies[before]), part(published, "traffic"), name)
        traffic.append(Bar(name, _traffic(row), tint, paper))
    spans = " Thin lines span all repeats." if any(bar.low is not None for bar in seconds) else ""
    beside = "where the paper's gain would be"
    charts: list[Chart] = [
        figures.by_policy(
            "epoch-seconds", seconds, f"Shorter is better; {fastest} finished first.{spans}", beside=beside
        ),
        figures.by_policy("traffic", traffic, f"Shorter is better; {least} sent the least.", beside=beside),
    ]
    charts += _predicted_chart(policies)
    intro = "Median of all repeats, measured in turns on the same rig."
    return Section("Comparison of policies", intro, tuple(charts))


def _paper_value(ours: float, gains: Mapping[str, Any], name: str) -> float | None:
    gain = number(gains, name)
    return None if not gain or name == "none" else ours / gain


def _predicted_chart(policies: _Rows) -> list[Chart]:
    pairs = {
        name: (_of(row, "epoch_s"), predicted)
        for name, row in policies.items()
        if (predicted := number(row, "predicted_s")) is not None
    }
    if not pairs:
        return []
    worst = max(abs(measured / predicted - 1) if predicted else 0.0 for measured, predicted in pairs.values())
    return [
        Bars(
            key="predicted",
            title="Predicted against measured",
            caption="A diamond at the end of its bar means a good prediction; the worst is off by "
            f"{show(worst, 'share')}.",
            unit="seconds",
            bars=tuple(Bar(name, measured, policy_tint(name), said) for name, (measured, said) in pairs.items()),
            beside="predicted",
        )
    ]


def _parts_section(policies: _Rows, before: str, best: str) -> Section:
    busy = figures.busy(
        (name, what, number(part(policies[name], "predicted"), f"{what}_s"))
        for name in dict.fromkeys((before, best))
        for what in PART
    )
    charts: list[Chart] = [busy]  # left out if it has no bars
    idle = {name: value for name, row in policies.items() if (value := number(row, "idle_share")) is not None}
    if idle:
        busiest = min(idle, key=lambda name: idle[name])
        charts.append(
            Bars(
                key="idle",
                title="Share of the epoch in which the model waits for data",
                caption=f"Shorter is better: the model waits least with {busiest}.",
                unit="share",
                bars=tuple(Bar(name, value, policy_tint(name)) for name, value in idle.items()),
            )
        )
    charts += _timeline(policies)
    return Section(
        "What training waits for", "Four parts work at the same time; the slowest sets the pace.", tuple(charts)
    )


def _timeline(policies: _Rows) -> list[Chart]:
    lanes = []
    for name, row in policies.items():
        spans = []
        for span in rows(row, "timeline"):
            what = text(span, "bottleneck")
            spans.append(Span(_of(span, "start_s"), _of(span, "end_s"), what, bottleneck_tint(what)))
        if spans:
            lanes.append((name, tuple(spans)))
    if not lanes:
        return []
    return [
        Spans(
            key="timeline",
            title="What training waits for, over time",
            caption="Where the colour changes, the bottleneck changes.",
            x="time",
            x_unit="seconds",
            rows=tuple(lanes),
        )
    ]


def _cuts_section(policies: _Rows, best: str) -> Section | None:
    charts = [chart for name in dict.fromkeys(("sophon", best)) if (chart := paper_figures.cuts_chart(name, policies))]
    intro = "The cut of a sample is the number of ops that run near storage, and the codec in which the result is sent."
    return Section("How the plans treat the samples", intro, tuple(charts))


def _remarks(result: Mapping[str, Any], policies: _Rows) -> tuple[str, ...]:
    rig = []
    link = number(result, "link_bytes_per_s")
    if link is not None:
        how = {"tbf": "shaped by the kernel between two network namespaces", "server": "limited by the server itself"}
        shaped = how.get(text(result, "shaped_by"), "")
        rig.append(f"Link: {format_bandwidth(link)}{', ' + shaped if shaped else ''}.")
    cores = [number(result, "storage_cores"), number(result, "trainer_cores")]
    for name, count in zip(("Storage", "Trainer"), cores, strict=True):
        if count is not None:
            rig.append(f"{name} cores: {count:g}.")
    consumer = part(result, "consumer")
    if text(consumer, "words"):
        rig.append(f"Consumer: {text(consumer, 'words')}.")
    elif (speed := number(consumer, "samples_per_s")) is not None:
        rig.append(f"Consumer: {format_rate(speed)}.")
    if (size := number(result, "mean_file_bytes")) is not None:
        rig.append(f"Mean file: {format_bytes(size)}.")
    if result.get("made_up") is True:
        rig.append("The photos are synthetic; their sizes and compressibility are like those of real ones.")
    left_out = [words for key, words in paper_figures.LEFT_OUT.items() if key not in part(result, "figures")]
    if not any(row.get("timeline") for row in policies.values()):
        left_out.append("what training waits for over time")
    missing = [f"Not in this result, so not shown: {'; '.join(left_out)}."] if left_out else []
    return (*rig, *missing)
