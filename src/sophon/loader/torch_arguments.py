"""torch's own arguments, with torch's names, order, defaults and meanings."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from sophon.errors import ConfigError
from sophon.loader.options import Workers, at_least
from sophon.loader.torch_import import torch

_POSITIONAL = 12  # torch's positional arguments after the data set; the others are keyword-only there too


@dataclass(frozen=True)
class TorchArguments:
    """The arguments of torch's DataLoader, in its order; see there for their meanings."""

    batch_size: int | None = 1
    shuffle: bool | None = None
    sampler: Iterable[Any] | None = None
    batch_sampler: Iterable[Any] | None = None
    num_workers: int | str | Workers | None = None
    collate_fn: Callable[[list[Any]], Any] | None = None
    pin_memory: bool = False
    drop_last: bool = False
    timeout: float = 0
    worker_init_fn: Callable[[int], Any] | None = None
    multiprocessing_context: Any = None
    generator: Any = None
    prefetch_factor: int | None = None
    persistent_workers: bool = False
    pin_memory_device: str = ""
    in_order: bool = True

    def with_positional(self, values: Sequence[Any]) -> TorchArguments:
        """Return the arguments, including those given by position in torch's order."""
        if len(values) > _POSITIONAL:
            raise TypeError(f"expected at most {_POSITIONAL} arguments after the data set, got {len(values)}")
        names = [field.name for field in fields(self)][: len(values)]
        for field in fields(self)[: len(values)]:
            if getattr(self, field.name) is not field.default:
                raise TypeError(f"got multiple values for argument {field.name!r}")
        return replace(self, **dict(zip(names, values, strict=True)))

    def check(self) -> None:
        """Raise what torch raises for impossible combinations: a `ValueError` that says why."""
        if self.batch_sampler is not None:
            if self.batch_size != 1 or self.shuffle or self.sampler is not None or self.drop_last:
                raise ConfigError("batch_sampler determines batch_size, shuffle, sampler and drop_last; leave them out")
        elif self.batch_size is None:
            if self.drop_last:
                raise ConfigError("drop_last: with batch_size=None there are no batches; leave one of them out")
        else:
            at_least("batch_size", self.batch_size, 1)
        if self.sampler is not None and self.shuffle:
            raise ConfigError("sampler determines the order; leave out shuffle")
        self._check_workers()
        if isinstance(self.timeout, bool) or not isinstance(self.timeout, int | float) or not self.timeout >= 0:
            raise ConfigError(f"timeout: expected seconds of at least 0, got {self.timeout!r}")
        if self.generator is not None and not (torch and isinstance(self.generator, torch.Generator)):
            raise ConfigError(f"generator: expected a torch.Generator, got {self.generator!r}")
        for name in ("collate_fn", "worker_init_fn"):
            if getattr(self, name) is not None and not callable(getattr(self, name)):
                raise ConfigError(f"{name}: expected a function, got {getattr(self, name)!r}")

    def _check_workers(self) -> None:
        """Raise for arguments that need workers if there are none."""
        number = self.num_workers.number if isinstance(self.num_workers, Workers) else self.num_workers
        if self.prefetch_factor is not None:
            at_least("prefetch_factor", self.prefetch_factor, 1)
        if number != 0:
            return
        asked = {
            "prefetch_factor": self.prefetch_factor is not None,
            "persistent_workers": self.persistent_workers,
            "multiprocessing_context": self.multiprocessing_context is not None,
            "timeout": self.timeout != 0,
        }
        for name, is_asked in asked.items():
            if is_asked:
                raise ConfigError(f"{name} needs workers; use num_workers of at least 1, or leave it out")
