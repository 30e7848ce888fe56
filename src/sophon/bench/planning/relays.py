"""`sophon bench relays`: a CPU-bound trainer, with and without relays.

FastFlow's case: the link is fast (loopback), the storage node has no core to spare, and the trainer and every relay
have a fraction of a core each, enforced by a cgroup quota. Each loader measures and plans on its own. Epochs take
turns, and each epoch is compared with the prediction of its plan; the digest of all batches must be the same.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from sophon.bench.harness import OnStep, nothing
from sophon.bench.rig import quota
from sophon.bench.rig.processes import Relay, Server, Trainer
from sophon.errors import ConfigError, Error
from sophon.process.scratch import scratch_folder
from sophon.store import open_store

_NAME = "train"
_CONSUMER: dict[str, Any] = {"kind": "stand-in", "samples_per_s": 4000.0, "interface": None}  # faster than any CPU here
_BATCH, _WORKERS = 16, 1
_LEAST = 4000  # samples in an epoch, so that planning and starting take a small part of it
_LEARNING = 2  # epochs before the timed ones, in which costs, links and relays are measured


def bench_relays(
    data: Path,
    relays: int = 2,
    trainer_cores: float = 0.4,
    relay_cores: float = 0.4,
    rounds: int = 3,
    on_step: OnStep = nothing,
) -> dict[str, Any]:
    """Return samples per second with and without relays.

    Args:
        data: Folder of photos.
        relays: Number of relays.
        trainer_cores: Share of a core that the trainer has.
        relay_cores: Share of a core that each relay has.
        rounds: Number of timed epochs per case.
        on_step: Called with the name of the next step.

    Returns:
        ``{"samples", "relays": {"0": {"per_s", "predicted_per_s", "off"}, "2": …}, "times", "epoch_s", "cuts", "cores",
        "sha256"}``: `times` is the ratio of the two rates, each the median over the rounds; `off` is the relative error
        of the prediction.

    Raises:
        ConfigError: This machine cannot limit a process to a share of a core.
        Error: The batches are not the same.
    """
    if quota.mechanism() is None:
        raise ConfigError("limiting a process to a share of a core needs a cgroup, root and the cpu controller")
    steps, count = iter(range(1, 1 << 30)), 2 * (rounds + _LEARNING + 2)
    told: dict[str, list[dict[str, Any]]] = {"0": [], str(relays): []}
    sums: dict[str, str] = {}
    with ExitStack() as stack:
        folder = stack.enter_context(repeated(data))
        node = stack.enter_context(Server({_NAME: folder}, 0))
        started = [stack.enter_context(Relay({_NAME: node.url(_NAME)}, relay_cores)) for _ in range(relays)]
        trainer = stack.enter_context(Trainer())
        urls = {"0": node.url(_NAME), str(relays): [node.url(_NAME), *(relay.url(_NAME) for relay in started)]}
        how: dict[str, Any] = {"recipe": "pil", "policy": "optimal", "batch_size": _BATCH, "workers": _WORKERS}
        samples = 0
        for name, url in urls.items():
            on_step(f"{name} relays: opening", next(steps), count)
            samples = trainer.do("open_recipe", name=name, url=url, seed=0, **how)
        # Limited only from now on: startup with a fraction of a core takes long.
        for process, cores in [(trainer, trainer_cores), *((relay, relay_cores) for relay in started)]:
            stack.enter_context(quota.Quota(cores, process.pid))
        for name in urls:
            on_step(f"{name} relays: digest", next(steps), count)
            sums[name] = trainer.do("digest", name=name, epoch=0)
        for epoch in range(1, _LEARNING + rounds + 1):
            for name in urls:
                on_step(f"{name} relays: epoch {epoch}", next(steps), count)
                told[name].append(trainer.do("epoch", name=name, epoch=epoch, **_CONSUMER))
        trainer.do("forget")
    if len(set(sums.values())) > 1:
        raise Error(f"the batches with relays differ from those without: {sums}")
    timed = {name: epochs[_LEARNING:] for name, epochs in told.items()}
    found: dict[str, dict[str, Any]] = {name: _summed(epochs, samples) for name, epochs in timed.items()}
    return {
        "samples": samples,
        "relays": found,
        "times": found[str(relays)]["per_s"] / found["0"]["per_s"],
        "epoch_s": {name: [epoch["epoch_s"] for epoch in epochs] for name, epochs in timed.items()},
        "predicted_s": {name: [epoch["predicted_s"] for epoch in epochs] for name, epochs in timed.items()},
        "cuts": {name: epochs[-1]["cuts"] for name, epochs in timed.items()},
        "cores": {"trainer": trainer_cores, "relay": relay_cores},
        "sha256": sums["0"],
    }


def _summed(epochs: list[dict[str, Any]], samples: int) -> dict[str, Any]:
    per_s = samples / statistics.median(epoch["epoch_s"] for epoch in epochs)
    predicted = [epoch["predicted_s"] for epoch in epochs if epoch["predicted_s"]]
    predicted_per_s = samples / statistics.median(predicted) if predicted else None
    off = None if predicted_per_s is None else per_s / predicted_per_s - 1
    return {"per_s": per_s, "predicted_per_s": predicted_per_s, "off": off}


@contextmanager
def repeated(data: Path, least: int = _LEAST) -> Iterator[Path]:
    """Yield a folder with links to the files of another folder, repeated until there are enough of them."""
    ids = open_store(data).manifest.ids.to_pylist()
    with scratch_folder("relays") as name:
        for copy in range(-(-least // max(len(ids), 1))):
            for sample in ids:
                link = Path(name, _NAME, f"{copy:03d}", sample)
                link.parent.mkdir(parents=True, exist_ok=True)
                link.symlink_to((data / sample).absolute())
        yield Path(name, _NAME)
