"""Where the time of an epoch went and what would help, in words."""

from __future__ import annotations

from dataclasses import dataclass

from sophon.loader.stats import Stats
from sophon.plan.plan import Plan
from sophon.profile.verdict import Verdict
from sophon.units import format_bytes, format_rate, format_seconds

_LITTLE = 0.05  # of an epoch's time is not worth a change
_BUSY = 0.7  # of the workers' time spent computing, and it is they who are waited for
_WAITS = 0.6  # of the time of those who fetch spent waiting, and it is reading that is waited for


@dataclass(frozen=True)
class Spent:
    """What one pass took.

    Args:
        epoch: Which epoch.
        wall_s: From its first batch being asked for to its end.
        stats: What was counted in it.
        batches: Handed out.
        is_whole: Whether it was run to its end.
    """

    epoch: int
    wall_s: float
    stats: Stats
    batches: int
    is_whole: bool


@dataclass(frozen=True)
class Setup:
    """How the loader was set up.

    Args:
        workers: Threads or processes that finish samples.
        requests: Threads that fetch them; of processes, the workers themselves.
        kind: "threads" or "processes".
        cores: That this process may use.
        is_remote: Whether samples come from a storage node.
        bad: Samples that could not be had so far.
        on_error: What is done with them.
        plans: Whether it measures and plans for itself.
    """

    workers: int
    requests: int
    kind: str
    cores: int
    is_remote: bool
    bad: int
    on_error: str
    plans: bool = False


def explain_epoch(spent: Spent, setup: Setup, verdict: Verdict | None, plan: Plan | None) -> str:
    """Return a few sentences: where time went, and what would help."""
    lines = [*_where(spent, setup), f"What would help: {_advice(spent, setup, plan is not None)}"]
    if plan is not None:
        lines.append(f"Plan: policy {plan.policy}; print(loader.plan.explain()) says what is done where.")
    if verdict is not None:
        lines.append("Were nothing offloaded: " + verdict.explain().replace("\n", " "))
    return "\n".join(lines)


def _where(spent: Spent, setup: Setup) -> list[str]:
    stats, wall_s = spent.stats, max(spent.wall_s, 1e-9)
    until, came = ("", "in") if spent.is_whole else (", left before its end", "came,")
    lines = [
        f"Epoch {spent.epoch}{until}: {stats.samples:,} samples {came} {_number(spent.batches, 'batch', 'batches')}, "
        f"{format_seconds(spent.wall_s)}, {format_rate(stats.samples / wall_s)}.",
        f"The training loop worked for {_part(stats.consumer_s, wall_s)} and waited for batches for "
        f"{_part(stats.waited_s, wall_s)}.",
    ]
    who = _count(setup.workers, setup.kind) if setup.workers else "the training loop's own thread"
    room_s = wall_s * max(setup.workers, 1)
    lines.append(
        f"Finishing samples took {format_seconds(stats.finish_cpu_s)} of CPU, {_share(stats.finish_cpu_s, room_s)} of "
        f"what {who} can give; making batches {format_seconds(stats.collate_s)}."
    )
    if not setup.is_remote:
        lines.append(
            f"Reading {format_bytes(stats.link_bytes)} took {format_seconds(stats.fetch_cpu_s)} of CPU and "
            f"{format_seconds(max(stats.fetch_s - stats.fetch_cpu_s, 0.0))} of waiting for the disk or for a core."
        )
    if setup.is_remote:
        lines.append(
            f"{format_bytes(stats.link_bytes)} crossed the link, {format_bytes(stats.link_bytes / wall_s)}/s; the "
            f"storage node spent {format_seconds(stats.storage_cpu_s)} of CPU; cuts: {_cuts(stats)}."
        )
    if stats.cached:
        lines.append(f"The first steps of {stats.cached:,} samples came from the cache on disk.")
    if stats.smaller_cuts:
        lines.append(f"For {stats.smaller_cuts:,} samples storage did less than it was asked to.")
    if stats.fallback:
        lines.append(f"{stats.fallback:,} samples were read from the path to fall back on, since no node answered.")
    if stats.retries:
        lines.append(f"{_number(stats.retries, 'request', 'requests')} failed and {_were(stats.retries)} sent again.")
    if stats.hedges:
        asked = f"{_number(stats.hedges, 'request', 'requests')} {_were(stats.hedges)}"
        lines.append(f"{asked} sent a second time, since answers were late.")
    if setup.bad:
        lines.append(f"{setup.bad:,} samples are bad so far (on_error={setup.on_error!r}); see loader.bad_samples.")
    return lines


def _advice(spent: Spent, setup: Setup, is_planned: bool) -> str:
    stats, wall_s = spent.stats, max(spent.wall_s, 1e-9)
    busy = stats.finish_cpu_s > _BUSY * wall_s * min(setup.workers, setup.cores)
    # Replies are waited for nearly all the time: by the threads that fetch, or by processes that do both.
    reading = stats.fetch_s - stats.fetch_cpu_s > _WAITS * wall_s * max(setup.requests, 1)
    # Worker processes cannot plan (`DataLoader` refuses it).
    optimal = "policy='optimal'" + (" with workers='threads'" if setup.kind == "processes" else "")
    all_cpu_s = stats.finish_cpu_s + stats.fetch_cpu_s + stats.collate_s
    # The first that applies.
    found = (
        (stats.samples == 0, "to be seen: not one sample came. The error that ended the epoch says why."),
        (
            stats.fallback > _LITTLE * stats.samples,
            "a storage node that answers: samples were read from the path to fall back on, where nothing is offloaded.",
        ),
        (
            stats.waited_s < _LITTLE * wall_s,
            "nothing in the loader; it keeps up, and the training step is what takes the time.",
        ),
        (
            setup.workers == 0,
            "workers. With num_workers=0 samples are fetched and finished while the training loop stands still; "
            f"num_workers={max(setup.cores - 1, 1)} would do it meanwhile.",
        ),
        (
            stats.fetch_cpu_s > stats.finish_cpu_s and all_cpu_s > _BUSY * wall_s * min(setup.workers, setup.cores),
            "cheaper reading: it takes more CPU than all ops. Fewer and larger files (tar shards, Parquet without "
            "compression), or a file system that costs less.",
        ),
        (
            busy and setup.workers < setup.cores,
            f"more workers: {_count(setup.workers, setup.kind)} cannot keep up, and there are {setup.cores} cores.",
        ),
        (
            busy and setup.is_remote and not is_planned,
            f"fewer ops here: all cores are busy. {optimal} moves ops to the storage node if it has room.",
        ),
        (busy, "more cores, or a cheaper pipeline: all cores are busy finishing samples."),
        (
            stats.collate_s > _BUSY * stats.waited_s,
            "a cheaper collate_fn: making batches is most of what the loop waits for.",
        ),
        (
            setup.is_remote and is_planned,
            "a faster link, or more cores on the storage node: the workers wait for payloads, and the plan already "
            "sends what is cheapest. print(loader.plan.explain()) says which of the two binds.",
        ),
        (
            setup.is_remote and setup.plans,
            "to go on: the workers wait for payloads. This epoch was measured; from the next one on there is a plan.",
        ),
        (
            setup.is_remote,
            f"fewer bytes on the link, or a faster one: the workers wait for payloads. {optimal} sends what is "
            "smallest, if the storage node has CPU to spare.",
        ),
        (reading, "a faster disk, or more requests at once (max_requests): the workers wait for files."),
        (
            setup.kind == "processes",
            "cores: the workers neither compute nor wait for files for most of the time, so something else uses the "
            "cores, or they are still starting (persistent_workers=True starts them once).",
        ),
        (
            True,
            "cores, or workers='processes': the workers neither compute nor wait for files for most of the time. They "
            "wait for a core that something else uses, or, if steps of your own hold Python's lock, for each other.",
        ),
    )
    return next(text for applies, text in found if applies)


def _number(count: int, one: str, many: str) -> str:
    return f"{count:,} {one if count == 1 else many}"


def _were(count: int) -> str:
    return "was" if count == 1 else "were"


def _count(number: int, kind: str) -> str:
    one = {"threads": "thread", "processes": "process"}[kind]
    return f"{number} {one if number == 1 else kind}"


def _cuts(stats: Stats) -> str:
    shown = stats.cuts.most_common(4)
    left = stats.cuts.total() - sum(count for _, count in shown)
    return ", ".join([f"{cut} {count:,}" for cut, count in shown] + [f"others {left:,}"] * bool(left)) or "none"


def _share(part: float, whole: float) -> str:
    return f"{part / whole:.0%}" if whole > 0 else "0%"


def _part(seconds: float, whole_s: float) -> str:
    return f"{format_seconds(seconds)} ({_share(seconds, whole_s)})"
