"""Where payloads are made: in threads of the server, or in child processes that may crash."""

from __future__ import annotations

from abc import ABC, abstractmethod

from sophon.codec.codec import Payload
from sophon.codec.cut import Cut, make_payload
from sophon.pipeline import Key, Pipeline, Trace
from sophon.pipeline.probe import digests
from sophon.server.budget import Slot


class ChildLost(Exception):  # noqa: N818 - an event; it is answered with a smaller cut and never shown to a user
    """A child process died while it worked on a sample.

    Args:
        reason: The label under which it is counted.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Maker(ABC):
    """Runs ops and codecs."""

    @abstractmethod
    def make(
        self, slot: Slot, pipeline: Pipeline, data: bytes, key: Key, cut: Cut, trace: Trace | None = None
    ) -> Payload:
        """Return the payload of one sample; raise whatever decoders, codecs and ops raise, or `ChildLost`.

        If there is a trace, it receives the CPU seconds of each op and the size of the picture.
        """

    @abstractmethod
    def probe(self, pipeline: Pipeline) -> tuple[list[str], str]:
        """Return the digests of what the ops give here (see `pipeline.probe`), and why there are not more."""

    def close(self) -> None:  # noqa: B027 - threads of the server end with it
        """End whatever was started."""


class Threads(Maker):
    """Runs everything in this process: no copies, but no protection from an op or decoder that crashes either."""

    def make(
        self,
        slot: Slot,  # noqa: ARG002 - part of the contract
        pipeline: Pipeline,
        data: bytes,
        key: Key,
        cut: Cut,
        trace: Trace | None = None,
    ) -> Payload:
        """Run here."""
        return make_payload(pipeline, data, key, cut, trace)

    def probe(self, pipeline: Pipeline) -> tuple[list[str], str]:
        """Run here."""
        return digests(pipeline), ""
