"""What there is to spend: link, cores near storage, cores at the trainer, and what the consumer takes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from numbers import Real
from typing import Any

from sophon.errors import ConfigError
from sophon.units import format_bandwidth, format_rate


@dataclass(frozen=True)
class Resources:
    """What an epoch may use.

    Args:
        link_bytes_per_s: Bytes per second from storage to trainer.
        storage_cores: Cores near storage; 0 means that nothing which costs CPU there can be asked for.
        trainer_cores: Cores that preprocess at the trainer.
        consumer_samples_per_s: Samples per second that the training step takes; infinite when unknown, and
            then the consumer never binds.
    """

    link_bytes_per_s: float
    storage_cores: float
    trainer_cores: float
    consumer_samples_per_s: float = math.inf

    def __post_init__(self) -> None:
        for name, remedy in _REMEDIES.items():
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, Real):
                raise ConfigError(f"{name} is {value!r}; it must be a number: {remedy}.")
            number = float(value)
            low_enough = number >= 0 if name == "storage_cores" else number > 0
            high_enough = number <= math.inf if name == "consumer_samples_per_s" else number < math.inf
            if not (low_enough and high_enough):  # also catches NaN
                raise ConfigError(f"{name} is {value}; {remedy}.")
            object.__setattr__(self, name, number)

    def with_storage_cores(self, cores: float) -> Resources:
        """Return the same resources with another number of storage cores."""
        return replace(self, storage_cores=cores)

    def to_json(self) -> dict[str, float | None]:
        """Return the resources as a JSON object; an unknown consumer is null."""
        return {name: _finite(getattr(self, name)) for name in _REMEDIES}

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Resources:
        """Return the resources that `to_json` described."""
        if not isinstance(fields, Mapping) or set(fields) != set(_REMEDIES):
            raise ConfigError(f"resources {str(fields)[:80]} were found where {sorted(_REMEDIES)} were expected.")
        values = dict(fields)
        if values["consumer_samples_per_s"] is None:
            values["consumer_samples_per_s"] = math.inf
        return cls(**values)

    def __str__(self) -> str:
        return (
            f"link {format_bandwidth(self.link_bytes_per_s)}, {self.storage_cores:g} storage cores, "
            f"{self.trainer_cores:g} trainer cores, consumer {format_rate(self.consumer_samples_per_s)}"
        )


_REMEDIES = {
    "link_bytes_per_s": "give the link's bytes per second, more than zero (--link 500mbit)",
    "storage_cores": "give the cores near storage, zero or more (--storage-cores 2)",
    "trainer_cores": "give the cores that preprocess at the trainer, more than zero (--trainer-cores 8)",
    "consumer_samples_per_s": "give the samples per second that training takes, more than zero "
    "(--consumer 1200/s), or leave it out when unknown",
}


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
