"""The loaders to compare, each with two nodes near the files and a trainer: real processes in namespaces.

All have the same resources: each node has half a core (by quota, on one CPU), its own shaped link, and all files; the
trainer has the other CPU. What a system needs besides its nodes (Ray's head, the dispatcher of tf.data service) runs at
the trainer.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib.machinery import PathFinder
from pathlib import Path

from sophon.bench.rig import quota
from sophon.bench.rig.namespaces import Node, ShapedLink
from sophon.bench.rig.processes import Program, Server, Trainer
from sophon.bench.rig.testbed import Testbed
from sophon.process.scratch import scratch_folder

BATCH = 16
NODE_CORES = 0.5
_HERE = "sophon.bench.cluster.peers"
_RAY_PORT, _DISPATCHER_PORT, _WORKER_PORT = 6399, 5050, 5051  # fixed: nothing else runs in the namespaces
_STORE_BYTES = 256 << 20  # per raylet; all samples together take a quarter of this
_FOLDER = Path(".venv", "peers")
_READY = "the node is ready"  # what `tf_node` prints; importing it would need TensorFlow
WAYS = ("tensors", "crops", "files")


@dataclass
class System:
    """A loader whose nodes and trainer are running.

    Args:
        trainer: The trainer's process, which has opened the files.
        nodes: Its two nodes.
        ways: Names of the ways in which the system can be used.
        others: Further processes at the trainer.
        versions: Versions of its packages.
        start_again: Restarts the second node after it was killed, for a system that waits for it.
    """

    trainer: Trainer
    nodes: list[Program | Server]
    ways: Sequence[str]
    others: Sequence[Program]
    versions: Mapping[str, str]
    start_again: Callable[[], Program] | None = None

    def cpu_s(self) -> float:
        """CPU seconds used at the trainer so far."""
        return self.trainer.cpu_s() + sum(other.cpu_s() for other in self.others)


@contextmanager
def sophon(testbed: Testbed, folder: Path) -> Iterator[System]:
    """Run two sophon nodes that hold the same data set."""
    with ExitStack() as stack:
        nodes = [stack.enter_context(testbed.server({"train": folder}, NODE_CORES, node)) for node in range(2)]
        trainer = stack.enter_context(_trainer(testbed, "with_sophon", {}))
        versions = trainer.do("hello")
        trainer.do("open", urls=[node.url("train") for node in nodes], batch_size=BATCH)
        yield System(trainer, [*nodes], ("planned",), (), versions)


@contextmanager
def ray_data(testbed: Testbed, folder: Path) -> Iterator[System]:
    """Run a head without cores at the trainer, and a raylet on each node."""
    link = _link(testbed)
    home, store = link.trainer, ("--object-store-memory", str(_STORE_BYTES))
    paths = [*sys.path, str(_FOLDER.absolute())]  # the folder holds packages that this environment lacks
    environment = _path(paths) | {
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_raylet_start_wait_time_s": "300",
        "RAY_agent_register_timeout_ms": "300000",
        "OMP_NUM_THREADS": "1",
    }
    start = ("-m", "ray.scripts.scripts", "start", "--block", "--disable-usage-stats", *store)
    address = f"{home.address}:{_RAY_PORT}"
    with ExitStack() as stack:

        def raylet(place: Node, *options: str) -> Program:
            command = (*start, f"--node-ip-address={place.address}", *options)
            return stack.enter_context(_program(testbed, command, "Ray runtime started", place, environment))

        logs = f"--temp-dir={stack.enter_context(scratch_folder('ray'))}"
        head = raylet(home, "--head", f"--port={_RAY_PORT}", "--num-cpus=0", "--include-dashboard=false", logs)
        # One after another: raylets that start at once on one host would choose the same socket names.
        nodes = [raylet(place, f"--address={address}", "--num-cpus=1") for place in link.storages]
        trainer = stack.enter_context(_trainer(testbed, "with_ray_data", environment))
        versions = trainer.do("hello")
        trainer.do("open", paths=_files(folder), batch_size=BATCH, address=address, host=home.address)
        yield System(trainer, [*nodes], WAYS, (head,), versions)


@contextmanager
def tf_data_service(testbed: Testbed, folder: Path) -> Iterator[System]:
    """Run a dispatcher at the trainer and a worker on each node."""
    link = _link(testbed)
    environment = _path([str(_FOLDER.absolute()), *sys.path]) | {
        "TF_CPP_MIN_LOG_LEVEL": "2",
        "CUDA_VISIBLE_DEVICES": "",
    }
    address = f"{link.trainer.address}:{_DISPATCHER_PORT}"
    module = ("-m", f"{_HERE}.tf_node")
    with ExitStack() as stack:
        command = (*module, "dispatcher", address)
        dispatcher = stack.enter_context(_program(testbed, command, _READY, link.trainer, environment))

        def worker(place: Node) -> Program:
            command = (*module, "worker", f"{place.address}:{_WORKER_PORT}", address)
            return stack.enter_context(_program(testbed, command, _READY, place, environment))

        nodes = [worker(place) for place in link.storages]
        trainer = stack.enter_context(_trainer(testbed, "with_tf_data", environment))
        versions = trainer.do("hello")
        trainer.do("open", paths=_files(folder), batch_size=BATCH, address=address)
        yield System(trainer, [*nodes], WAYS, (dispatcher,), versions, lambda: worker(link.storages[1]))


SYSTEMS = {"sophon": sophon, "ray_data": ray_data, "tf_data_service": tf_data_service}


def missing() -> dict[str, str]:
    """Return why systems cannot be run here, by name."""
    needs = {"ray_data": ("ray", "pandas", "fsspec"), "tf_data_service": ("tensorflow",)}
    packages = {"ray": '"ray[data]"', "tensorflow": "tensorflow-cpu"}
    found = {}
    for system, modules in needs.items():
        lacking = [name for name in modules if PathFinder.find_spec(name, [*sys.path, str(_FOLDER)]) is None]
        if lacking:
            wanted = " ".join(packages.get(name, name) for name in lacking)
            found[system] = (
                f"{', '.join(lacking)}: neither in this environment nor in {_FOLDER}; `pip install --target {_FOLDER} "
                f"{wanted}` and run again from this folder"
            )
    return found


@contextmanager
def held_to_half_a_core(system: System) -> Iterator[None]:
    """Limit each node that has no limit of its own to half a core, for the length of a ``with`` block."""
    with ExitStack() as stack:
        if quota.mechanism() is not None:
            for node in system.nodes:
                if isinstance(node, Program):
                    stack.enter_context(quota.Quota(NODE_CORES, node.pid))
        yield


def _link(testbed: Testbed) -> ShapedLink:
    assert testbed.link is not None
    return testbed.link


def _cpus(testbed: Testbed, place: Node) -> list[int] | None:
    return None if testbed.cpus is None else testbed.cpus[place == _link(testbed).trainer]


def _program(
    testbed: Testbed, command: Sequence[str], ready: str, place: Node, environment: Mapping[str, str]
) -> Program:
    return Program(command, ready, enter=place.enter_network, cpus=_cpus(testbed, place), environment=environment)


def _trainer(testbed: Testbed, module: str, environment: Mapping[str, str]) -> Trainer:
    place = _link(testbed).trainer
    return Trainer(place.enter, _cpus(testbed, place), environment, f"{_HERE}.{module}")


def _path(folders: Sequence[str]) -> dict[str, str]:
    return {"PYTHONPATH": os.pathsep.join(folder for folder in folders if folder)}


def _files(folder: Path) -> list[str]:
    return sorted(map(str, folder.rglob("*.*")))
