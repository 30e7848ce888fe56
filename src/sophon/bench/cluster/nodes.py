"""Benchmark one, two and four nodes, each with its own part of the data and its own link, and nodes with unequal links.

Epochs of the different cases are interleaved. Where links are compared, raw files are sent, so that the link is the
bottleneck. The digest of all batches must be the same for any number of nodes.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from sophon.bench.harness import OnStep, nothing
from sophon.bench.rig.testbed import Testbed, open_testbed
from sophon.errors import Error
from sophon.process.scratch import scratch_folder
from sophon.store import open_store

NAME = "train"
CONSUMER: dict[str, Any] = {"kind": "stand-in", "samples_per_s": 4000.0}  # faster than any link here
BATCH, WORKERS = 16, 2
COUNTS = (1, 2, 4)
UNEVEN = (1.0, 1.0, 1.0, 0.25)  # shares of the link rate: one node gets a quarter


def bench_nodes(
    data: Path,
    link_bytes_per_s: float = 2.5e6,
    rounds: int = 3,
    shape: str = "auto",
    counts: Sequence[int] = COUNTS,
    on_step: OnStep = nothing,
) -> dict[str, Any]:
    """Return samples per second for a data set divided among different numbers of nodes.

    Args:
        data: Folder of photos.
        link_bytes_per_s: Rate of each link.
        rounds: Number of timed epochs per case.
        shape: How the rate is enforced; see `open_testbed`.
        counts: Numbers of nodes.
        on_step: Called with the name of the next step.

    Returns:
        ``{"samples", "rig", "nodes": {"1": {"per_s", "epoch_s"}, …}, "sha256"}``.

    Raises:
        Error: The batches are not the same.
    """
    steps = iter(range(1, 1 << 30))
    total = len(counts) * (rounds + 2)
    with (
        balanced(data, max(counts)) as folder,
        open_testbed(link_bytes_per_s, shape, max(counts)) as testbed,
        ExitStack() as stack,
    ):
        samples, sums = 0, {}
        seconds: dict[str, list[float]] = {str(count): [] for count in counts}
        for count in counts:
            on_step(f"{count} nodes: opening", next(steps), total)
            urls = stack.enter_context(in_parts(testbed, folder, count, 0))
            samples = opened(testbed, str(count), urls, "none")
        for name in seconds:
            on_step(f"{name} nodes: digest", next(steps), total)
            sums[name] = testbed.trainer.do("digest", name=name, epoch=0)
        for epoch in range(1, rounds + 1):
            for name, its in seconds.items():
                on_step(f"{name} nodes: epoch {epoch}", next(steps), total)
                its.append(epoch_of(testbed, name, epoch)["epoch_s"])
        if len(set(sums.values())) != 1:
            raise Error(f"the batches depend on the number of nodes: {sums}")
        found = {n: {"per_s": samples / statistics.median(its), "epoch_s": its} for n, its in seconds.items()}
        return {
            "samples": samples,
            "rig": testbed.facts.to_json(),
            "nodes": found,
            "sha256": next(iter(sums.values())),
        }


@contextmanager
def balanced(data: Path, parts: int, most: int = 240) -> Iterator[Path]:
    """Yield a folder with links to photos in which all parts have the same number of bytes.

    Of 240 photos, one part of four may well have a sixth more bytes than the others, and its link would take a sixth
    longer. So each photo appears once in every part: a part takes every n-th id, and the number of photos has no
    divisor in common with the number of parts.
    """
    ids = sorted(open_store(data).manifest.ids.to_pylist())
    count = min(max(most // parts, 1), len(ids))
    while math.gcd(count, parts) > 1:
        count -= 1
    with scratch_folder("cluster") as name:
        for copy in range(parts):
            for number, sample in enumerate(ids[:count]):
                link = Path(name, NAME, f"{copy:03d}", f"{number:05d}{Path(sample).suffix}")
                link.parent.mkdir(parents=True, exist_ok=True)
                link.symlink_to((data / sample).absolute())
        yield Path(name, NAME)


def bench_uneven(
    data: Path,
    link_bytes_per_s: float = 2.5e6,
    rounds: int = 3,
    shape: str = "auto",
    cores: float = 1.0,
    on_step: OnStep = nothing,
) -> dict[str, Any]:
    """Return how close planned epochs come to their bound when one of four nodes has a quarter of the link.

    Returns:
        ``{"shares", "epoch_s": […], "bound_s": […], "predicted_s": […], "over_bound", "sha256"}``: `over_bound` is the
            median ratio of the measured seconds to the plan's bound, minus one.
    """
    steps, total = iter(range(1, 1 << 30)), rounds + 3
    with (
        open_testbed(link_bytes_per_s, shape, len(UNEVEN), UNEVEN) as testbed,
        in_parts(testbed, data, len(UNEVEN), cores) as urls,
    ):
        on_step("uneven nodes: opening", next(steps), total)
        opened(testbed, "uneven", urls, "optimal")
        on_step("uneven nodes: measuring", next(steps), total)
        digest = testbed.trainer.do("digest", name="uneven", epoch=0)
        rows = []
        for epoch in range(1, rounds + 2):
            on_step(f"uneven nodes: epoch {epoch}", next(steps), total)
            rows.append(epoch_of(testbed, "uneven", epoch))
        rows = rows[1:]  # the first plan is based on an epoch without a plan
        return {
            "shares": list(UNEVEN),
            "epoch_s": [row["epoch_s"] for row in rows],
            "bound_s": [row["bound_s"] for row in rows],
            "predicted_s": [row["predicted_s"] for row in rows],
            "over_bound": statistics.median(row["epoch_s"] / row["bound_s"] - 1 for row in rows),
            "cuts": rows[-1]["cuts"],
            "sha256": digest,
        }


@contextmanager
def in_parts(testbed: Testbed, data: Path, count: int, cores: float) -> Iterator[list[str]]:
    """Run a number of nodes, each with one part; yield their addresses."""
    with ExitStack() as stack:
        servers = [
            stack.enter_context(testbed.server({NAME: data}, cores, node, ("--part", f"{node + 1}/{count}")))
            for node in range(count)
        ]
        yield [server.url(NAME) for server in servers]


def opened(testbed: Testbed, name: str, urls: list[str], policy: str) -> int:
    """Have the trainer open a data set; return its number of samples."""
    how: dict[str, Any] = {"recipe": "pil", "policy": policy, "batch_size": BATCH, "workers": WORKERS, "seed": 0}
    url = urls if len(urls) > 1 else urls[0]
    samples: int = testbed.trainer.do("open_recipe", name=name, url=url, **how)
    return samples


def epoch_of(testbed: Testbed, name: str, epoch: int) -> dict[str, Any]:
    """Have the trainer run an epoch; return its counts."""
    found: dict[str, Any] = testbed.trainer.do("epoch", name=name, epoch=epoch, interface=testbed.interface, **CONSUMER)
    return found
