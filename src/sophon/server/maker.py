"""Where payloads are made: in threads of the server, or in child processes that may crash."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TypeAlias

from sophon.codec.codec import Payload
from sophon.codec.cut import Cut, make_payload
from sophon.codec.route import Route, pass_on
from sophon.pipeline import Key, Pipeline, Trace
from sophon.pipeline.probe import digests
from sophon.server.tenants.slot import Slot


class ChildLost(Exception):  # noqa: N818 - an event; it is answered with a smaller cut and never shown to a user
    """A child process died while it worked on a sample.

    Args:
        reason: Label under which the loss is counted.
        had_begun: Whether the child had begun to work on the sample; if it died while starting, the sample is not to
            blame.
    """

    def __init__(self, reason: str, *, had_begun: bool = True) -> None:
        super().__init__(reason)
        self.reason = reason
        self.had_begun = had_begun


class NoSpace(Exception):  # noqa: N818 - as above
    """A payload is too large to be held."""


Claim: TypeAlias = Callable[[int], bool]  # called to reserve space for a number of bytes


def anything(_: int) -> bool:
    """Accept a payload of any size."""
    return True


class Maker(ABC):
    """Runs ops and codecs."""

    @abstractmethod
    def make(
        self,
        slot: Slot,
        pipeline: Pipeline,
        data: bytes,
        key: Key,
        cut: Cut | Route,
        trace: Trace | None = None,
        claim: Claim = anything,
    ) -> Payload:
        """Return the payload of one sample; raise whatever decoders, codecs and ops raise, or `ChildLost`.

        Only a relay passes a route; the data is then the payload at the route's first cut.

        A trace, if given, receives the CPU seconds of each op and the size of the picture. A payload for which `claim`
        finds no space is dropped where it was made, and `NoSpace` is raised.
        """

    @abstractmethod
    def probe(self, slot: Slot, pipeline: Pipeline) -> tuple[list[str], str]:
        """Return the digests of the ops' results here (see `pipeline.probe`), and why there are no more."""

    def close(self) -> None:  # noqa: B027 - threads of the server end with it
        """End all child processes."""


def claimed(payload: Payload, claim: Claim) -> Payload:
    """Return a payload, or raise `NoSpace` if there is no space for it."""
    if not claim(len(payload)):
        raise NoSpace(f"{len(payload):,} bytes")
    return payload


def made(pipeline: Pipeline, data: bytes, key: Key, cut: Cut | Route, trace: Trace | None = None) -> bytes:
    """Return the payload of one sample, made from its file, or from the payload at the first cut of a route."""
    if isinstance(cut, Route):
        return pass_on(pipeline, data, key, cut, trace)
    return make_payload(pipeline, data, key, cut, trace)


class Threads(Maker):
    """Runs everything in this process: no copies, but no protection from an op or decoder that crashes either."""

    def make(
        self,
        slot: Slot,  # noqa: ARG002 - part of the contract
        pipeline: Pipeline,
        data: bytes,
        key: Key,
        cut: Cut | Route,
        trace: Trace | None = None,
        claim: Claim = anything,
    ) -> Payload:
        """Run the op in this process."""
        return claimed(made(pipeline, data, key, cut, trace), claim)

    def probe(self, slot: Slot, pipeline: Pipeline) -> tuple[list[str], str]:  # noqa: ARG002 - part of the contract
        """Run the op in this process."""
        return digests(pipeline), ""
