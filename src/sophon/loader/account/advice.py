"""What would make an epoch faster: one piece of advice, based on the statistics and the loader's setup.

Contract: nothing is recommended that is already enabled or that the loader would reject, and only one bottleneck is
named (`tests/loader/account/test_advice.py` tries every combination).
"""

from __future__ import annotations

from dataclasses import dataclass

from sophon.codec.route import UNTOUCHED
from sophon.loader.account.stats import Stats
from sophon.plan.plan import Plan
from sophon.plan.policies import DEFAULT_POLICY
from sophon.plan.resources import kind_named

_LITTLE = 0.05  # share of an epoch's time that is not worth a change
_BUSY = 0.7  # share of the workers' time spent computing; above it, the loop waits for their CPU
_NEARLY = 0.9  # share of an epoch in which a resource is busy; above it, there is no headroom
_START_S = 3.0  # how long an epoch's first batch may take: connections, worker processes, a batch of large files
_WAITS = 0.6  # share of the fetching threads' time spent waiting; above it, the loop waits for reading


@dataclass(frozen=True)
class Spent:
    """The cost of one pass.

    Args:
        epoch: Number of the epoch.
        wall_s: Seconds from the request for the first batch to the end of the pass.
        stats: Counts of the pass.
        batches: Number of batches handed out.
        is_whole: Whether the pass ran to its end.
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
        workers: Number of threads or processes that finish samples.
        requests: Number of threads that fetch samples.
        kind: "threads" or "processes".
        cores: Number of cores this process may use.
        is_remote: Whether samples come from a storage node.
        bad: Number of samples that could not be loaded so far.
        on_error: How bad samples are handled.
        cuts_by: What chooses the cuts: the loader's "planner", a "plan" from a file, one "policy" for all samples, a
            "cache" of the first ops; or "nothing", if no op can run near storage.
        is_auto: Whether the loader chooses the number of workers.
        finds_requests: Whether the loader chooses the number of concurrent requests.
        is_persistent: Whether worker processes are kept between epochs.
        has_collate: Whether the user gave a collate_fn.
        store: Which kind of store samples are read from: "folder", "tar" or "parquet"; "" if unknown.
    """

    workers: int
    requests: int
    kind: str
    cores: int
    is_remote: bool
    bad: int
    on_error: str
    cuts_by: str = "policy"
    is_auto: bool = False
    finds_requests: bool = False
    is_persistent: bool = False
    has_collate: bool = False
    store: str = ""


def advice(spent: Spent, setup: Setup, plan: Plan | None) -> str:
    """Return what would help, as the continuation of "What would help:".

    Args:
        spent: The cost of the epoch.
        setup: How the loader was set up.
        plan: The planner's plan for the epoch, if there was one.
    """
    stats, wall_s = spent.stats, max(spent.wall_s, 1e-9)
    busy_s = _BUSY * wall_s * min(setup.workers, setup.cores)
    all_cpu_s = stats.finish_cpu_s + stats.fetch_cpu_s + stats.collate_s
    # The loader waits for replies nearly all the time.
    reads = stats.fetch_s - stats.fetch_cpu_s > _WAITS * wall_s * max(setup.requests, 1)
    # Most of the time requests have nothing to send, since they wait for the store.
    store = stats.reading_s > _WAITS * wall_s and stats.reading_s > _WAITS * stats.fetch_s
    # The first row that applies is the advice.
    found = (
        (stats.samples == 0, "unknown: not a single sample arrived. The error that ended the epoch says why."),
        (
            stats.fallback > _LITTLE * stats.samples,
            "a storage node that answers: samples were read from the fallback path, where nothing is offloaded.",
        ),
        (
            stats.waited_s < _LITTLE * wall_s,
            "nothing in the loader; it keeps up, and the training step takes the time.",
        ),
        (
            setup.workers == 0,
            "workers. With num_workers=0 samples are fetched and finished while the training loop waits; "
            f"num_workers={max(setup.cores - 1, 1)} would do it in parallel.",
        ),
        (stats.fetch_cpu_s > stats.finish_cpu_s and all_cpu_s > busy_s, _cheaper_reading(setup, plan)),
        (stats.finish_cpu_s > busy_s, _fewer_ops(setup, plan)),
        (stats.collate_s > _BUSY * stats.waited_s, _cheaper_batches(setup)),
        (setup.is_remote and store, _faster_store()),
        (setup.is_remote, _fewer_bytes(spent, setup, plan)),
        (reads, _faster_disk(setup)),
        (True, _idle(setup)),
    )
    return next(text for applies, text in found if applies)


def count(number: int, kind: str) -> str:
    """Return a number of threads or processes, in words."""
    one = {"threads": "thread", "processes": "process"}[kind]
    return f"{number} {one if number == 1 else kind}"


def _cheaper_reading(setup: Setup, plan: Plan | None) -> str:
    if setup.is_remote:
        more = _optimal(setup, plan)
        sends = f" {more} sends the smallest cut, if the storage node has CPU to spare." if more else ""
        return f"more cores, or fewer bytes: receiving them takes more CPU here than all ops.{sends}"
    remedy = {
        "tar": "A cheaper file system.",
        "parquet": "Uncompressed Parquet files, if these are compressed, or a cheaper file system.",
    }.get(
        setup.store,
        "Fewer and larger files (tar shards, uncompressed Parquet), or a cheaper file system.",
    )
    return f"cheaper reading: it takes more CPU than all ops. {remedy}"


def _fewer_ops(setup: Setup, plan: Plan | None) -> str:
    if setup.workers < setup.cores and not setup.is_auto:
        at_work = count(setup.workers, setup.kind)
        return f"more workers: {at_work} cannot keep up, and there are {setup.cores} cores."
    busy = "all cores are busy" if setup.workers >= setup.cores else "the workers are busy"
    if setup.is_remote:
        if setup.cuts_by == "planner" and plan is None:
            return (
                f"another epoch: {busy}. This epoch was measured; the next one has a plan, which moves ops to the "
                "storage node if it has capacity."
            )
        if more := _optimal(setup, plan):
            return f"fewer ops here: {busy}. {more} moves ops to the storage node if it has capacity."
    if setup.is_remote and plan is not None:
        relays = "more relays" if plan.prediction.relay_cpu_s else "relays (`sophon relay`)"
        so_far = "The plan already moves every op that pays off."
        return f"more cores, {relays}, or a cheaper pipeline: {busy} finishing samples. {so_far}"
    return f"more cores, or a cheaper pipeline: {busy} finishing samples."


def _cheaper_batches(setup: Setup) -> str:
    made = "a cheaper collate_fn" if setup.has_collate else "smaller samples, or smaller batches"
    return f"{made}: the loop mostly waits for batches to be made."


def _fewer_bytes(spent: Spent, setup: Setup, plan: Plan | None) -> str:
    wait = "the workers wait for payloads"
    more = _optimal(setup, plan)
    if plan is not None:
        return _faster_link(spent, plan, more)
    stats = spent.stats
    is_full = stats.cached >= (1 - _LITTLE) * stats.samples
    return {
        "planner": f"another epoch: {wait}. This epoch was measured; the next one has a plan.",
        "plan": f"a faster link, more cores on the storage node, or a plan made for their current state: {wait}.",
        "policy": f"fewer bytes on the link, or a faster one: {wait}. {more} sends the smallest cut, if the storage "
        "node has CPU to spare.",
        "cache": "a faster disk for the cache: the workers wait for it."
        if is_full
        else f"a fuller cache: {wait}. Cached samples are not requested again; the cache fills until its bytes are "
        "used up.",
        "nothing": f"a faster link: {wait}, and nothing can be offloaded, since the first step has to run here.",
    }[setup.cuts_by]


def _faster_link(spent: Spent, plan: Plan, better: str) -> str:
    wait = "the workers wait for payloads"
    if better:
        return f"a different policy, or a faster link: {wait}. {better} weighs all cuts of all samples together."
    binds = kind_named(plan.prediction.bottleneck).name
    told = plan.prediction
    near = {kind_named(label).name for label, s in told.busy_s.items() if s >= _NEARLY * told.epoch_s} - {binds}
    if binds == "consumer" and near & {"link", "storage"}:
        # Then neither has time to spare, and random delays in either are never made up.
        with_it = {"link": "the link takes", "storage": "ops on the storage node take"}
        both = " and ".join(text for name, text in with_it.items() if name in near)
        return (
            f"a faster link, or more cores on the storage node: {both} as long as the training step, so the training "
            "loop waits for every delay in either. This costs little if the rest of the epoch runs as predicted."
        )
    remedies = {
        "link": "a faster link",
        "storage": "more cores on the storage node",
        "reads": "a store that reads more files at once",
        "store": "a faster store",
        "relay": "more relays, or more cores for them",
        "relay-link": "faster links from the relays",
    }
    if binds in remedies:
        return f"{remedies[binds]}: {wait}, and no other choice among the cuts measured would be faster."
    return _unexpected(spent, plan, wait)


def _unexpected(spent: Spent, plan: Plan, wait: str) -> str:
    """Return advice for an epoch that waited, although its plan expects the trainer to be the bottleneck."""
    is_whole = all(route == UNTOUCHED for route in plan.counts())
    sends = ", so it sends whole files" if is_whole else ""
    expects = f"the plan expects the {part_named(plan)} to be slower than the link{sends}"
    if spent.stats.waited_s < _START_S:
        return f"little: {expects}. At the start of every epoch {wait}, which counts for more in short ones."
    return (
        f"a faster link, or more cores on the storage node: {wait}, although {expects}. Something else may be using "
        "the link or the node."
    )


def part_named(plan: Plan) -> str:
    """Return the bottleneck that a plan expects, in words."""
    named = kind_named(plan.prediction.bottleneck).name
    return {"consumer": "training step", "trainer": "trainer's CPU", "storage": "storage node's CPU"}.get(named, named)


def _faster_store() -> str:
    return (
        "a faster store on the node: requests wait for files there; neither the link nor the cores are at their "
        "limit. A "
        "faster disk, fewer and larger files (tar shards), or a second node with a copy of the data set."
    )


def _faster_disk(setup: Setup) -> str:
    wait = "the workers wait for files"
    if setup.store.startswith("bucket"):
        return f"a faster way to the object store, or a storage node near it (`sophon serve`): {wait}."
    if setup.finds_requests:
        return f"a faster disk: {wait}, and more concurrent requests would not pay off."
    return f"a faster disk, or more requests at once (max_requests): {wait}."


def _idle(setup: Setup) -> str:
    idle = "much of the time the workers neither compute nor wait for files"
    start = ""
    if setup.kind == "processes" and not setup.is_persistent:
        start = ", or they are still starting (persistent_workers=True starts them once)"
    return f"cores: {idle}, so something else is using the cores{start}."


def _optimal(setup: Setup, plan: Plan | None) -> str:
    """Return the setting that would plan the cuts, or plan them better; "" if there is none."""
    wanted = f"policy={DEFAULT_POLICY!r}"
    if plan is not None:
        return "" if plan.policy == DEFAULT_POLICY else wanted
    return wanted if setup.cuts_by == "policy" else ""
