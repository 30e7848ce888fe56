"""A crash in a decoder or plug-in op costs that sample an answer with a smaller cut, and nothing else."""

import contextlib
import io
import os
import time
import urllib.request
from pathlib import Path

import pytest
from PIL import Image
from pyarrow import flight

import sophon
from sophon.codec import RAW, Cut
from sophon.errors import OpError
from sophon.link.wire import Request
from sophon.loader.sources.assignment import OffloadWarning
from sophon.pipeline import OPS, Key, Pipeline, Trace, ops
from sophon.process.children import children_of
from sophon.server.budget import CpuBudget
from sophon.server.executor import Executor
from sophon.server.isolation import frames
from sophon.server.isolation.child import PIPELINES
from sophon.server.isolation.crashes import Crashes
from sophon.server.isolation.processes import Processes
from sophon.server.limits import Limits
from sophon.server.maker import ChildLost, Threads
from sophon.server.tenants.slot import Slot
from sophon.store import open_store
from tests.support.misbehave import NODE, PROBE_WIDTH, Misbehave
from tests.support.pictures import encode, scene
from tests.support.servers import RECIPE, digest, make_images, serve
from tests.support.waiting import HANG_S, wait_until
from tests.support.warm import cold

REPOSITORY = str(Path(__file__).parents[3])
PLUGIN = "tests.support.plugin_ops"
WIDTH = 77  # of the pictures that suffer: those of every fifth sample of make_images
KEY = Key(1, 2, 3)


def _recipe(how, width=WIDTH):
    return Pipeline([ops.Decode(), Misbehave(how, width), *RECIPE.ops[1:]])


@pytest.fixture(autouse=True)
def _node(monkeypatch):
    monkeypatch.syspath_prepend(REPOSITORY)
    monkeypatch.setenv(NODE, "1")
    monkeypatch.setitem(OPS, "Misbehave", Misbehave)  # registered here too, for as long as a test lasts


@pytest.fixture
def processes():
    made = []

    def make(count=1, **limits):
        made.append(Processes(count, Limits(**limits), [PLUGIN]))
        return made[-1]

    yield make
    for each in made:
        pids = each.pids
        each.close()
        assert not any(Path(f"/proc/{pid}").exists() for pid in pids)


PICTURE, VICTIM = encode(scene(60, 50), "jpeg 4:2:0"), encode(scene(WIDTH, 50), "jpeg 4:2:0")


@pytest.mark.parametrize(
    "cut", ["1:webp", "0:window", *(pytest.param(cut, marks=pytest.mark.slow) for cut in ("2:raw", "3:zstd", "5:raw"))]
)
def test_a_worker_makes_the_same_payload_and_counts_its_cpu(processes, cut):
    if cut not in map(str, sophon.legal_cuts(RECIPE)):
        pytest.skip("the window codec is not built")
    slot, cut = Slot(0), Cut.parse(cut)
    for data in (PICTURE, VICTIM):
        here, there = Trace(len(RECIPE)), Trace(len(RECIPE))
        expected = Threads().make(slot, RECIPE, data, KEY, cut, here)
        assert slot.elsewhere_s == 0
        assert processes().make(slot, RECIPE, data, KEY, cut, there) == expected
        assert there.size == here.size != (0, 0)
        assert [seconds > 0 for seconds in there.op_s] == [seconds > 0 for seconds in here.op_s]
        assert slot.elsewhere_s == 0 if cut.codec == "window" else 0 < slot.elsewhere_s < 5
        slot.elsewhere_s = 0


def test_a_window_with_somebody_elses_op_behind_it_is_cut_in_a_worker(processes):
    recipe = Pipeline([ops.Decode(), ops.RandomResizedCrop(48), Misbehave("abort", 0)])
    slot = Slot(0)
    if "0:window" in map(str, sophon.legal_cuts(recipe)):
        expected = Threads().make(slot, recipe, PICTURE, KEY, Cut(0, "window"))
        assert processes().make(slot, recipe, PICTURE, KEY, Cut(0, "window")) == expected
        assert slot.elsewhere_s > 0


def test_a_worker_probes_as_the_server_would(processes):
    assert processes(0).probe(Slot(0), RECIPE) == Threads().probe(Slot(0), RECIPE)


@pytest.mark.parametrize(
    ("how", "reason"),
    [("abort", "crash"), pytest.param("exit", "crash", marks=pytest.mark.slow), ("hang", "cpu_limit")],
)
@pytest.mark.matrix(every=2)
def test_a_worker_that_falls_is_replaced(processes, how, reason):
    pool = processes(sample_cpu_s=0.5)
    recipe, slot = _recipe(how), Slot(0)
    expected = Threads().make(slot, recipe, PICTURE, KEY, Cut(3))
    assert pool.pids == []
    assert pool.make(slot, recipe, PICTURE, KEY, Cut(3)) == expected
    (first,) = pool.pids
    for _ in range(2):
        assert pool.make(slot, recipe, PICTURE, KEY, Cut(3)) == expected
        with pytest.raises(ChildLost) as lost:
            pool.make(slot, recipe, VICTIM, KEY, Cut(3))
        assert lost.value.reason == reason
    assert pool.make(slot, recipe, PICTURE, KEY, Cut(3)) == expected
    assert pool.pids != [first]


@pytest.mark.parametrize("how", ["raise", "eat"])
def test_an_op_that_raises_or_eats_memory_fails_and_its_worker_lives_on(processes, how):
    pool = processes(child_bytes=2 << 30)
    assert pool.make(Slot(0), _recipe(how), PICTURE, KEY, Cut(3))
    before = pool.pids
    with pytest.raises(OpError):
        pool.make(Slot(0), _recipe(how), VICTIM, KEY, Cut(3))
    assert pool.make(Slot(0), _recipe(how), PICTURE, KEY, Cut(3))
    assert pool.pids == before


def test_a_worker_that_sleeps_is_ended_by_the_clock(processes, monkeypatch):
    from sophon.server.isolation import processes as module

    monkeypatch.setattr(module, "_START_S", 3.0)
    pool = processes(sample_cpu_s=0.1)

    def works():  # so that the time is not spent on starting, which takes long on a busy machine
        with contextlib.suppress(ChildLost):
            return pool.make(Slot(0), _recipe("sleep"), PICTURE, KEY, Cut(3))

    wait_until(works)
    with pytest.raises(ChildLost, match="cpu_limit"):
        pool.make(Slot(0), _recipe("sleep"), VICTIM, KEY, Cut(3))


def test_more_pipelines_than_a_worker_remembers_are_sent_again(processes):
    pool = processes()
    many = [Pipeline([ops.Decode(), ops.CenterCrop(size)]) for size in range(8, 8 + 70)]
    for _ in range(2):
        for pipeline in many:
            assert pool.make(Slot(0), pipeline, PICTURE, KEY, Cut(2)) == Threads().make(
                Slot(0), pipeline, PICTURE, KEY, Cut(2)
            )


@pytest.mark.slow
def test_a_probe_ends_at_the_op_that_crashes_and_says_so(processes):
    pool = processes(0)
    found, reason = pool.probe(Slot(0), _recipe("abort", PROBE_WIDTH))
    assert found == Threads().probe(Slot(0), RECIPE)[0][:1]
    assert "Misbehave crashed a child process" in reason
    assert pool.probe(Slot(0), RECIPE) == Threads().probe(Slot(0), RECIPE)


def test_workers_end_when_their_server_is_gone(processes):
    pool = processes(2)
    for number in range(2):
        pool.make(Slot(number), RECIPE, PICTURE, KEY, Cut(2))
    pids = pool.pids
    assert len(pids) == 2
    for child in pool._children:
        child._line.close()  # as when the server is killed
    wait_until(lambda: not any("sophon" in _command(pid) for pid in pids))


def test_where_tenants_share_a_node_workers_are_started_before_they_are_needed():
    pool = Processes(3, Limits(), [PLUGIN], has_reserve=True)
    try:
        for number in range(1, 4):
            pool.make(Slot(0), RECIPE, PICTURE, KEY, Cut(2))
            assert len(pool.pids) >= number
        assert len(pool.pids) == 3
        assert pool.make(Slot(2), RECIPE, PICTURE, KEY, Cut(2)) == Threads().make(Slot(0), RECIPE, PICTURE, KEY, Cut(2))
    finally:
        pids = pool.pids
        pool.close()
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)


def _command(pid):
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return ""


def test_workers_know_no_secrets(processes, monkeypatch):
    secrets = ["SOPHON_TOKENS", "SOPHON_TOKEN", "AWS_SECRET_ACCESS_KEY", "AWS_ACCESS_KEY_ID", "AWS_SESSION_TOKEN"]
    secrets += ["AZURE_STORAGE_ACCOUNT_KEY", "GOOGLE_SERVICE_ACCOUNT_KEY", "DB_PASSWORD", "api_key"]
    for name in secrets:
        monkeypatch.setenv(name, "0123456789abcdef")
    monkeypatch.setenv("MODEL_FOLDER", "for a plug-in")
    pool = processes()
    pool.make(Slot(0), RECIPE, PICTURE, KEY, Cut(2))
    told = Path(f"/proc/{pool.pids[0]}/environ").read_text()
    assert "0123456789abcdef" not in told
    assert "MODEL_FOLDER=for a plug-in" in told


class _Line:
    """A line that carries what it is told to."""

    def __init__(self, data):
        self._data = data

    def recv(self, count, _):
        part = self._data[: min(count, 7)]
        self._data = self._data[len(part) :]
        return part


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\4",
        frames._HEAD.pack(4, 0, 1 << 60),
        frames._HEAD.pack(4, 1 << 30, 0),
        frames._HEAD.pack(99, 0, 0),
        frames._HEAD.pack(4, 8, 100) + b"x" * 50,
    ],
)
def test_what_a_worker_must_not_send_breaks_the_line_before_anything_is_allocated(data):
    with pytest.raises(frames.Broken):
        frames.receive(_Line(data))


@pytest.mark.parametrize("note", [b"", b"x" * 15, b"x" * 17, b"x" * (16 + 8 * 6)])
def test_a_note_of_the_wrong_length_breaks_the_line(note):
    with pytest.raises(frames.Broken):
        frames.Costs.parse(note, 5)


def test_costs_that_make_no_sense_count_as_nothing():
    sane = frames.Costs(0.5, (3, 4), (0.25, 0.125))
    assert frames.Costs.parse(sane.pack(), 5) == sane
    for odd in (float("nan"), float("inf"), -1.0):
        assert frames.Costs.parse(frames.Costs(odd, (3, 4), (odd,)).pack(), 5) == frames.Costs(0.0, (3, 4), (0.0,))
    boast = frames.Costs(1e300, (2**32 - 1, 4), (1e300,))
    assert frames.Costs.parse(boast.pack(), 5, 0.5) == frames.Costs(0.5, (0, 0), (0.5,))


@pytest.mark.slow
def test_a_worker_that_boasts_of_its_work_keeps_nobody_from_theirs(tmp_path):
    folder = make_images(tmp_path / "train", 10)
    with serve(folder, options=("--import", PLUGIN, "--metrics-port", "0")) as server:
        client = flight.connect(f"grpc://127.0.0.1:{server.port}")
        for recipe, cut in ((_recipe("boast"), Cut(3)), (RECIPE, Cut(2, "webp"))):
            request = Request("data", recipe.to_spec(), 0, 0, tuple(range(10)), (cut,) * 10, patience_s=5.0)
            options = flight.FlightCallOptions(timeout=HANG_S)
            replies = client.do_get(flight.Ticket(request.to_bytes()), options).read_all().to_pydict()
            assert len(replies["position"]) == 10
            assert set(replies["reason"]) <= {None, "crash"}
            assert max(replies["width"]) < 1 << 16


def test_what_a_worker_leaves_behind_ends_with_it(processes):
    slot, pool = Slot(0), processes()
    pool.make(slot, RECIPE, PICTURE, KEY, Cut(3))
    (pid,) = pool.pids
    start_s = time.monotonic()
    with pytest.raises(ChildLost, match="crash"):
        pool.make(slot, _recipe("fork"), VICTIM, KEY, Cut(3))
    assert time.monotonic() - start_s < HANG_S  # though a child of it still has the line, and would for longer
    wait_until(lambda: not _running_in_group(pid))


def test_a_worker_whose_op_sleeps_does_not_outlive_its_server(tmp_path):
    folder = make_images(tmp_path / "train", 5)
    with cold(), serve(folder, options=("--import", PLUGIN)) as server:
        request = Request("data", _recipe("sleep", 0).to_spec(), 0, 0, (0,), (Cut(3),))
        flight.connect(f"grpc://127.0.0.1:{server.port}").do_get(flight.Ticket(request.to_bytes()))
        wait_until(lambda: children_of(server.pid))
        workers = children_of(server.pid)
        wait_until(lambda: all(map(_rests, workers)))  # in its op
        server.kill()
        wait_until(lambda: not any(_is_running(pid) for pid in workers))


def _rests(pid):
    """Return whether a process that has done something does nothing for a while."""
    before, _ = _cpu_ticks(pid), time.sleep(0.5)
    return 0 < before == _cpu_ticks(pid)


def _cpu_ticks(pid):
    return sum(map(int, Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]))


def _running_in_group(group: int) -> list[int]:
    pids = [int(place.name) for place in Path("/proc").iterdir() if place.name.isdecimal()]
    return [pid for pid in pids if _is_running(pid) and _group_of(pid) == group]


def _group_of(pid: int) -> int | None:
    try:
        return os.getpgid(pid)
    except ProcessLookupError:  # it ended while we looked
        return None


def _is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


# --- what that means for requests -------------------------------------------------------------------------------------


@pytest.fixture
def executor(tmp_path, processes):
    budget = CpuBudget(2)
    store = open_store(make_images(tmp_path / "train", 10), "train")
    made = Executor({"train": store}, budget, maker=processes(4, sample_cpu_s=0.5))
    made.read = store.read
    made.reasons = []
    made.on_smaller_cut = made.reasons.append
    yield made
    budget.close()


def _request(recipe, cut="3:webp", samples=range(10)):
    samples = tuple(samples)
    return Request("train", recipe.to_spec(), 1, 2, samples, (Cut.parse(cut),) * len(samples))


@pytest.mark.parametrize(
    ("how", "reason"), [("abort", "crash"), pytest.param("hang", "cpu_limit", marks=pytest.mark.slow)]
)
def test_a_crash_costs_that_sample_a_smaller_cut_and_is_not_tried_twice(executor, how, reason):
    victims = {p for p in range(10) if Image.open(io.BytesIO(executor.read(p))).width == WIDTH}
    assert len(victims) == 2
    for epoch in range(2):
        replies = {reply.position: reply for reply in executor.replies(_request(_recipe(how)))}
        assert {p for p, reply in replies.items() if reply.cut == RAW} == victims
        assert not any(reply.error for reply in replies.values())
        assert executor.reasons == ([reason] * 2 if epoch == 0 else ["crash"] * 2)
        executor.reasons.clear()


@pytest.mark.slow
def test_a_pipeline_that_always_crashes_is_left_alone_after_a_while(executor, monkeypatch):
    recipe = _recipe("abort", 0)
    start = executor.maker.pids
    replies = list(executor.replies(_request(recipe, samples=list(range(10)) * 3)))
    assert {reply.cut for reply in replies} == {RAW}
    assert executor.reasons == ["crash"] * 30
    assert executor.maker.pids != start
    with monkeypatch.context() as patch:
        patch.setattr(executor.maker, "make", lambda *_: pytest.fail("it is tried again"))
        assert {r.cut for r in executor.replies(_request(recipe, cut="3:webp"))} == {RAW}
    assert {r.cut for r in executor.replies(_request(_recipe("nothing")))} == {Cut(3, "webp")}


def test_a_pipeline_rests_after_some_crashes_in_a_row_each_time_for_longer():
    now_s = 0.0
    crashes = Crashes(lambda: now_s)
    for sample in range(3):
        assert not crashes.expected(1, "work", sample)
        crashes.fell(1, "work", sample)
    assert crashes.expected(1, "work", "another")
    assert not crashes.expected(1, "other work", 0)
    now_s = 1.5
    assert crashes.expected(1, "work", 2)
    assert not crashes.expected(1, "work", "another")
    crashes.fell(1, "work", "another")
    now_s = 4.4
    assert crashes.expected(1, "work", "yet another")
    now_s = 4.6
    assert not crashes.expected(1, "work", "yet another")
    crashes.stood(1, "work")
    crashes.fell(1, "work", "yet another")
    assert not crashes.expected(1, "work", "one more")


def test_a_tenant_whose_work_crashes_costs_nobody_else_anything():
    now_s = 0.0
    crashes = Crashes(lambda: now_s)
    crashes.is_shared = True
    assert not crashes.expected(1, "work", 0)
    crashes.fell(1, "work", 0)
    assert crashes.expected(1, "whatever it asks for", 0)
    for number in range(8):
        assert not crashes.expected(2, f"work {number}", 0)
    rests = 0
    for _ in range(600):  # ten minutes of trying: once a minute in the end
        now_s += 1
        if not crashes.expected(1, now_s, 0):
            crashes.fell(1, now_s, 0)
            rests += 1
    assert rests < 20
    now_s += 1000
    crashes.fell(1, "once more", 1)
    now_s += 1.5  # the first rest is a short one again
    assert not crashes.expected(1, "a good one", 0)


def test_the_server_lives_through_crashes_and_the_batches_are_the_same(tmp_path, monkeypatch):
    images = make_images(tmp_path / "train", 20)
    recipe = _recipe("abort")
    expected = digest(sophon.DataLoader(images, _recipe("nothing"), batch_size=4))
    monkeypatch.chdir(REPOSITORY)
    with serve(images, cores=2, options=("--import", PLUGIN, "--metrics-port", "0")) as server:
        monkeypatch.delenv(NODE)  # here the op does as it should
        pid = server.pid
        loader = sophon.DataLoader(server.url, recipe, batch_size=4, policy="3:webp", num_workers=2)
        with pytest.warns(OffloadWarning, match="sent 4 of 20 samples as raw files"):
            found = digest(loader)
        assert found == expected
        assert loader.stats.cuts == {"3:webp": 16, "0:raw": 4}
        os.kill(pid, 0)
        with urllib.request.urlopen(f"http://127.0.0.1:{server.metrics_port}/metrics") as answer:
            assert b'sophon_smaller_cuts_total{reason="crash"} 4.0' in answer.read()


@pytest.mark.parametrize("isolation", ["process", "thread"])
def test_both_kinds_of_isolation_give_the_same_batches(tmp_path, isolation, monkeypatch):
    images = make_images(tmp_path / "train", 12)
    with serve(images, cores=2, options=("--isolation", isolation)) as server:
        loader = sophon.DataLoader(server.url, RECIPE, batch_size=4, policy="2:webp")
        assert digest(loader) == digest(sophon.DataLoader(images, RECIPE, batch_size=4))
        assert loader.stats.cuts == {"2:webp": 12}


@pytest.mark.slow
def test_an_op_that_crashes_on_the_built_in_picture_stays_on_the_trainer(tmp_path, monkeypatch):
    images = make_images(tmp_path / "train", 5)
    monkeypatch.chdir(REPOSITORY)
    with serve(images, options=("--import", PLUGIN)) as server:
        monkeypatch.delenv(NODE)
        with pytest.warns(OffloadWarning, match="Misbehave crashed a child process"):
            loader = sophon.DataLoader(server.url, _recipe("abort", PROBE_WIDTH), batch_size=5, policy="3:webp")
        assert len(list(loader)) == 1


def test_server_and_child_agree_on_which_pipelines_the_child_still_has(processes):
    pool = processes()
    picture = encode(scene(40, 30), "jpeg 4:2:0")
    pipelines = [Pipeline([ops.Decode(), ops.CenterCrop(size)]) for size in range(1, PIPELINES + 3)]
    # The first is used over and over, and has left the child nevertheless when the last ones have come.
    for pipeline in [other for each in pipelines for other in (pipelines[0], each)]:
        assert pool.make(Slot(0), pipeline, picture, KEY, Cut(2))
