"""What the server logs: connections, refusals and their reasons, and slow or broken samples.

Everything goes to the logger `sophon.server`; each record carries its facts as `fields`, for JSON output. A repeated
message appears at most once a minute, with its count, so that neither a file that is broken in every epoch nor a
stranger trying tokens fills a disk. No token and no payload ever appears here.

Concurrency: called by the threads of all requests.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Any
from urllib.parse import unquote

from sophon.errors import Error
from sophon.link.wire import WHOLE, Reply, Request

LOG = logging.getLogger("sophon.server")
SLOW_S = 2.0  # CPU seconds near storage: a hundred times what a photo takes
_AGAIN_S = 60.0  # before the same message is repeated
_MOST_KEYS = 4096  # recent messages that are remembered
# Reasons for sending a sample unprocessed that concern the whole node, not that sample.
_OF_THE_NODE = {
    "overload": "no core was available in time",
    "unknown_op": "an op of the pipeline is not known here, or not allowed",
}


class Journal:
    """The log of one server.

    Args:
        id_of: Returns the id of a sample, by which users know it.
        clock: Monotonic seconds.
    """

    def __init__(self, id_of: Callable[[str, int], str], clock: Callable[[], float] = time.monotonic) -> None:
        self._id_of = id_of
        self._clock = clock
        self._lock = threading.Lock()
        self._said: OrderedDict[tuple[object, ...], tuple[float, int]] = OrderedDict()

    def connected(self, peer: str, tenant: int, dataset: str, pipeline: str) -> None:
        """Log that a caller has opened a data set."""
        host = host_of(peer)
        who = f"{host} (token {tenant})" if tenant else host
        steps = f", with {pipeline}" if pipeline else ""
        fields = {"peer": host, "tenant": tenant, "dataset": dataset, "pipeline": pipeline}
        self._say(
            logging.INFO, "connected", f"{who} opened {dataset}{steps}", fields, key=(host, tenant, dataset, pipeline)
        )

    def refused(self, peer: str, error: Error | str) -> None:
        """Log that a call was rejected."""
        host, reason = host_of(peer), str(error)
        kind = type(error).__name__ if isinstance(error, Error) else "AccessError"
        fields = {"peer": host, "type": kind, "reason": reason}
        self._say(logging.WARNING, "refused", f"{host} was refused: {reason}", fields, key=(host, kind, reason[:80]))

    def sent(self, request: Request, replies: Iterable[Reply]) -> None:
        """Log which of the samples just sent are slow or broken."""
        for reply in replies:
            if reply.error is not None:
                self._broken(request, reply, str(reply.error))
            elif reply.reason in _OF_THE_NODE:
                fields = {"dataset": request.dataset, "reason": reply.reason}
                text = f"{request.dataset}: samples are sent raw: {_OF_THE_NODE[reply.reason]}"
                self._say(logging.WARNING, "smaller", text, fields, key=(request.dataset, reply.reason))
            elif reply.reason not in (None, WHOLE):
                self._broken(request, reply, f"ops failed here ({reply.reason}); the sample was sent raw")
            if reply.cpu_s > SLOW_S:
                name, about = self._about(request, reply)
                about["cpu_s"] = round(reply.cpu_s, 3)
                text = f"{name} is slow: {reply.cpu_s:.1f} s of CPU"
                self._say(logging.WARNING, "slow", text, about, key=(request.dataset, about["sample"]))

    def _broken(self, request: Request, reply: Reply, reason: str) -> None:
        name, fields = self._about(request, reply)
        fields["reason"] = reason
        self._say(logging.WARNING, "broken", f"{name}: {reason}", fields, key=(request.dataset, fields["sample"]))

    def _about(self, request: Request, reply: Reply) -> tuple[str, dict[str, Any]]:
        sample = request.samples[reply.position]
        name = self._id_of(request.dataset, sample)
        fields: dict[str, Any] = {"dataset": request.dataset, "sample": sample, "id": name}
        return f"sample {sample} of {request.dataset} ({name})", fields

    def _say(self, level: int, event: str, text: str, fields: dict[str, Any], key: tuple[object, ...]) -> None:
        now_s, key = self._clock(), (event, *key)
        with self._lock:
            said_s, unsaid = self._said.pop(key, (-_AGAIN_S, 0))
            is_due = now_s - said_s >= _AGAIN_S
            self._said[key] = (now_s, 0) if is_due else (said_s, unsaid + 1)
            while len(self._said) > _MOST_KEYS:
                self._said.popitem(last=False)
        if is_due:
            more = {"times": unsaid + 1} if unsaid else {}
            text = f"{text} ({unsaid + 1} times)" if unsaid else text
            LOG.log(level, "%s", text, extra={"event": event, "fields": fields | more})


def host_of(peer: str) -> str:
    """Return the address in gRPC's name of a peer, such as ``ipv4:10.0.0.3:41234``, without the port."""
    kind, _, place = unquote(peer).partition(":")
    return place.rpartition(":")[0].strip("[]") if kind in ("ipv4", "ipv6") else peer or "somebody"
