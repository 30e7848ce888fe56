"""Fetches substitutes for bad samples; `account.bad` decides which."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass

from sophon.errors import OpError, WorkerError, remote_traceback
from sophon.loader.account.bad import BadSample, BadSamples, row_of
from sophon.loader.account.stats import Stats
from sophon.loader.epoch.finishers import Finisher
from sophon.loader.epoch.finishing import Made
from sophon.loader.sources.samples import Samples, named
from sophon.pipeline import Key


@dataclass(frozen=True)
class Mending:
    """Fetches substitutes for bad samples.

    Args:
        samples: Source of the substitutes.
        bad: The policy for bad samples, and their record.
        stats: Counts to add to.
    """

    samples: Samples
    bad: BadSamples
    stats: Stats

    def mend(self, key: Key, error: Exception, finisher: Finisher) -> Made | None:
        """Return the substitute for a bad sample, or None to skip it; raise if that is the policy.

        Only now is the sample's name asked for: of the samples that fail, most may never be reported.

        Args:
            key: The bad sample, and its epoch.
            error: Why it is bad.
            finisher: Finishes a substitute.
        """
        epoch = int(key.epoch)
        name_of = functools.cache(self._name_of)  # it may have to be asked for over the link

        def get(other: int) -> Made:
            ((_, reply),) = self.samples.fetch(epoch, [other], self.stats)
            try:
                made = finisher.make(reply, Key(key.seed, epoch, other), None, wants_trace=False)
            except WorkerError as death:
                raise self.named_death(death, other) from None
            if made.error is not None:
                raise self._named(made.error, other, name_of)
            self.stats.add(finish_cpu_s=made.cpu_s)
            return made

        def row(bad: int, why: Exception) -> BadSample:
            return row_of(bad, epoch, why, name_of(bad))

        sample = self.sample_of(key)
        return self.bad.mend(sample, self._named(error, sample, name_of), len(self.samples), get, row)

    @property
    def may_raise(self) -> bool:
        """Whether the first bad sample ends the epoch."""
        return self.bad.policy == "raise"

    def sample_of(self, key: Key) -> int:
        """Return the index of the sample that a key belongs to; see `order.sampling.keys_of`."""
        return int(key.sample) % len(self.samples)

    def _named(self, error: Exception, sample: int, name_of: Callable[[int], str | None]) -> Exception:
        """Return a sample's error, with the name of its file if an op on this trainer raised it."""
        if isinstance(error, OpError) and remote_traceback(error) is None:
            return named(error, sample, name_of(sample))
        return error

    def _name_of(self, sample: int) -> str | None:
        return self.bad.name_of(sample) or self.samples.name_of(sample)

    def named_death(self, error: WorkerError, sample: int) -> WorkerError:
        """Return the error of a worker process that died, with the name of the file it was processing."""
        name = self.samples.name_of(sample)
        return error if name is None else WorkerError(f"{error} The sample is {name}.")
