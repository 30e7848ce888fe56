"""A transport that checks what a node sends.

Raw samples are compared with the digest of their file. Processed samples are compared with the result computed from the
file itself, which is requested and compared with its digest first. That costs the file's bytes on the link and its ops
on the trainer, so only a share of the samples is checked unless the user wants all. The node cannot know which ones.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from os import PathLike

import numpy as np
from numpy.typing import NDArray

from sophon.codec.codec import Payload
from sophon.codec.cut import RAW, finish_payload, is_exact, make_payload
from sophon.codec.targets import taken_apart
from sophon.errors import ConfigError, OpError, ProtocolError
from sophon.link.listing import Listing
from sophon.link.transport import Fetch, Opened, Transport
from sophon.link.wire import Reply, Request, StreamClock
from sophon.pipeline import Pipeline
from sophon.pipeline.probe import bits_of
from sophon.pipeline.trace import Trace
from sophon.store.digests import Digests

_SHARES = {"sampled": (1 / 32, 1 / 1024), "all": (1.0, 1.0)}  # share of raw files, and of processed samples


@dataclass(frozen=True)
class Verify:
    """How replies from nodes are checked.

    Args:
        digests: File of digests, made with ``sophon index --digests FILE`` where the data are trusted.
        samples: Which samples are checked: "sampled", one in 32 raw files and one in 1,024 processed samples, or "all".
    """

    digests: str | PathLike[str]
    samples: str = "sampled"

    def __post_init__(self) -> None:
        if self.samples not in _SHARES:
            raise ConfigError(f"verify: expected sampled or all, got {self.samples!r}")


class VerifiedTransport(Transport):
    """A transport whose replies are checked.

    Args:
        inner: Source of the samples.
        digests: Digests of their files.
        samples: Which samples are checked.
        pipeline: The pipeline that they go through; a request says whether targets follow the picture.
    """

    def __init__(self, inner: Transport, digests: Digests, samples: str, pipeline: Pipeline) -> None:
        self.inner = inner
        self.address = inner.address
        self.is_remote = inner.is_remote
        self.digests = digests
        self._pipelines = {False: pipeline, True: pipeline.along([])}  # by whether targets follow the picture
        self.shares = _SHARES[samples]
        self._random = random.SystemRandom()
        # Replies until the next one that is checked, of raw files and of processed samples. Drawing the gaps costs a
        # random number per check, not per reply. An update lost between threads only moves a check.
        self._gaps = [self._gap(share) for share in self.shares]

    def open(self, pipeline: Pipeline) -> Opened:
        """Open the data set through the wrapped transport."""
        return self.inner.open(pipeline)

    def file_sizes(self, samples: int, fields: tuple[str, ...] = ()) -> NDArray[np.int64] | None:
        """Return the file sizes from the wrapped transport."""
        return self.inner.file_sizes(samples, fields)

    def listing(self, opened: Opened) -> Listing | None:
        """Return the listing from the wrapped transport."""
        return self.inner.listing(opened)

    def stamp(self, sample: int) -> str:
        """Return the stamp of a sample's file."""
        return self.inner.stamp(sample)

    def fetch(self, request: Request, timeout_s: float) -> Fetch:
        """Fetch through the wrapped transport, and check the replies."""
        if request.fields:
            raise ConfigError("verify: samples with several fields cannot be checked; leave it out")
        return _VerifiedFetch(self, request, timeout_s)

    def close(self) -> None:
        """Close the wrapped transport."""
        self.inner.close()

    def check(self, reply: Reply, request: Request, timeout_s: float) -> None:
        """Raise `ProtocolError` if a reply is selected for checking and is wrong."""
        if reply.error is not None or not self._is_chosen(0 if reply.cut == RAW else 1):
            return
        data = reply.payload if reply.cut == RAW else self._file(request, reply.position, timeout_s)
        # A repeated sample in an epoch has a larger key: its index plus the number of samples.
        sample = int(request.key(reply.position).sample) % max(1, len(self.digests))
        problem = self.digests.problem(sample, data, reply.label)
        if problem is None and reply.cut != RAW and not self._is_made_of(reply, data, request):
            problem = f"{reply.cut}, which does not match its file"
        if problem is not None:
            raise ProtocolError(f"{self.address} lied about sample {sample}: it sent {problem}")

    def _is_chosen(self, kind: int) -> bool:
        left = self._gaps[kind]
        self._gaps[kind] = self._gap(self.shares[kind]) if left <= 0 else left - 1
        return left <= 0

    def _gap(self, share: float) -> int:
        """Draw how many replies to let pass before the next check, as if each were chosen on its own."""
        return 0 if share >= 1 else int(math.log(1 - self._random.random()) / math.log(1 - share))

    def _file(self, request: Request, position: int, timeout_s: float) -> bytes:
        keys = (request.keys[position],) if request.keys else ()
        alone = replace(request, samples=(request.samples[position],), cuts=(RAW,), keys=keys, columns=())
        alone = replace(alone, firsts=(), node_versions="")  # a relay is asked like a node
        for reply in self.inner.fetch(alone, timeout_s):
            if reply.error is not None:
                raise reply.error
            return bytes(reply.payload)
        raise ProtocolError(f"{self.address} did not send the file of a sample that it had processed")

    def _is_made_of(self, reply: Reply, data: Payload, request: Request) -> bool:
        """Return whether the remaining ops give the same bits for the reply as for the file."""
        pipeline = self._pipelines["fields" in request.pipeline]
        key, trace = request.key(reply.position), Trace(len(pipeline))
        # What is drawn from columns, such as boxes, is drawn on the trainer.
        stop = min(pipeline.first_call, pipeline.drawable)
        payload, size = _picture(pipeline, reply.payload)
        theirs = finish_payload(pipeline, payload, key, reply.cut, stop)
        try:
            if is_exact(reply.cut):
                ours = finish_payload(pipeline, data, key, RAW, stop, None, trace)
            else:
                made, _ = _picture(pipeline, make_payload(pipeline, bytes(data), key, reply.cut, trace))
                ours = finish_payload(pipeline, made, key, reply.cut, stop)
        except OpError:
            return False  # an honest node could not have processed it either
        # Only who decodes the file itself can do without its size.
        is_sized = size in (None, trace.size) or (size == (0, 0) and reply.cut.k == 0)
        return is_sized and bits_of(theirs) == bits_of(ours)


def _picture(pipeline: Pipeline, payload: Payload) -> tuple[Payload, tuple[int, int] | None]:
    """Return the payload of a picture, and its size if that comes along, because targets follow it."""
    if not pipeline.is_joint:
        return payload, None
    picture, size, _ = taken_apart(pipeline, payload, is_raw=False)
    return picture, size


class _VerifiedFetch(Fetch):
    def __init__(self, transport: VerifiedTransport, request: Request, timeout_s: float) -> None:
        self._transport = transport
        self._request = request
        self._timeout_s = timeout_s
        self._fetch = transport.inner.fetch(request, timeout_s)

    def __iter__(self) -> Iterator[Reply]:
        for reply in self._fetch:
            self._transport.check(reply, self._request, self._timeout_s)
            yield reply

    @property
    def clock(self) -> StreamClock:  # type: ignore[override]  # that of the inner fetch
        """How the other side has spent its time."""
        return self._fetch.clock

    @property
    def heard_s(self) -> float:
        """When the other side last gave a sign of life."""
        return self._fetch.heard_s

    def cancel(self) -> None:
        """Cancel the fetch."""
        self._fetch.cancel()
