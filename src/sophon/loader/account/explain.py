"""Explains how an epoch's time was spent and what would help."""

from __future__ import annotations

from sophon.codec.route import UNTOUCHED
from sophon.loader.account.advice import Setup, Spent, advice, count, part_named
from sophon.loader.account.stats import Stats
from sophon.plan.plan import Plan
from sophon.profile.verdict import Verdict
from sophon.store.bucket.account import Prices
from sophon.units import format_bytes, format_rate, format_seconds


def explain_epoch(spent: Spent, setup: Setup, verdict: Verdict | None, plan: Plan | None) -> str:
    """Return a few sentences: where the time went, and what would help.

    Args:
        spent: The cost of the epoch.
        setup: How the loader was set up.
        verdict: Rate of each part without offloading, if measured.
        plan: The planner's plan for the epoch, if there was one.
    """
    lines = [*_where(spent, setup), f"What would help: {advice(spent, setup, plan)}"]
    if plan is not None:
        predicted = f"{format_seconds(plan.prediction.epoch_s)} an epoch, set by the {part_named(plan)}"
        lines.append(
            f"Plan: policy {plan.policy}, which predicts {predicted}, once the first batch is there; "
            "print(loader.plan.explain()) shows what runs where."
        )
    if verdict is not None:
        # If nothing is offloaded, the epoch itself shows what sets the pace, and the advice above covers it.
        offloads = plan is not None and any(route != UNTOUCHED for route in plan.counts())
        pace = f"; the {verdict.slowest} would set the pace" if offloads else ""
        each = "Without offloading, each" if setup.is_remote else "Each"
        lines.append(f"{each} part on its own would reach, in samples: {verdict.rates()}{pace}.")
    return "\n".join(lines)


def _where(spent: Spent, setup: Setup) -> list[str]:
    stats, wall_s = spent.stats, max(spent.wall_s, 1e-9)
    until, came = ("", "in") if spent.is_whole else (", stopped before its end", "came,")
    lines = [
        f"Epoch {spent.epoch}{until}: {stats.samples:,} samples {came} {_number(spent.batches, 'batch', 'batches')}, "
        f"{format_seconds(spent.wall_s)}, {format_rate(stats.samples / wall_s)}.",
        f"The training loop worked for {_part(stats.consumer_s, wall_s)} and waited for batches for "
        f"{_part(stats.waited_s, wall_s)}.",
    ]
    who = count(setup.workers, setup.kind) if setup.workers else "the training loop's own thread"
    room_s = wall_s * max(setup.workers, 1)
    lines.append(
        f"Finishing samples took {format_seconds(stats.finish_cpu_s)} of CPU, {_share(stats.finish_cpu_s, room_s)} of "
        f"the capacity of {who}; making batches {format_seconds(stats.collate_s)}."
    )
    if not setup.is_remote:
        is_bucket = setup.store.startswith("bucket")
        # What requests to a bucket came to is said below.
        what = "samples" if is_bucket else format_bytes(stats.source_bytes.total())
        lines.append(
            f"Reading {what} took {format_seconds(stats.fetch_cpu_s)} of CPU and "
            f"{format_seconds(max(stats.fetch_s - stats.fetch_cpu_s, 0.0))} of waiting for the "
            f"{'object store' if is_bucket else 'disk'} or for a core."
        )
    if stats.reads and stats.read_s > wall_s:  # concurrent reads: none of the loader's own threads saw these seconds
        lines.append(
            f"A read of the store took {format_seconds(stats.read_s / stats.reads)} on average, with "
            f"{stats.read_s / wall_s:.0f} reads at a time."
        )
    if setup.store.startswith("bucket"):
        lines.append(_of_the_bucket(stats, wall_s))
    if setup.is_remote:
        lines.append(
            f"{format_bytes(stats.link_bytes)} crossed the link, {format_bytes(stats.link_bytes / wall_s)}/s; the "
            f"storage node spent {format_seconds(stats.storage_cpu_s)} of CPU; cuts: {_cuts(stats)}."
        )
    if stats.relayed:
        lines.append(
            f"{stats.relayed:,} samples came through relays, which received {format_bytes(stats.first_bytes)} from the "
            f"nodes and spent {format_seconds(stats.relay_cpu_s)} of CPU."
        )
    if stats.cached:
        lines.append(f"The first steps of {stats.cached:,} samples came from the cache on disk.")
    if stats.smaller_cuts and setup.is_remote:  # otherwise whole objects were read, since parts would not pay off
        lines.append(f"For {stats.smaller_cuts:,} samples storage did less than requested.")
    if stats.fallback:
        lines.append(f"{stats.fallback:,} samples were read from the fallback path because no node answered.")
    if stats.retries:
        lines.append(f"{_number(stats.retries, 'request', 'requests')} failed and {_were(stats.retries)} sent again.")
    if stats.hedges:
        asked = f"{_number(stats.hedges, 'request', 'requests')} {_were(stats.hedges)}"
        lines.append(f"{asked} sent a second time because answers were late.")
    if setup.bad:
        lines.append(f"{setup.bad:,} samples are bad so far (on_error={setup.on_error!r}); see loader.bad_samples.")
    return lines


def _of_the_bucket(stats: Stats, wall_s: float) -> str:
    price = Prices.told().of(stats.reads, stats.read_bytes)
    cost = f", for {price:,.4f} at the prices given" if price else ""
    return (
        f"The object store got {stats.reads:,} requests ({format_rate(stats.reads / wall_s)}) for "
        f"{format_bytes(stats.read_bytes)}{cost}."
    )


def _number(count: int, one: str, many: str) -> str:
    return f"{count:,} {one if count == 1 else many}"


def _were(count: int) -> str:
    return "was" if count == 1 else "were"


def _cuts(stats: Stats) -> str:
    shown = stats.cuts.most_common(4)
    left = stats.cuts.total() - sum(count for _, count in shown)
    return ", ".join([f"{cut} {count:,}" for cut, count in shown] + [f"others {left:,}"] * bool(left)) or "none"


def _share(part: float, whole: float) -> str:
    return f"{part / whole:.0%}" if whole > 0 else "0%"


def _part(seconds: float, whole_s: float) -> str:
    return f"{format_seconds(seconds)} ({_share(seconds, whole_s)})"
