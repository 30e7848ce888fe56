"""The exception tree.

::

    sophon.Error
    ├── ConfigError            a wrong argument, spec or pipeline, detected before any sample is touched
    │   └── RankError          it is not known yet which of several training processes this is
    ├── ArtifactError          a saved file that is damaged or belongs to a different version or job
    ├── StoreError             a data set or sample that cannot be read
    ├── OpError                an op failed on one sample; carries op, position and sample
    ├── BudgetError            more samples are bad than the user allows
    ├── WorkerError            a worker process died
    ├── BatchTimeoutError      a batch did not arrive within the user's timeout; also a TimeoutError
    └── TransportError         something went wrong between the trainer and storage
        ├── UnavailableError   no storage node answered within the deadline; also a ConnectionError
        ├── RetryableError     one request failed, and may succeed later or elsewhere; loaders retry automatically
        │   └── UpstreamError  a relay works, but its node does not, or cannot be reached from the relay
        ├── AccessError        a token, certificate or permission that is missing or wrong
        └── ProtocolError      the other side sent something it must never send
            └── PayloadError   a payload that its codec cannot decode

Every message says what was found, what was expected and what to try.
"""

from __future__ import annotations

import re
import traceback


class Error(Exception):
    """Root of everything that sophon raises on purpose."""


class ConfigError(Error, ValueError):
    """A wrong argument, op spec or pipeline."""


class RankError(ConfigError):
    """It is not known yet which of several training processes this is."""


class ArtifactError(Error):
    """A saved file that cannot be used."""


class StoreError(Error):
    """A data set or sample that cannot be read."""


class OpError(Error):
    """An op failed on one sample.

    Ops know only what is wrong and what to try; the pipeline adds the op's name, its position and the sample and raises
    the error again, so that one line is enough to find the file.

    Args:
        problem: What was found and what was expected.
        remedy: What to try, as a full sentence.
        op: Name of the op.
        position: Index of the op in its pipeline.
        sample: Index of the sample in its data set.
    """

    def __init__(
        self,
        problem: str,
        *,
        remedy: str = "",
        op: str | None = None,
        position: int | None = None,
        sample: int | None = None,
    ) -> None:
        self.problem = problem
        self.remedy = remedy
        self.op = op
        self.position = position
        self.sample = sample
        super().__init__(self._text())

    def _text(self) -> str:
        where = []
        if self.sample is not None:
            where.append(f"sample {self.sample}")
        if self.op is not None:
            where.append(f"op {self.op}" if self.position is None else f"op {self.position} ({self.op})")
        head = ", ".join(where)
        text = f"{head}: {self.problem}" if head else self.problem
        return f"{text} {self.remedy}" if self.remedy else text

    def at(self, op: str, position: int, sample: int) -> OpError:
        """Return the same error with its location filled in."""
        return type(self)(self.problem, remedy=self.remedy, op=op, position=position, sample=sample)

    def __reduce__(self) -> tuple[object, ...]:
        # torch's DataLoader workers pickle exceptions; the default would drop the fields.
        return (_rebuild, (type(self), self.problem, self.remedy, self.op, self.position, self.sample))


def _rebuild(
    cls: type[OpError], problem: str, remedy: str, op: str | None, position: int | None, sample: int | None
) -> OpError:
    return cls(problem, remedy=remedy, op=op, position=position, sample=sample)


class BudgetError(Error):
    """More samples are bad than the user allows."""


class WorkerError(Error, RuntimeError):
    """A worker process died while it was working."""


class BatchTimeoutError(Error, RuntimeError, TimeoutError):
    """A batch did not arrive in time; also a RuntimeError, which is what torch's DataLoader raises."""


class TransportError(Error):
    """Something went wrong between the trainer and storage."""


class UnavailableError(TransportError, ConnectionError):
    """No storage node answered within the deadline, despite retries."""


class RetryableError(TransportError):
    """A request failed but may succeed later or on another node.

    Loaders retry automatically, and raise `UnavailableError` when they give up.
    """


class UpstreamError(RetryableError):
    """A relay answers, but the node behind it does not, or answers wrongly; others may still reach it."""


class AccessError(TransportError):
    """A token, certificate or permission is missing or wrong; asking again does not help."""


class ProtocolError(TransportError):
    """The other side sent something it must never send."""


class PayloadError(ProtocolError):
    """A payload that its codec cannot decode."""


_MOST_CAUSES = 100  # errors that caused each other could form a cycle
_NOTE = "traceback on the storage node:\n"


_UNSHOWN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def printable(text: str) -> str:
    """Return text from others in a form that is safe to show, with control and unencodable characters escaped.

    A name or message that contains escape sequences could clear a screen, hide lines or forge them. Line ends and tabs
    stay.
    """
    return _UNSHOWN.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def one_line(text: str) -> str:
    """Return text from others for a log, where every line is a record: line ends are escaped too."""
    return printable(text).replace("\n", "\\n").replace("\t", "\\t")


def with_remote_traceback(error: Error, text: str) -> Error:
    """Return an error with the storage node's traceback as a note, which Python prints below our own."""
    error.add_note(_NOTE + text)
    return error


def remote_traceback(error: BaseException) -> str | None:
    """Return the traceback on the storage node, if the error happened there."""
    notes = [note for note in getattr(error, "__notes__", ()) if note.startswith(_NOTE)]
    return notes[0].removeprefix(_NOTE) if notes else None


def forget_values(error: BaseException) -> None:
    """Free what the functions in an error's traceback worked on, which may be a large file; its lines are kept."""
    found: BaseException | None = error
    for _ in range(_MOST_CAUSES):
        if found is None:
            return
        traceback.clear_frames(found.__traceback__)
        found = found.__cause__ or found.__context__
