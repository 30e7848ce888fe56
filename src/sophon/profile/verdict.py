"""Verdict: which of consumer, link, store, storage CPU and trainer CPU limits training, and by how much."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from sophon.errors import ConfigError
from sophon.units import format_rate

_EVEN = 1.1  # two rates closer than this count as equal


@dataclass(frozen=True)
class Verdict:
    """Samples per second of each part on its own.

    Args:
        consumer_per_s: The training loop: its step and, in a loader, making batches; infinite if unknown.
        io_per_s: Fetching raw bytes; infinite if there is no link.
        cpu_per_s: Preprocessing raw bytes.
        store_per_s: Reading raw bytes from the store; infinite if it never was the bottleneck.
        storage_per_s: Cutting samples near storage; infinite if that never was the bottleneck.
    """

    consumer_per_s: float
    io_per_s: float
    cpu_per_s: float
    store_per_s: float = math.inf
    storage_per_s: float = math.inf

    def __post_init__(self) -> None:
        for name in ("consumer_per_s", "io_per_s", "cpu_per_s", "store_per_s", "storage_per_s"):
            rate = getattr(self, name)
            if not rate > 0:
                raise ConfigError(f"{name} is {rate}, expected a rate above zero; measure at least one batch")

    @property
    def bound(self) -> str:
        """The bottleneck: "GPU-bound", "I/O-bound" (the link), "store-bound", "storage-CPU-bound" or "CPU-bound"."""
        return f"{self._ranked[0][0]}-bound"

    @property
    def samples_per_s(self) -> float:
        """The rate of all parts together when they overlap, which is the rate of the slowest."""
        return self._ranked[0][1]

    @property
    def factor(self) -> float:
        """How many times as fast as the slowest part the next slowest is."""
        return self._ranked[1][1] / self._ranked[0][1]

    @property
    def io_stall(self) -> float:
        """Share of the time that the consumer would wait for the link if preprocessing were free."""
        return max(0.0, 1 - self.io_per_s / self.consumer_per_s) if math.isfinite(self.consumer_per_s) else 0.0

    @property
    def cpu_stall(self) -> float:
        """Share of the time that the consumer would wait for preprocessing if the link were free."""
        return max(0.0, 1 - self.cpu_per_s / self.consumer_per_s) if math.isfinite(self.consumer_per_s) else 0.0

    @property
    def _rates(self) -> dict[str, float]:
        rates = {"GPU": self.consumer_per_s, "I/O": self.io_per_s, "CPU": self.cpu_per_s}
        return {**rates, "store": self.store_per_s, "storage-CPU": self.storage_per_s}

    @property
    def _ranked(self) -> list[tuple[str, float]]:
        return sorted(self._rates.items(), key=lambda item: item[1])

    @property
    def slowest(self) -> str:
        """The bottleneck, in words: "training loop", "link", "store", "storage node's CPU" or "trainer's CPU"."""
        return _WORDS[self._ranked[0][0]]

    def rates(self) -> str:
        """Return the rate of each part, in words; without the link if there is none, or none that was measured."""
        shown = self._shown()
        if not math.isfinite(self.io_per_s):
            del shown["I/O"]
        return ", ".join(f"{_WORDS[part]} {rate}" for part, rate in shown.items())

    def _shown(self) -> dict[str, str]:
        """Return the rate of each part; parts near storage that were never the bottleneck are left out."""
        rates = {part: rate for part, rate in self._rates.items() if part in _ALWAYS or math.isfinite(rate)}
        missing = {"GPU": "not measured", "I/O": "none", "CPU": "not measured"}
        return {part: format_rate(rate) if math.isfinite(rate) else missing[part] for part, rate in rates.items()}

    def explain(self) -> str:
        """Return the verdict in words, with the likely effect of offloading."""
        (slowest, rate), (second, next_rate), *_ = self._ranked
        lines = [", ".join(f"{part} {shown}" for part, shown in self._shown().items()) + "."]
        if math.isfinite(self.consumer_per_s):
            lines.append(
                f"On its own, the link would stall the consumer {self.io_stall:.0%} of the time, preprocessing "
                f"{self.cpu_stall:.0%}."
            )
        if math.isfinite(next_rate) and next_rate / rate < _EVEN:
            lines.append(f"{slowest}-bound, but {second} is nearly as slow.")
        else:
            lines.append(f"{slowest}-bound: {second} could go {next_rate / rate:.1f} times as fast.")
        lines.append(_ADVICE[slowest])
        return "\n".join(lines)

    def to_json(self) -> dict[str, Any]:
        """Return the verdict as a JSON object; unknown values are null."""
        return {
            "gpu_per_s": _known(self.consumer_per_s),
            "io_per_s": _known(self.io_per_s),
            "cpu_per_s": _known(self.cpu_per_s),
            "store_per_s": _known(self.store_per_s),
            "storage_per_s": _known(self.storage_per_s),
            "io_stall": self.io_stall,
            "cpu_stall": self.cpu_stall,
            "verdict": self.bound,
            "factor": self.factor,
        }


def _known(rate: float) -> float | None:
    return rate if math.isfinite(rate) else None


_WORDS = {
    "GPU": "training loop",
    "I/O": "link",
    "CPU": "trainer's CPU",
    "store": "store",
    "storage-CPU": "storage node's CPU",
}
_ALWAYS = ("GPU", "I/O", "CPU")
_ADVICE = {
    "GPU": "Offloading would not help: the link and the trainer's CPUs keep up with the training loop. Its time "
    "includes the training step, making batches and your own steps.",
    "I/O": "Offloading helps: policy 'optimal' sends fewer bytes where storage has CPU to spare.",
    "store": "Offloading would not help: the store is the limit, whatever is sent. A faster disk, fewer and larger "
    "files (tar shards), or a second node with a copy would help.",
    "storage-CPU": "Too much is offloaded: ops and codecs near storage take longer than anything else. Give the "
    "storage node more cores, or use policy 'optimal', which cuts only as many samples as its cores keep up with.",
    "CPU": "Offloading helps if storage has cores to spare: policy 'optimal' moves ops there. If it "
    "has none, relays (`sophon relay`) add theirs. While cores are idle here, more workers help too.",
}
