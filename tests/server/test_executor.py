"""Invariant 3: the server may always do less than asked, and says what it did."""

import errno
import gc
import itertools
import threading
import time
import weakref

import pytest

from sophon.codec import RAW, Cut
from sophon.errors import ConfigError, ProtocolError, RetryableError, StoreError
from sophon.link.wire import REPLY_SCHEMA, Request, replies_of
from sophon.pipeline import Pipeline, ops
from sophon.pipeline.probe import digests, versions
from sophon.server.budget import CpuBudget
from sophon.server.executor import Executor
from sophon.server.limits import Limits
from sophon.server.maker import Threads
from sophon.server.seats import Seats
from sophon.server.work import Run
from sophon.store import open_store
from tests.support.servers import RECIPE, make_images
from tests.support.waiting import HANG_S, wait_until


@pytest.fixture
def store(tmp_path):
    return open_store(make_images(tmp_path / "train", 9), "train")


@pytest.fixture
def make(store):
    budgets = []

    def executor(cores=1, **settings):
        budgets.append(CpuBudget(cores))
        made = Executor({"train": store}, budgets[-1], **settings)
        made.reasons = []
        made.on_smaller_cut = made.reasons.append
        return made

    yield executor
    for budget in budgets:
        budget.close()


class Held:
    """Stands in for the reads of a store: each waits until it is let go."""

    def __init__(self, store, monkeypatch, lets_pass=()):
        self.go_on = threading.Event()
        self.under_way = 0
        self.samples = []
        self._lock = threading.Lock()
        for name in ("read", "read_into"):  # in `read_run` files are read as usual
            original = getattr(store, name)

            def read(sample, *space, original=original):
                with self._lock:
                    self.samples.append(sample)
                    self.under_way += 1
                assert sample in lets_pass or self.go_on.wait(HANG_S)
                with self._lock:
                    self.under_way -= 1
                return original(sample, *space)

            monkeypatch.setattr(store, name, read)


def _request(samples=range(9), cut="2:webp", **changes):
    samples = tuple(samples)
    cuts = (Cut.parse(cut),) * len(samples)
    return Request(
        **{"dataset": "train", "pipeline": RECIPE.to_spec(), "seed": 1, "epoch": 2, "samples": samples, "cuts": cuts}
        | changes
    )


def test_replies_in_order_come_in_order(make):
    replies = list(make().replies(_request([5, 3, 8, 3], in_order=True)))
    assert [reply.position for reply in replies] == [0, 1, 2, 3]
    assert {str(reply.cut) for reply in replies} == {"2:webp"}
    assert all(reply.cpu_s > 0 for reply in replies)
    assert replies[1].payload == replies[3].payload


def test_replies_as_they_finish_are_all_there(make):
    replies = list(make(2).replies(_request()))
    assert sorted(reply.position for reply in replies) == list(range(9))


@pytest.mark.parametrize("in_order", [True, False])
def test_whoever_waits_for_replies_hears_of_it_now_and_then(make, in_order):
    executor, go_on = make(), threading.Event()
    executor.submit(lambda _: go_on.wait(), 60)  # takes the only core
    work = executor.replies(_request(range(3), in_order=in_order, patience_s=HANG_S))
    pulse = work.pulse(lambda: 0.05)
    assert [next(pulse) for _ in range(3)] == [None] * 3
    assert work.computing_s >= 2 * 0.05  # before that the files were read
    go_on.set()
    assert sorted(reply.position for reply in pulse if reply is not None) == [0, 1, 2]


def test_raw_samples_do_not_wait_for_ops(make):
    cuts = tuple(Cut.parse("1:webp") if i % 2 else RAW for i in range(9))
    replies = list(make().replies(_request(cuts=cuts)))
    assert sorted(r.position for r in replies if r.cut == RAW) == [0, 2, 4, 6, 8]
    assert all(r.cpu_s == 0 for r in replies if r.cut == RAW)


def test_labels_and_columns_come_along(make, store):
    for reply in make().replies(_request(columns=("id",))):
        assert reply.label == store.manifest.labels[reply.position]
        assert reply.columns["id"] == store.manifest.ids[reply.position].as_py()


def test_without_cores_everything_is_answered_raw_and_counted(make, store):
    executor = make(0)
    for reply in executor.replies(_request()):
        assert reply.cut == RAW
        assert reply.payload == store.read(reply.position)
    assert executor.reasons == ["overload"] * 9


def test_an_overloaded_node_answers_raw(make):
    executor = make(1)
    gate = threading.Event()
    blocked = executor.submit(lambda _: gate.wait(), 10)
    replies = list(executor.replies(_request(patience_s=0.0)))
    gate.set()
    blocked.result()
    assert all(reply.cut == RAW for reply in replies)
    assert executor.reasons == ["overload"] * 9


@pytest.mark.parametrize("broken", [{"op": "Unheard", "version": 1}, {"op": "RandomHorizontalFlip", "version": 9}])
def test_an_op_that_is_not_known_bounds_the_cut(make, broken):
    spec = RECIPE.to_spec()
    spec["ops"][2] = broken
    executor = make()
    assert {r.cut for r in executor.replies(_request(pipeline=spec, cut="2:webp"))} == {Cut(2, "webp")}
    assert {r.cut for r in executor.replies(_request(pipeline=spec, cut="3:webp"))} == {RAW}
    spec["ops"][0] = broken
    assert {r.cut for r in executor.replies(_request(pipeline=spec, cut="2:webp"))} == {RAW}
    assert executor.reasons == ["unknown_op"] * 18


def test_a_picture_that_an_op_fails_on_is_answered_raw(make, store, tmp_path):
    name = store.manifest.ids[4].as_py()
    path = tmp_path / "train" / name
    path.write_bytes(b"x" * path.stat().st_size)
    executor = make()
    replies = {reply.position: reply for reply in executor.replies(_request())}
    assert replies[4].cut == RAW
    assert replies[4].payload == b"x" * path.stat().st_size
    assert [replies[i].cut for i in range(9) if i != 4] == [Cut(2, "webp")] * 8
    assert executor.reasons == ["op_failed"]


def test_the_nodes_own_pixel_limit_bounds_the_cut(make):
    executor = make(limits=Limits(pixels=4000))
    cuts = {str(reply.cut) for reply in executor.replies(_request())}
    assert cuts == {"0:raw", "2:webp"}


def test_a_sample_that_cannot_be_read_is_an_error_of_its_own(make, store, tmp_path):
    (tmp_path / "train" / store.manifest.ids[2].as_py()).unlink()
    for cut in ("0:raw", "2:raw"):
        replies = {reply.position: reply for reply in make().replies(_request(cut=cut))}
        assert isinstance(replies[2].error, StoreError)
        assert sum(reply.error is None for reply in replies.values()) == 8


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"dataset": "test"}, ConfigError, "no data set 'test' here; available: train"),
        ({"samples": (9,), "cuts": (RAW,)}, ConfigError, "has 9 samples; there is no sample 9"),
        ({"dataset_fingerprint": "0" * 32}, ConfigError, "the files have changed"),
        ({"columns": ("size",)}, ConfigError, "has no column 'size'"),
        ({"pipeline": {"ops": 3}}, ProtocolError, "expected a pipeline spec"),
    ],
)
def test_requests_that_cannot_be_answered_are_refused_before_anything_is_read(make, changes, error, message):
    with pytest.raises(error, match=message):
        make().replies(_request(**changes))


def test_a_trainer_learns_what_the_node_can_do(make, store):
    answer = make(0.5).describe({"dataset": "train", "pipeline": RECIPE.to_spec()})
    assert answer["samples"] == 9
    assert answer["fingerprint"] == store.manifest.fingerprint
    assert answer["max_cut"] == 5
    assert answer["digests"] == digests(RECIPE)
    assert answer["versions"] == versions()
    assert answer["cores"] == 0.5
    spec = RECIPE.to_spec()
    spec["ops"][3]["version"] = 2
    answer = make().describe({"dataset": "train", "pipeline": spec})
    assert answer["max_cut"] == 3
    assert "ToTensor version 2 is not known here" in answer["reason"]


def test_digests_tell_pipelines_apart_and_stop_where_an_op_cannot_be_probed():
    other = Pipeline([*RECIPE.ops[:3], ops.ToTensor(), ops.Normalize((0.5,), (0.5,))])
    assert digests(other)[:4] == digests(RECIPE)[:4]
    assert digests(other)[4] != digests(RECIPE)[4]
    assert len(digests(Pipeline([ops.Decode(), ops.RandomCrop(1000), ops.ToTensor()]))) == 1


@pytest.mark.parametrize("in_order", [True, False])
def test_what_nobody_waits_for_any_more_is_not_worked_on(make, in_order):
    executor, go, has_begun = make(), threading.Event(), threading.Event()
    blocker = executor._budget.submit(lambda _: (has_begun.set(), go.wait(HANG_S)), 1000)
    assert has_begun.wait(HANG_S)
    replies = executor.replies(_request(in_order=in_order)).pulse(lambda: 0.01)
    assert next(replies) is None  # all nine are queued behind the blocker
    replies.close()  # as Flight does when a trainer cancels or goes away
    assert not executor._budget.queued
    go.set()
    blocker.result()


class Blocked(Threads):
    """Works on the first sample when it is told to, and on the others at once."""

    def __init__(self):
        self.go_on = threading.Event()
        self.made = 0

    def make(self, slot, pipeline, data, key, cut, trace=None, *claim):
        if key.sample == 0:
            self.go_on.wait(HANG_S)
        self.made += 1
        return super().make(slot, pipeline, data, key, cut, trace, *claim)


def test_in_order_what_is_finished_early_waits_its_turn_and_the_caller_is_not_kept(make):
    maker = Blocked()
    pulse = make(2, maker=maker).replies(_request(in_order=True, patience_s=HANG_S)).pulse(lambda: 60)
    # Each of the eight others ends while the first is worked on, and with each the caller may do something else.
    assert [next(pulse) for _ in range(8)] == [None] * 8
    maker.go_on.set()
    assert [reply.position for reply in pulse if reply is not None] == list(range(9))


def test_in_order_no_more_is_made_ahead_of_a_slow_sample_than_the_window_holds(make, monkeypatch):
    monkeypatch.setattr("sophon.server.executor._LOOKAHEAD", 0)
    maker = Blocked()
    executor = make(2, maker=maker)
    pulse = executor.replies(_request(in_order=True, patience_s=HANG_S)).pulse(lambda: 0.05)
    while maker.made < executor.lookahead:
        assert next(pulse) is None
    assert [next(pulse) for _ in range(5)] == [None] * 5
    assert maker.made == executor.lookahead
    maker.go_on.set()
    assert [reply.position for reply in pulse if reply is not None] == list(range(9))


def test_in_order_the_first_sample_does_not_wait_for_the_others_to_be_read(make, store, monkeypatch):
    go_on, original = threading.Event(), store.read
    monkeypatch.setattr(store, "read", lambda sample: original(sample) if sample == 0 or go_on.wait(HANG_S) else b"")
    replies = iter(make().replies(_request(cut="0:raw", in_order=True)))
    assert next(replies).position == 0
    go_on.set()
    assert [reply.position for reply in replies] == list(range(1, 9))


def test_what_was_finished_meanwhile_goes_before_a_file_that_was_read(make, store, monkeypatch):
    """A computed sample does not wait for raw ones that come after it in the request."""
    made, original = threading.Event(), store.read
    executor = make()

    def read(sample):
        if sample == 1:
            assert made.wait(HANG_S)
            while executor._budget.backlog_s:
                time.sleep(0.001)
        return original(sample)

    monkeypatch.setattr(store, "read", read)
    make_payload = executor.maker.make
    monkeypatch.setattr(executor.maker, "make", lambda *args: (make_payload(*args), made.set())[0])
    replies = executor.replies(_request(range(3), cuts=(Cut.parse("2:webp"), RAW, RAW)))
    came = [reply.position for reply in replies]
    assert sorted(came) == [0, 1, 2]
    assert came.index(0) < came.index(1)


def test_samples_that_a_closing_node_drops_are_answered_raw(make):
    executor, go_on, has_begun = make(), threading.Event(), threading.Event()
    running = executor.submit(lambda _: (has_begun.set(), go_on.wait(HANG_S)), HANG_S)
    assert has_begun.wait(HANG_S)
    pulse = executor.replies(_request(range(3), patience_s=HANG_S)).pulse(lambda: 0.01)
    assert next(pulse) is None
    closing = threading.Thread(target=executor._budget.close)
    closing.start()
    replies = [reply for reply in itertools.islice(pulse, 10_000) if reply is not None]
    go_on.set()
    closing.join()
    running.result()
    assert [reply.cut for reply in replies] == [RAW] * 3
    assert executor.reasons == ["overload"] * 3


def test_what_was_made_for_a_stream_that_is_dropped_is_not_kept(make, monkeypatch):
    executor, tasks = make(), []
    submit = executor.submit

    def watched(*arguments):
        task = submit(*arguments)
        tasks.append(weakref.ref(task))
        return task

    monkeypatch.setattr(executor, "submit", watched)
    gc.disable()  # it would hide what keeps itself alive
    try:
        pulse = executor.replies(_request()).pulse(lambda: 60)
        assert next(pulse) is not None
        while executor._budget.backlog_s:
            time.sleep(0.001)
        pulse.close()
        del pulse
        wait_until(lambda: all(task() is None for task in tasks), "what was made is kept")
    finally:
        gc.enable()
    assert tasks


class Quick(Threads):
    """Does next to nothing, but slowly enough for a window to fill."""

    def make(self, *_):
        time.sleep(0.0002)
        return b""


def _stream_cpu_s(make, monkeypatch, window):
    """Return the CPU seconds per sample of the thread that sends."""
    monkeypatch.setattr("sophon.server.executor._LOOKAHEAD", window)
    replies = make(maker=Quick()).replies(_request([0] * 1000, patience_s=HANG_S))
    start_s = time.thread_time()
    assert sum(1 for _ in replies) == 1000
    return (time.thread_time() - start_s) / 1000


@pytest.mark.slow
def test_a_sample_costs_the_sending_thread_the_same_however_many_are_under_way(make, monkeypatch):
    few, many = ([_stream_cpu_s(make, monkeypatch, window) for _ in range(2)] for window in (4, 1000))
    assert min(many) < 3 * min(few)


@pytest.mark.parametrize("cut", ["0:raw", "2:webp", "0:window"])
def test_the_samples_of_a_request_are_read_at_once(make, store, monkeypatch, cut):
    executor, held = make(), Held(store, monkeypatch)
    executor.readings["train"].learn(0.05)  # as long as a read of this store takes
    pulse = executor.replies(_request(cut=cut, patience_s=HANG_S)).pulse(lambda: 0.01, lambda _: 1e6)
    assert next(pulse) is None
    wait_until(lambda: held.under_way == 9)
    held.go_on.set()
    assert sorted(reply.position for reply in pulse if reply is not None) == list(range(9))


def test_a_core_never_waits_for_a_disk(make, store, monkeypatch):
    """While one sample cannot be read, the only core makes all others."""
    executor, held = make(1), Held(store, monkeypatch, lets_pass=range(1, 9))
    executor.readings["train"].learn(0.05)
    pulse = executor.replies(_request(patience_s=HANG_S)).pulse(lambda: 60)
    came = [next(pulse) for _ in range(8)]
    assert sorted(reply.position for reply in came) == list(range(1, 9))
    assert {str(reply.cut) for reply in came} == {"2:webp"}
    held.go_on.set()
    assert [reply.position for reply in pulse] == [0]


def test_a_store_that_hangs_holds_up_neither_the_stream_nor_other_data_sets(tmp_path, make, monkeypatch):
    executor = make()
    stuck = open_store(make_images(tmp_path / "stuck", 9), "stuck")
    held = Held(stuck, monkeypatch)
    other = Executor({**executor._stores, "stuck": stuck}, executor._budget)
    pulses = [other.replies(_request(dataset="stuck", cut=cut)).pulse(lambda: 0.01) for cut in ("0:raw", "2:webp")]
    for _ in range(3):  # the caller is free for a heartbeat
        assert [next(pulse) for pulse in pulses] == [None, None]
    for cut in ("0:raw", "2:webp"):
        assert sorted(reply.position for reply in other.replies(_request(cut=cut))) == list(range(9))
    for pulse in pulses:
        pulse.close()
    held.go_on.set()


def test_a_stream_that_is_dropped_reads_no_more(make, store, monkeypatch):
    executor, held = make(), Held(store, monkeypatch)
    pulse = executor.replies(_request(cut="0:raw")).pulse(lambda: 0.01)
    assert next(pulse) is None
    wait_until(lambda: held.under_way == 2)
    pulse.close()
    held.go_on.set()
    wait_until(lambda: held.under_way == 0 and executor.readings["train"].under_way == 0)
    assert len(held.samples) == 2


def test_waiting_for_the_store_is_told_from_waiting_for_ops(make, store, monkeypatch):
    executor, held = make(), Held(store, monkeypatch)
    work = executor.replies(_request(cut="2:webp", patience_s=HANG_S))
    pulse = work.pulse(lambda: 0.05)
    assert [next(pulse) for _ in range(4)] == [None] * 4
    assert work.clock.reading_s >= 4 * 0.05
    assert work.clock.computing_s == 0
    assert work.clock.reads == 0
    held.go_on.set()
    assert sum(reply is not None for reply in pulse) == 9
    wait_until(lambda: work.clock.reads == 9)
    assert work.clock.read_bytes == store.manifest.sizes.sum()
    assert work.clock.read_s >= 4 * 0.05
    assert work.clock.computing_s > 0


def _rows(pieces):
    """Return position, payload and label of all samples in runs and replies, and which positions are in runs."""
    rows, in_runs = {}, set()
    for piece in pieces:
        if isinstance(piece, Run):
            assert piece.batch.schema == REPLY_SCHEMA
            found = list(replies_of(piece.batch, _request(cut="0:raw")))
            assert piece.size_bytes == sum(len(reply.payload) for reply in found)
            in_runs |= {reply.position for reply in found}
        else:
            found = [] if piece is None else [piece]
        for reply in found:
            assert reply.position not in rows
            rows[reply.position] = (bytes(reply.payload), reply.label, type(reply.error), reply.cut)
    return rows, in_runs


@pytest.mark.parametrize("run_bytes", [1e9, 20_000, 1])
def test_runs_of_raw_samples_hold_the_same_as_replies_one_by_one(make, store, run_bytes):
    executor = make()
    executor.readings["train"].learn(1e-5)  # quick: several samples are read by one job
    seats = Seats(executor.limits)
    seat = seats.enter()
    rows, in_runs = _rows(executor.replies(_request(cut="0:raw"), seat=seat).pulse(lambda: None, lambda _: run_bytes))
    expected = {i: (store.read(i), int(store.manifest.labels[i]), type(None), RAW) for i in range(9)}
    assert rows == expected
    assert bool(in_runs) == (run_bytes > 1)
    assert seats.held_bytes == store.manifest.sizes.sum(), "whoever sends them gives them back"


def test_a_sample_of_a_run_that_cannot_be_read_is_an_error_of_its_own(make, store, tmp_path):
    for index in (0, 4, 8):
        (tmp_path / "train" / store.manifest.ids[index].as_py()).unlink()
    executor = make()
    executor.readings["train"].learn(1e-5)
    seats = Seats(executor.limits)
    seat = seats.enter()
    rows, in_runs = _rows(executor.replies(_request(cut="0:raw"), seat=seat).pulse(lambda: None, lambda _: 1e9))
    assert in_runs == {1, 2, 3, 5, 6, 7}
    assert {i for i, row in rows.items() if row[2] is StoreError} == {0, 4, 8}
    assert all(rows[i][0] == store.read(i) for i in in_runs)
    assert seats.held_bytes == sum(int(store.manifest.sizes[i]) for i in in_runs)


def test_runs_go_round_samples_that_are_cut_and_columns_need_replies(make, store):
    cuts = tuple(Cut.parse("2:webp") if i % 3 == 0 else RAW for i in range(9))
    executor = make()
    executor.readings["train"].learn(1e-5)
    pieces = list(executor.replies(_request(cuts=cuts)).pulse(lambda: None, lambda _: 1e9))
    assert _rows(pieces)[1] == {1, 2, 4, 5, 7, 8}
    assert {piece.position for piece in pieces if not isinstance(piece, Run)} == {0, 3, 6}
    pieces = list(executor.replies(_request(cut="0:raw", columns=("id",))).pulse(lambda: None, lambda _: 1e9))
    assert {piece.columns["id"] for piece in pieces} == set(store.manifest.ids.to_pylist())


def test_a_node_without_descriptors_ends_the_request_and_not_the_sample(make, store, monkeypatch):
    def fails(*_):
        raise StoreError("cannot be opened") from OSError(errno.EMFILE, "Too many open files")

    executor = make()
    executor.readings["train"].learn(1e-5)
    for name in ("read", "read_into"):
        monkeypatch.setattr(store, name, fails)
    monkeypatch.setattr("sophon.store.folder._read_whole", lambda *_: False)
    monkeypatch.setattr("sophon.store.folder.files", None)
    for cut in ("0:raw", "2:webp"):
        with pytest.raises(RetryableError, match="too many files"):
            list(executor.replies(_request(cut=cut)).pulse(lambda: None, lambda _: 1e9))


@pytest.mark.parametrize("cut", ["0:raw", "2:webp"])
def test_a_store_with_a_bug_ends_the_request_and_does_not_leave_it_waiting(make, store, monkeypatch, cut):
    def fails(*_):
        raise ZeroDivisionError("a bug")

    executor = make()
    executor.readings["train"].learn(1e-5)
    for name in ("read", "read_run"):
        monkeypatch.setattr(store, name, fails)
    with pytest.raises(ZeroDivisionError, match="a bug"):
        list(executor.replies(_request(cut=cut)).pulse(lambda: HANG_S, lambda _: 1e9))
