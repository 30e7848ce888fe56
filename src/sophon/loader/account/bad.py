"""Bad samples: what to do with a sample that cannot be loaded, and a record of them.

A sample is bad if it cannot be read or an op fails on it. Problems with the link, the server or a setting are not a
sample's fault, and are always raised.

The substitute for a bad sample is the next good sample of the data set. It depends only on the bad sample, so batches
stay the same for any number of workers and ranks. In a folder the substitute usually has the same class.
"""

from __future__ import annotations

import json
import os
import threading
import traceback
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, TypeVar

from sophon.artifact import replacing
from sophon.errors import (
    ArtifactError,
    BudgetError,
    ConfigError,
    OpError,
    TransportError,
    WorkerError,
    remote_traceback,
)
from sophon.process.renewal import renew_after_fork

POLICIES = ("raise", "substitute", "skip")
DEFAULT_BUDGET = 0.01  # share of the samples; if more are bad, the cause is not a few damaged files
_FORMAT = "sophon bad samples 1"
_LONGEST_TEXT = 8000  # characters of a traceback to keep

_Result = TypeVar("_Result")


@dataclass(frozen=True)
class BadSample:
    """One sample that could not be loaded.

    Args:
        sample: Index of the sample in the data set.
        id: Id of the sample, which is the file's name, if known.
        epoch: The latest epoch in which the sample failed.
        op: The op that failed, if any.
        error: Type of the error.
        message: Text of the error.
        where: "storage" if the error occurred near the data, else "trainer".
        traceback: The traceback, as text.
        times: How often the sample failed.
    """

    sample: int
    id: str | None
    epoch: int
    op: str | None
    error: str
    message: str
    where: str
    traceback: str
    times: int = 1


RowOf = Callable[[int, Exception], BadSample]


class BadSamples:
    """What to do with bad samples, and a record of them: one row per sample, however often it failed.

    Args:
        policy: "raise", "substitute" or "skip".
        budget: How many samples may be bad before an error is raised: a number, or a share (at least one sample).
        count: Number of samples in the data set.
    """

    def __init__(self, policy: str = "raise", budget: float = DEFAULT_BUDGET, count: int = 0) -> None:
        if policy not in POLICIES:
            raise ConfigError(f"on_error: expected raise, substitute or skip, got {policy!r}")
        whole = isinstance(budget, int) and not isinstance(budget, bool) and budget >= 0
        if not (whole or (isinstance(budget, float) and 0 <= budget <= 1)):
            raise ConfigError(f"budget: expected a number of samples or a share in 0.0 … 1.0, got {budget!r}")
        self.policy = policy
        self.budget = budget
        self.most = int(budget) if whole else max(int(budget * count), 1)
        self._rows: dict[int, BadSample] = {}
        self.renew()
        renew_after_fork(self)

    def renew(self) -> None:
        """Replace the lock in a forked child."""
        self._lock = threading.RLock()

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[BadSample]:
        with self._lock:
            return iter(list(self._rows.values()))

    def name_of(self, sample: int) -> str | None:
        """Return the id of a bad sample in the record, if known."""
        row = self._rows.get(sample)
        return None if row is None else row.id

    def note(self, row: BadSample, error: BaseException | None = None) -> None:
        """Add a row to the record; raise `BudgetError` once there are more bad samples than allowed."""
        with self._lock:
            known = self._rows.get(row.sample)
            self._rows[row.sample] = replace(row, times=row.times + known.times) if known else row
            found = len(self._rows)
        if found > self.most:
            raise BudgetError(
                f"{found} bad samples exceed the budget of {self.budget!r}, which allows {self.most}; the last one: "
                f"{row.message} Check loader.bad_samples, repair or remove these files, or raise OnError(budget=…)."
            ) from error

    def mend(
        self, sample: int, error: Exception, count: int, get: Callable[[int], _Result], row_of: RowOf
    ) -> _Result | None:
        """Return the substitute for a bad sample, or None if it is skipped.

        Args:
            sample: The bad sample.
            error: Why it is bad.
            count: Number of samples in the data set.
            get: Returns the sample with a given index.
            row_of: Makes the row for a bad sample.

        Raises:
            BudgetError: There are too many bad samples.
            Exception: The given error, if the policy is "raise" or the error is not the sample's fault.
        """
        if self.policy == "raise" or not is_of_the_sample(error):
            raise error
        self.note(row_of(sample, error), error)
        if self.policy == "skip":
            return None
        for step in range(1, count):
            other = (sample + step) % count
            try:
                return get(other)
            except Exception as again:
                if not is_of_the_sample(again):
                    raise
                self.note(row_of(other, again), again)
        raise BudgetError(f"all {count:,} samples are bad; the first: {error}") from error

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the record as JSON lines, whole or not at all: a header line, then one line per sample."""
        target = Path(path)
        lines = [json.dumps({"format": _FORMAT, "policy": self.policy, "budget": self.budget})]
        lines += [json.dumps(asdict(row)) for row in sorted(self, key=lambda row: row.sample)]
        try:
            with replacing(target) as file:
                file.write("\n".join([*lines, ""]).encode())
        except OSError as error:
            raise ArtifactError(f"{target}: cannot be written ({error}); choose a folder that is writable") from error

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> BadSamples:
        """Return a saved record."""
        try:
            head, *lines = Path(path).read_text(encoding="utf-8").splitlines()
            header = json.loads(head)
            if header.get("format") != _FORMAT:
                raise ValueError(f"expected {_FORMAT!r}, got {header.get('format')!r:.80}")
            made = cls(header["policy"], header["budget"])
            names = {field.name for field in fields(BadSample)}
            for line in lines:
                row = BadSample(**{name: value for name, value in json.loads(line).items() if name in names})
                made._rows[row.sample] = row
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            raise ArtifactError(f"{path}: not a record of bad samples: {error}") from error
        return made

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_lock"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.renew()
        renew_after_fork(self)


def is_of_the_sample(error: BaseException) -> bool:
    """Return whether an error is the fault of the sample rather than of the link, a setting or the machine."""
    if isinstance(error, OpError):
        return not isinstance(error.__cause__, MemoryError)
    return not isinstance(error, TransportError | ConfigError | BudgetError | WorkerError | MemoryError)


def row_of(sample: int, epoch: int, error: Exception, name: str | None) -> BadSample:
    """Return the row for a bad sample."""
    there = remote_traceback(error)
    text = there or "".join(traceback.format_exception(error))
    return BadSample(
        sample=sample,
        id=name,
        epoch=epoch,
        op=error.op if isinstance(error, OpError) else None,
        error=type(error).__name__,
        message=str(error)[:_LONGEST_TEXT],
        where="storage" if there is not None else "trainer",
        traceback=text[-_LONGEST_TEXT:],
    )
