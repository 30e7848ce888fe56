"""`sophon bench parts`: two nodes with half of a data set each, compared with one node that holds all of it.

Every node has its own link to the trainer, all of the same rate. Epochs of the two cases take turns, with raw files, so
that the links are the bottleneck; the digest of all batches must be the same.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sophon.bench.harness import OnStep, nothing
from sophon.bench.rig.testbed import Testbed, open_testbed
from sophon.errors import Error
from sophon.process.scratch import scratch_folder
from sophon.store import open_store

_NAME = "train"
_CONSUMER = {"kind": "stand-in", "samples_per_s": 4000.0}  # faster than any link here
_BATCH, _WORKERS = 16, 2


def bench_parts(
    data: Path,
    nodes: int = 2,
    link_bytes_per_s: float = 2.5e6,
    rounds: int = 3,
    shape: str = "auto",
    on_step: OnStep = nothing,
) -> dict[str, Any]:
    """Return samples per second of one node with all samples and of several nodes with a part each.

    Args:
        data: Folder of photos.
        nodes: Number of nodes to divide the photos among.
        link_bytes_per_s: Rate of each link.
        rounds: Number of timed epochs per case.
        shape: How the rate is enforced; see `open_testbed`.
        on_step: Called with the name of the next step.

    Returns:
        ``{"samples", "nodes", "rig", "per_s": {"whole", "parts"}, "epoch_s": {"whole": […], "parts": […]}, "times",
        "sha256"}``: `times` is the ratio of the two rates, each the median over the rounds.

    Raises:
        Error: The batches are not the same.
    """
    steps, count = iter(range(1, 1 << 30)), 2 * (rounds + 2)
    with open_testbed(link_bytes_per_s, shape, nodes) as testbed, divided(data, nodes) as folders:
        seconds: dict[str, list[float]] = {"whole": [], "parts": []}
        sums: dict[str, str] = {}
        with _served(testbed, data, folders) as urls:
            samples = 0
            for name, url in urls.items():
                on_step(f"{name}: opening", next(steps), count)
                how: dict[str, Any] = {
                    "recipe": "pil",
                    "policy": "none",
                    "batch_size": _BATCH,
                    "workers": _WORKERS,
                    "seed": 0,
                }
                samples = testbed.trainer.do("open_recipe", name=name, url=url, **how)
            for name in urls:
                on_step(f"{name}: digest", next(steps), count)
                sums[name] = testbed.trainer.do("digest", name=name, epoch=0)
            for epoch in range(1, rounds + 1):
                for name in urls:
                    on_step(f"{name}: epoch {epoch}", next(steps), count)
                    told: dict[str, Any] = {"name": name, "epoch": epoch, "interface": testbed.interface, **_CONSUMER}
                    seconds[name].append(testbed.trainer.do("epoch", **told)["epoch_s"])
        if sums["whole"] != sums["parts"]:
            raise Error(f"the batches from {nodes} parts differ from those of the whole: {sums}")
        per_s = {name: samples / statistics.median(values) for name, values in seconds.items()}
        return {
            "samples": samples,
            "nodes": nodes,
            "rig": testbed.facts.to_json(),
            "per_s": per_s,
            "epoch_s": seconds,
            "times": per_s["parts"] / per_s["whole"],
            "sha256": sums["whole"],
        }


@contextmanager
def _served(testbed: Testbed, data: Path, folders: list[Path]) -> Iterator[dict[str, Any]]:
    """Run a node with all samples, and one for each part; yield the addresses of the former and of the latter."""
    with (
        testbed.server({_NAME: data}, 0) as whole,
        testbed.servers([{_NAME: folder} for folder in folders], 0) as parts,
    ):
        yield {"whole": whole.url(_NAME), "parts": [server.url(_NAME) for server in parts]}


@contextmanager
def divided(data: Path, nodes: int) -> Iterator[list[Path]]:
    """Yield folders that each contain every n-th sample of a folder, as links to its files."""
    ids = open_store(data).manifest.ids.to_pylist()
    with scratch_folder("parts") as name:
        folders = [Path(name, str(node)) for node in range(nodes)]
        for number, sample in enumerate(ids):
            link = folders[number % nodes] / sample
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to((data / sample).absolute())
        yield folders
