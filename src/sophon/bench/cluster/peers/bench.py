"""`sophon bench cluster --peers`: Ray Data and tf.data service compared with sophon, on equal files, cores and links.

Epochs of all systems take turns. At the end, one of each system's two nodes is killed in the middle of an epoch.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from sophon.bench.cluster.peers.systems import BATCH, NODE_CORES, SYSTEMS, WAYS, System, held_to_half_a_core, missing
from sophon.bench.harness import OnStep, nothing
from sophon.bench.rig.namespaces import can_shape
from sophon.bench.rig.testbed import Testbed, open_testbed
from sophon.errors import ConfigError, Error
from sophon.process.scratch import scratch_folder
from sophon.store import open_store

_SAMPLES = 96  # 600 KB each as tensors: an epoch takes twelve seconds on two links of 20 Mbit/s
_ROUNDS = {"tensors": 1, "crops": 2, "files": 2, "planned": 2}  # one for tensors, whose time depends only on the link
_PATIENCE_S = 25.0  # Ray takes fifteen seconds to notice that a raylet is gone
_STRUCK = "crops"  # how a system with several ways is used when a node is killed
_STRUCK_EPOCH = 9
_LEARNING = 2  # sophon's epochs before the timed ones: it measures, then plans; other systems warm up in one
_NOT: dict[str, str] = {
    "same bits": "Ray Data and tf.data service have no random stream and no order that a second run, or another "
    "number of workers, would repeat; sophon's digest is that of `nodes`",
    "same ops, to the bit": "tf.data service has no Pillow: it decodes, crops and resizes with TensorFlow's ops, and "
    "yields TensorFlow tensors; Ray Data runs the ops of sophon's own recipe",
    "a Ray `Cluster`": "it starts all raylets in one network namespace; here `ray start` runs in each namespace",
}


def check_peers() -> None:
    """Raise `ConfigError` if nothing can be compared here."""
    if not can_shape():
        raise ConfigError("--peers needs links shaped by the kernel: become root and install iproute2 (ip, tc)")
    lacking = missing()
    if len(lacking) == len(SYSTEMS) - 1:
        raise ConfigError("--peers has nothing to compare with. " + "; ".join(lacking.values()))


def bench_peers(data: Path, link_bytes_per_s: float = 2.5e6, on_step: OnStep = nothing) -> dict[str, Any]:
    """Return samples per second and bytes per sample of each system, and the effect of a killed node.

    Args:
        data: Folder of JPEG photos.
        link_bytes_per_s: Rate of each node's link.
        on_step: Called with the name of the next step.

    Returns:
        ``{"samples", "rig", "versions", "systems": {"sophon": {"planned": {"per_s", "link_bytes_per_sample",
        "trainer_cpu_ms_per_sample", "epoch_s"}}, "ray_data": {"tensors": …, "crops": …, "files": …}, …}, "killed":
        {"sophon": {"lost", "repeated", "error", "epoch_s", "longest_wait_s", "way"}, …}, "not_compared"}``.

    Raises:
        ConfigError: Nothing can be compared here.
        Error: An epoch without faults failed, or lost or repeated samples.
    """
    check_peers()
    lacking = missing()
    steps = _Steps(on_step, len(SYSTEMS) - len(lacking))
    with ExitStack() as stack:
        folder = stack.enter_context(_numbered(data, _SAMPLES))
        testbed = stack.enter_context(open_testbed(link_bytes_per_s, "tbf", 2))
        assert testbed.link is not None
        testbed.link.connect_all()
        systems: dict[str, System] = {}
        for name, start in SYSTEMS.items():
            if name not in lacking:
                steps(f"{name}: starting")
                systems[name] = stack.enter_context(start(testbed, folder))
        for name, system in systems.items():
            steps(f"{name}: warming up")
            way = _way(system)
            for epoch in range(_LEARNING if name == "sophon" else 1):
                _whole(name, _epoch(testbed, system, way, epoch))
            stack.enter_context(held_to_half_a_core(system))
        rows: dict[str, dict[str, list[dict[str, Any]]]] = {
            name: {way: [] for way in system.ways} for name, system in systems.items()
        }
        for number in range(max(_ROUNDS.values())):
            for name, system in systems.items():
                for way in system.ways:
                    if number < _ROUNDS[way]:
                        steps(f"{name}: {way}")
                        rows[name][way].append(_whole(name, _epoch(testbed, system, way, _LEARNING + number)))
        killed = {}
        for name, system in systems.items():
            steps(f"{name}: a node is killed")
            if system.start_again is not None:
                killed[f"{name}, started again"] = _struck(testbed, system, starts_again=True)
            killed[name] = _struck(testbed, system)
        return {
            "samples": _SAMPLES,
            "batch_size": BATCH,
            "cores": {"each node": NODE_CORES, "trainer": 1.0},
            "rig": testbed.facts.to_json(),
            "versions": {key: value for system in systems.values() for key, value in system.versions.items()},
            "systems": {name: {way: _summed(its) for way, its in ways.items()} for name, ways in rows.items()},
            "killed": killed,
            "not_compared": _NOT | lacking,
        }


class _Steps:
    def __init__(self, on_step: OnStep, systems: int) -> None:
        self._on_step, self._done = on_step, 0
        of_peer = sum(_ROUNDS[way] for way in WAYS)
        self._total = 3 * systems + _ROUNDS["planned"] + of_peer * (systems - 1)

    def __call__(self, name: str) -> None:
        self._done += 1
        self._on_step(name, self._done, self._total)


def _way(system: System) -> str:
    return _STRUCK if _STRUCK in system.ways else system.ways[0]


def _epoch(
    testbed: Testbed, system: System, way: str, epoch: int, on_batch: Callable[[int, int], None] | None = None
) -> dict[str, Any]:
    assert testbed.link is not None
    before_bytes, before_s = testbed.link.received_bytes(), system.cpu_s()
    row: dict[str, Any] = system.trainer.do("epoch", on_batch, way=way, epoch=epoch, patience_s=_PATIENCE_S)
    row["link_bytes"] = testbed.link.received_bytes() - before_bytes
    if on_batch is None:
        row["trainer_cpu_s"] = system.cpu_s() - before_s
    return row


def _struck(testbed: Testbed, system: System, *, starts_again: bool = False) -> dict[str, Any]:
    """Kill the second node once a third of an epoch has arrived; restart it if `starts_again`."""
    left = [system.nodes[1]]

    def strike(done: int, _: int) -> None:
        if left and done >= _SAMPLES // 3:
            left.pop().kill()
            if starts_again and system.start_again is not None:
                system.nodes[1] = system.start_again()

    way = _way(system)
    row = _epoch(testbed, system, way, _STRUCK_EPOCH, strike)
    return {"way": way} | {key: row[key] for key in ("lost", "repeated", "error", "epoch_s", "longest_wait_s")}


def _whole(name: str, row: dict[str, Any]) -> dict[str, Any]:
    if row["error"] or row["lost"] or row["repeated"]:
        raise Error(
            f"{name}: an epoch without faults lost {row['lost']} and repeated {row['repeated']} samples"
            + (f": {row['error']}" if row["error"] else "")
        )
    return row


def _summed(rows: list[dict[str, Any]]) -> dict[str, Any]:
    middle = {key: statistics.median(row[key] for row in rows) for key in ("epoch_s", "link_bytes", "trainer_cpu_s")}
    return {
        "per_s": _SAMPLES / middle["epoch_s"],
        "link_bytes_per_sample": middle["link_bytes"] / _SAMPLES,
        "trainer_cpu_ms_per_sample": 1e3 * middle["trainer_cpu_s"] / _SAMPLES,
        "epoch_s": [row["epoch_s"] for row in rows],
    }


@contextmanager
def _numbered(data: Path, count: int) -> Iterator[Path]:
    """Yield a folder in which each photo is its own class, so that the label identifies it."""
    ids = sorted(one for one in open_store(data).manifest.ids.to_pylist() if one.lower().endswith((".jpg", ".jpeg")))
    if not ids:
        raise ConfigError(f"{data} has no .jpg files, which all systems could decode")
    with scratch_folder("peers") as name:
        for number in range(count):
            photo = ids[number % len(ids)]
            link = Path(name, "train", f"{number:05d}", f"photo{Path(photo).suffix}")
            link.parent.mkdir(parents=True)
            link.symlink_to((data / photo).absolute())
        yield Path(name, "train")
