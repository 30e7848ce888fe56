"""Turns a request into replies at a relay: like `Executor`, but with a node in place of a store.

A relay holds no data. It describes a data set as its node does, to callers that the node allows to open it. For a
request, it asks the node for each sample at the first cut of the route, then runs the ops up to the second cut.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sophon.bundle import MOST_PARTS
from sophon.codec.cut import RAW, Cut
from sophon.codec.table import offered
from sophon.errors import AccessError, ConfigError, Error, ProtocolError
from sophon.link.answer import opened_from
from sophon.link.membership import dataset_of
from sophon.link.wire import PROTOCOLS, Request
from sophon.pipeline.probe import versions
from sophon.process.wall_clock import date_s
from sophon.server.access import EVERYTHING, Rights, Tokens
from sophon.server.budget import CpuBudget
from sophon.server.executor import Executor
from sophon.server.limits import Limits
from sophon.server.maker import Maker
from sophon.server.relay.door import Door
from sophon.server.relay.passed import PassedTokens
from sophon.server.relay.upstream import Upstream
from sophon.server.relay.work import RelayWork
from sophon.server.seats import Seat, Seats

_OF_THE_DATA = ("samples", "fingerprint", "classes", "has_labels", "columns", "fields", "columns_digest")
_OF_THE_NODE = ("max_cut", "digests", "versions", "cores", "codecs")


class RelayExecutor(Executor):
    """Answers requests for the samples of data sets that other nodes hold.

    Args:
        upstreams: Nodes by the name of the data set.
        budget: CPU for ops.
        patience_s: Longest time a sample may wait for a core, regardless of the request.
        limits: Limits for one request and one sample.
        maker: Where ops run.
        tokens: Tokens that nodes have accepted; None if the nodes require none.
        readers: Tokens that may read each data set: nodes of others are not shown them, nor asked. None if not known.
    """

    def __init__(
        self,
        upstreams: Mapping[str, Upstream],
        budget: CpuBudget,
        patience_s: float = 30.0,
        limits: Limits | None = None,
        maker: Maker | None = None,
        tokens: PassedTokens | None = None,
        readers: Tokens | None = None,
    ) -> None:
        super().__init__({}, budget, patience_s, limits, maker)
        self._upstreams = dict(upstreams)
        self._readers = readers
        self._door = None if tokens is None else Door(tokens, self._show)

    def admitted(self, rights: Rights, host: str) -> Rights:
        """Return the rights of a caller whose token a node accepts."""
        return rights if self._door is None else self._door.admitted(rights, host)

    def _show(self, token: str) -> None:
        """Show a token to one node after another, until one accepts it."""
        problem: Error = AccessError("this token gives access to no data set of this relay")
        for upstream in self._open_to(token).values():
            try:
                upstream.node(token)
            except AccessError as error:
                problem = error if isinstance(problem, AccessError) else problem
            except Error as error:
                problem = error  # this node might have accepted the token
            else:
                return
        raise problem

    def names(self, rights: Rights = EVERYTHING) -> list[str]:
        """Names of the data sets that a caller may read, as their nodes decide."""
        return [name for name in self._open_to(rights.token) if self._opens(name, rights)]

    def describe(self, message: dict[str, Any], rights: Rights = EVERYTHING) -> dict[str, Any]:
        """Answer a trainer that opens a data set: the node's description, and the ops that can run there and here."""
        upstream = self._upstream(str(message.get("dataset", "")), rights)
        spec = message.get("pipeline") if isinstance(message.get("pipeline"), dict) else None
        told = upstream.describe(rights.token, spec)
        opened = opened_from(told, upstream.address)  # bounded and checked before anything is passed on
        answer: dict[str, Any] = {name: told[name] for name in _OF_THE_DATA if name in told}
        answer |= {
            "dataset": str(message["dataset"]),
            "cores": self._budget.cores,
            "max_samples": min(self.limits.request_samples, opened.max_samples),
            "codecs": offered(),
            "protocols": list(PROTOCOLS),
            "versions": versions(),
            "time_s": date_s(),
            "relay": {name: told[name] for name in _OF_THE_NODE if name in told},
        }
        if spec is not None:
            answer |= self.tried(spec, rights.tenant)
        return answer

    def file_sizes(self, message: dict[str, Any], rights: Rights = EVERYTHING) -> NDArray[np.int64]:
        """Return the size of every file, as reported by the node."""
        upstream = self._upstream(str(message.get("dataset", "")), rights)
        names = message.get("fields", [])
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise ProtocolError(f"fields: expected a list of names, got {names!r:.80}")
        samples = opened_from(upstream.describe(rights.token, None), upstream.address).samples
        return upstream.with_node(rights.token, lambda node: node.file_sizes(samples, tuple(names[:MOST_PARTS])))

    def listing(self, message: dict[str, Any], rights: Rights = EVERYTHING) -> list[bytes]:
        """Return the node's listing of some of its samples."""
        upstream = self._upstream(str(message.get("dataset", "")), rights)
        start, fingerprint = message.get("start", 0), message.get("fingerprint")
        if isinstance(start, bool) or not isinstance(start, int) or start < 0 or not isinstance(fingerprint, str):
            raise ProtocolError(f"start: expected a number and a fingerprint, got {start!r:.80}")
        return upstream.with_node(rights.token, lambda node: node.piece(fingerprint, start))

    def replies(self, request: Request, rights: Rights = EVERYTHING, seat: Seat | None = None) -> RelayWork:  # type: ignore[override]  # same interface
        """Return one reply per sample, each with the CPU seconds spent by the node and the relay."""
        upstream = self._upstream(request.dataset, rights)
        self.check_versions(request)
        if len(request.samples) > self.limits.request_samples:
            raise ConfigError(
                f"the request is for {len(request.samples):,} samples; this relay accepts at most "
                f"{self.limits.request_samples:,}: ask for fewer at once, or raise --max-request-samples there"
            )
        pipeline, _ = self.known_part(request.pipeline, rights.tenant)
        # A request without a route does not know about relays, so as much work as possible is done here.
        firsts = request.firsts or tuple(cut if cut.k == 0 else RAW for cut in request.cuts)
        return RelayWork(
            self, upstream, rights.token, request, _asked(request, firsts), pipeline, seat or Seats(self.limits).enter()
        )

    def id_of(self, dataset: str, sample: int) -> str:  # noqa: ARG002 - a relay knows no ids
        """Return the name of a sample for the log."""
        return f"number {sample} at the node"

    def close(self) -> None:
        """Close the connections to all nodes."""
        for upstream in self._upstreams.values():
            upstream.close()

    def _open_to(self, token: str | None) -> dict[str, Upstream]:
        """Return the nodes that may be shown a token: others could keep it, or keep the caller waiting."""
        if self._readers is None:
            return self._upstreams
        try:
            rights = self._readers.rights_of(f"Bearer {token}")
        except AccessError:
            return {}
        return {name: node for name, node in self._upstreams.items() if rights.readable([dataset_of(name)])}

    def _opens(self, name: str, rights: Rights) -> bool:
        try:
            self._upstreams[name].describe(rights.token, None)
        except AccessError:
            return False
        return True

    def _upstream(self, name: str, rights: Rights) -> Upstream:
        found = self._open_to(rights.token).get(name)
        if found is not None:
            return found
        there_is = ", ".join(self.names(rights)) or "none"
        if rights.token is None:
            raise ConfigError(f"no data set {name[:80]!r} here; available: {there_is}")
        raise AccessError(f"this token does not give access to a data set {name[:80]!r}; it gives access to {there_is}")


def _asked(request: Request, firsts: tuple[Cut, ...]) -> Request:
    """Return the request to send to the node; the name of its data set is filled in later."""
    needs = request.node_versions if request.firsts and any(cut.k > 0 for cut in firsts) else ""
    return replace(request, cuts=firsts, firsts=(), versions=needs, node_versions="", in_order=False)
