"""One request in progress at a relay: samples arrive from a node, are processed, and go on to the trainer.

A separate thread receives the node's replies and hands each to the CPU budget, or straight to the stream if there is
nothing to do. When the relay holds as many samples as the limit allows, the thread stops receiving, and the node's
stream stalls until the trainer reads on.

Invariant 3 holds here too. If a relay cannot run the ops, it answers with the node's payload at the node's cut.

A relay reports all CPU seconds that it spends on a sample: those of the ops, and those of the two threads that receive
and send it. A plan based on the ops alone would give relays more work than they can do.

Concurrency: one thread iterates, one receives the node's replies, and the budget's threads run `RelayWork._process`.
They communicate through one queue.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, replace
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING

from sophon.bundle import divided, pack
from sophon.codec.codec import Payload
from sophon.codec.cut import RAW, Cut, check_cut
from sophon.codec.route import Route, can_follow
from sophon.codec.window.refusal import WholeNeeded
from sophon.errors import ConfigError, Error, RetryableError, UpstreamError
from sophon.link.transport import Fetch
from sophon.link.wire import WHOLE, Reply, Request, StreamClock
from sophon.pipeline import Pipeline, Trace
from sophon.server.maker import ChildLost, NoSpace
from sophon.server.relay.upstream import Upstream, told_of
from sophon.server.seats import Seat
from sophon.server.tenants.slot import Slot
from sophon.server.work import Space

if TYPE_CHECKING:
    from sophon.server.relay.executor import RelayExecutor

_FETCH_S = 24 * 3600.0  # a hanging stream is ended by the silence check, an unwanted one by the trainer
_LOOK_S = 0.2  # between two checks for room, or for a trainer that has left

Task = Future[tuple[Reply, float]]


@dataclass(frozen=True)
class _End:
    """The node has sent its last reply, or failed."""

    error: Error | None = None


class RelayWork:
    """The samples of one request; iterating processes them.

    Args:
        executor: Provides the CPU budget and the limits.
        upstream: Where the samples come from.
        token: The trainer's token.
        request: The trainer's request.
        asked: The request sent to the node.
        pipeline: The part of the pipeline that can run here; None if nothing can.
        seat: Limits what the request may hold.
    """

    def __init__(
        self,
        executor: RelayExecutor,
        upstream: Upstream,
        token: str | None,
        request: Request,
        asked: Request,
        pipeline: Pipeline | None,
        seat: Seat,
    ) -> None:
        self._executor = executor
        self._request = request
        self._asked = asked
        self._pipeline = pipeline
        self._seat = seat
        self._upstream = upstream
        self._number, node = upstream.node(token)
        self._fetch: Fetch = node.fetch(replace(asked, dataset=node.dataset), _FETCH_S)
        self._lock = threading.RLock()  # reentrant: the garbage collector may close a dropped stream at any moment
        self._tasks: set[Task] = set()
        self._owed = set(range(len(request.samples)))  # samples that the node has not sent yet
        self._left = len(request.samples)  # samples not yielded yet
        self._is_closed = False
        self._room = threading.Semaphore(executor.lookahead)
        self._ended: SimpleQueue[Reply | Task | _End] = SimpleQueue()
        self._clock = StreamClock()
        self._early: dict[int, Reply] = {}
        self._received_s: dict[int, float] = {}  # CPU seconds for receiving each sample

    @property
    def clock(self) -> StreamClock:
        """Time spent so far waiting for ops here, and for the node."""
        return self._clock

    def __iter__(self) -> Iterator[Reply]:
        return (reply for reply in self.pulse(lambda: None) if reply is not None)

    def pulse(
        self,
        patience_s: Callable[[], float | None],
        run_bytes: Callable[[int], float] | None = None,  # noqa: ARG002 - samples from a node do not come in runs
    ) -> Iterator[Reply | None]:
        """Yield the replies, and None whenever there is none yet; see `server.work.Work.pulse`."""
        threading.Thread(target=self._bring, name="sophon-relay", daemon=True).start()
        turn = 0
        begun_s = time.thread_time()
        try:
            while self._left:
                reply = self._next(patience_s())
                if reply is not None:  # includes sending the replies before it, which the caller does in this thread
                    now_s = time.thread_time()
                    self._charge(reply, now_s - begun_s)
                    begun_s = now_s
                if reply is None or not self._request.in_order:
                    yield reply
                    continue
                self._early[reply.position] = reply
                while turn in self._early:
                    yield self._early.pop(turn)
                    turn += 1
        finally:  # also if the stream is abandoned halfway
            self._close()

    def _close(self) -> None:
        self._is_closed = True
        self._fetch.cancel()
        with self._lock:
            tasks = list(self._tasks)
        self._executor.withdraw(tasks)

    # --- in the thread that receives the node's replies ---------------------------------------------------------------

    def _bring(self) -> None:
        end = _End()
        begun_s = time.thread_time()
        try:
            for reply in self._fetch:
                self._check_size(len(reply.payload))
                if not self._wait_for_room(len(reply.payload)):
                    return
                now_s = time.thread_time()
                self._received_s[reply.position] = now_s - begun_s
                begun_s = now_s
                self._came(reply)
                del reply  # the reply would keep a record batch alive while nothing arrives
        except Error as error:
            if isinstance(error, RetryableError):
                self._upstream.failed(self._number)
            end = _End(told_of(self._upstream.addresses[self._number], error))
        except Exception as error:  # noqa: BLE001 - raised again in the thread that iterates: the request ends with it
            end = _End(UpstreamError(f"the reply from {self._upstream.address} cannot be read: {error!r:.200}"))
        self._ended.put(end)

    def _check_size(self, size_bytes: int) -> None:
        if size_bytes > self._seat.largest_bytes:  # there would never be space for it
            raise ConfigError(
                f"a sample of {size_bytes:,} bytes, and this relay holds {self._seat.largest_bytes:,} for one tenant "
                "at most; raise --max-in-flight there"
            )

    def _wait_for_room(self, size_bytes: int) -> bool:
        """Wait until one more sample may be held; return whether the trainer still wants it."""
        while not self._room.acquire(timeout=_LOOK_S):
            if self._is_closed:
                return False
        while not self._seat.has_space(size_bytes) and not self._is_closed:
            self._seat.wait(_LOOK_S)
        if not self._is_closed:
            self._seat.hold(size_bytes)
        return not self._is_closed

    def _came(self, reply: Reply) -> None:
        """Pass a sample on: to the budget if there is something to do, otherwise to the stream."""
        position = reply.position
        if position not in self._owed:
            raise UpstreamError(f"{self._upstream.address} has sent sample {position} of a request twice")
        self._owed.discard(position)
        self._clock.reads += 1
        self._clock.read_bytes += len(reply.payload)
        cut = self._request.cuts[position]
        if reply.error is not None or reply.cut == cut:
            self._ended.put(self._as_it_is(reply))
        elif not self._can_make(reply.cut, cut):
            self._ended.put(self._smaller(reply, "unknown_op"))
        else:
            self._submit(reply, cut)

    def _can_make(self, first: Cut, cut: Cut) -> bool:
        try:
            if self._pipeline is None:
                return False
            check_cut(self._pipeline, first)
            check_cut(self._pipeline, cut)
        except ConfigError:
            return False
        return can_follow(self._pipeline, first, cut)

    def _submit(self, reply: Reply, cut: Cut) -> None:
        with self._lock:
            if self._is_closed:
                return

            def process(slot: Slot) -> Reply:
                return self._process(slot, reply, cut)

            task = self._executor.submit(process, self._request.patience_s, self._seat.tenant)
            if task is not None:
                self._tasks.add(task)
        if task is None:
            self._ended.put(self._smaller(reply, "overload"))
        else:
            task.add_done_callback(self._ended.put)

    # --- taking results -----------------------------------------------------------------------------------------------

    def _next(self, timeout_s: float | None) -> Reply | None:
        """Return the next result, or None if there is none in time."""
        start_s = time.monotonic()
        computing = bool(self._tasks)
        try:
            ended = self._ended.get(timeout=timeout_s)
        except Empty:
            self._waited(start_s, computing)
            return None
        self._waited(start_s, computing and isinstance(ended, Future))
        if isinstance(ended, _End):
            if ended.error is not None:
                raise ended.error
            if self._owed:
                raise UpstreamError(
                    f"this relay is working, but its node {self._upstream.address} ended {len(self._owed)} samples "
                    "early"
                )
            return None
        self._left -= 1
        self._room.release()
        return self._result(ended) if isinstance(ended, Future) else ended

    def _result(self, task: Task) -> Reply:
        with self._lock:
            self._tasks.discard(task)
        if task.cancelled():  # the budget was closed in the meantime
            raise RetryableError("this relay is shutting down")
        reply, cpu_s = task.result()
        self._charge(reply, cpu_s)
        return reply

    def _charge(self, reply: Reply, cpu_s: float) -> None:
        """Add CPU seconds spent here to those that a reply reports."""
        cpu_s = max(cpu_s, 0.0) + self._received_s.pop(reply.position, 0.0)
        if self._request.firsts:
            reply.relay_s += cpu_s
        else:  # without a route, the trainer expects a single cost
            reply.cpu_s += cpu_s

    def _waited(self, start_s: float, computing: bool) -> None:
        waited_s = time.monotonic() - start_s
        self._clock.computing_s += waited_s if computing else 0.0
        self._clock.reading_s += 0.0 if computing else waited_s
        self._clock.read_s += 0.0 if computing else waited_s

    # --- making replies -----------------------------------------------------------------------------------------------

    def _process(self, slot: Slot, came: Reply, cut: Cut) -> Reply:
        """Make the reply for one sample, in a thread of the budget."""
        assert self._pipeline is not None
        request, executor, position = self._request, self._executor, came.position
        route = cut if came.cut == RAW else Route((came.cut, cut))
        tenant, work = self._seat.tenant, (self._pipeline.fingerprint, cut)
        sample = (request.dataset, request.samples[position])
        problem = executor.expected_problem(tenant, work, sample)
        if problem is not None:
            return self._smaller(came, problem)
        first, others = divided(bytes(came.payload), 0 if self._pipeline.fields else len(request.fields))
        trace = Trace(len(self._pipeline))
        space = Space(self._seat, len(came.payload), sum(map(len, others)))
        try:
            made = executor.maker.make(slot, self._pipeline, first, request.key(position), route, trace, space.claim)
        except ChildLost as lost:
            space.give_up()
            if lost.had_begun:
                executor.crashes.fell(tenant, work, sample)
            return self._smaller(came, lost.reason)
        except NoSpace:
            executor.crowding.refused(tenant, work)
            return self._smaller(came, "memory")
        except WholeNeeded:
            space.give_up()
            return self._smaller(came, WHOLE)
        except Exception:  # noqa: BLE001 - decoders, codecs and plug-in ops may raise anything
            space.give_up()
            return self._smaller(came, "op_failed")
        executor.crashes.stood(tenant, work)
        executor.crowding.fitted(tenant, work)
        payload = pack([made, *others]) if others else made
        space.settle(len(payload))
        reply = self._reply(came, cut, payload, None)
        done = came.cut.k
        there_s = (*came.op_s[:done], *[0.0] * (done - len(came.op_s)))
        reply.op_s = (*there_s, *trace.op_s[done : cut.k])
        reply.raw_bytes = came.raw_bytes or (len(came.payload) if came.cut == RAW else 0)
        reply.size = came.size if 0 not in came.size else trace.size
        return reply

    def _smaller(self, came: Reply, reason: str) -> Reply:
        """Answer with the payload that came from the node."""
        self._executor.count(reason)
        reply = self._as_it_is(came)
        reply.reason = reason
        if not self._request.firsts and came.cut not in (RAW, self._request.cuts[came.position]):
            # The trainer did not ask for this cut. This should not happen: without a route, nodes are asked for files.
            reply.error = RetryableError(f"this relay has the sample at {came.cut} and could not continue ({reason})")
        return reply

    def _as_it_is(self, came: Reply) -> Reply:
        reply = self._reply(came, came.cut, came.payload, came.reason)
        reply.op_s, reply.raw_bytes, reply.size = came.op_s, came.raw_bytes, came.size
        return reply

    def _reply(self, came: Reply, cut: Cut, payload: Payload, reason: str | None) -> Reply:
        return Reply(
            came.position,
            cut,
            payload,
            came.label,
            came.cpu_s,
            came.error,
            came.columns,
            reason,
            first=came.cut,
            first_bytes=len(came.payload),
        )
