"""Relaxed order and its replay: real threads, real files, real servers."""

import threading
from dataclasses import dataclass

import numpy as np
import pytest
import torch

import sophon
from sophon.errors import ArtifactError, ConfigError, OpError
from sophon.loader.account.stats import Stats
from sophon.loader.epoch.costs import Costs
from sophon.loader.epoch.engine import Engine, Hands, Stretch
from sophon.loader.epoch.finishers import Here
from sophon.loader.epoch.mending import Mending
from sophon.loader.machine.machine import MachineConfig
from sophon.loader.order.log import OrderLog, Relaxed, Replay
from sophon.loader.order.order import epoch_order
from sophon.pipeline import Key
from tests.support.servers import RECIPE, digest, make_images, serve
from tests.support.settings import grouped
from tests.support.tensor_op import SeesSamples
from tests.support.waiting import HANG_S

COUNT = 41


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    return make_images(tmp_path_factory.mktemp("data") / "train", COUNT)


class _Gate:
    """Lets the test decide which samples are slow: they wait until the others have passed."""

    def __init__(self) -> None:
        self.slow: set[int] = set()
        self.open = threading.Event()
        self.begun: list[int] = []


GATE = _Gate()


@dataclass(frozen=True)
class WaitAtGate(SeesSamples):
    """Pass a tensor on; slow ones when the gate is open."""

    def apply(self, value, params):
        GATE.begun.append(params)
        if params in GATE.slow:
            assert GATE.open.wait(HANG_S)
        return value


@pytest.fixture
def gate():
    GATE.slow, GATE.begun = set(), []
    GATE.open.clear()
    yield GATE
    GATE.open.set()


def _loader(path, **options):
    options = {"batch_size": 4, "shuffle": True, "seed": 5, "num_workers": 2, "policy": "none"} | options
    return sophon.DataLoader(path, RECIPE, **grouped(**options))


def _samples(log, epoch, shuffle=True):
    return log.replay(epoch, epoch_order(COUNT, 5, epoch, shuffle=shuffle)).tolist()


@pytest.mark.parametrize("workers", [0, 1, 4])
def test_every_sample_comes_exactly_once_an_epoch_with_its_own_bits(images, workers):
    loader = _loader(images, order="relaxed", num_workers=workers)
    store = sophon.open_store(images)
    for epoch in range(2):
        tensors = torch.cat([batch for batch, _ in loader])
        samples = _samples(loader.log, epoch)
        assert sorted(samples) == list(range(COUNT))
        for row, sample in zip(tensors, samples, strict=True):
            assert np.array_equal(row.numpy(), RECIPE.run(store.read(sample), Key(5, epoch, sample)))


@pytest.mark.parametrize("policy", ["none", "all"])
def test_a_relaxed_run_over_a_server_is_replayed_bit_for_bit_with_any_number_of_workers(images, policy, tmp_path):
    with serve(images, cores=2) as server:
        loader = _loader(server.url, order=Relaxed(5), num_workers=4, policy=policy)
        recorded = digest(batch for _ in range(2) for batch in loader)
    loader.log.save(tmp_path / "run.log")
    for workers in (0, 1, 3):
        for log in (loader.log, tmp_path / "run.log"):
            again = _loader(images, order=Replay(log), num_workers=workers)
            assert digest(batch for _ in range(2) for batch in again) == recorded


def test_slow_samples_hold_up_no_batch_until_they_must_not_wait_longer(images, gate):
    pipeline = sophon.Pipeline([*RECIPE.ops, WaitAtGate()])
    order = epoch_order(COUNT, 5, 0, shuffle=True)
    gate.slow = {int(order[0])}
    loader = sophon.DataLoader(
        images, pipeline, batch_size=4, shuffle=True, seed=5, num_workers=2, order=Relaxed(max_delay=3)
    )
    batches = iter(loader)
    for _ in range(3):
        next(batches)  # would hang if the slow sample, the very first, were waited for
    gate.open.set()
    assert sum(1 for _ in batches) == 8
    samples = _samples(loader.log, 0)
    assert 12 <= samples.index(int(order[0])) < 16  # three batches late, as it may be, and no more


def test_an_epoch_left_half_way_is_replayed_with_the_rest_in_strict_order(images):
    loader = _loader(images, order="relaxed")
    batches = iter(loader)
    seen = [next(batches) for _ in range(3)]
    batches.close()
    samples = _samples(loader.log, 0)
    assert sorted(samples) == list(range(COUNT))
    again = list(_loader(images, order=Replay(loader.log)))
    assert digest(again[:3]) == digest(seen)


def test_a_bad_sample_is_raised_in_relaxed_order_too(tmp_path):
    images = make_images(tmp_path / "data", 9)
    (next(images.rglob("*.png"))).write_bytes(b"no picture")
    with pytest.raises(OpError, match="not an image"):
        list(_loader(images, order="relaxed"))
    assert not [t for t in threading.enumerate() if t.name.startswith("sophon-f")]  # those that fetch and finish


def test_the_log_is_small():
    order = np.arange(100_000)
    positions = order.copy()
    for at in range(0, 100_000, 20):  # one in twenty comes five places late
        positions[at : at + 6] = np.roll(positions[at : at + 6], -1)
    log = OrderLog("d", 4)
    log.record(0, order, positions)
    assert np.array_equal(log.replay(0, order), positions)
    assert log.size_bytes < 0.5 * 100_000


def test_a_log_of_something_else_is_refused(images, tmp_path):
    loader = _loader(images, order="relaxed")
    list(loader)
    with pytest.raises(ConfigError, match="batch_size=4, got 5"):
        _loader(images, order=Replay(loader.log), batch_size=5)
    with pytest.raises(ConfigError, match="different order"):
        list(_loader(images, order=Replay(loader.log), seed=6))
    replay = _loader(images, order=Replay(loader.log))
    replay.set_epoch(1)
    with pytest.raises(ConfigError, match="no epoch 1, only 0"):
        list(replay)
    other = make_images(tmp_path / "other", 3)
    with pytest.raises(ConfigError, match="belongs to data set"):
        _loader(other, order=Replay(loader.log))
    (tmp_path / "no.log").write_bytes(b"no log at all")
    with pytest.raises(ArtifactError):
        _loader(images, order=Replay(tmp_path / "no.log"))


@pytest.mark.parametrize("steps", [[0, -1], [0, -5, 0], [-1]])
def test_a_log_that_is_no_order_is_refused(tmp_path, steps):
    from sophon import artifact

    told = {"batch_size": 4, "epochs": [{"epoch": 0, "count": len(steps), "order_crc": 0, "begun": 0, "start": 0}]}
    header = artifact.Header("order-log", 2, {"dataset": "d"}, told)
    artifact.save(tmp_path / "log", header, {"step": np.array(steps, np.int32)})
    with pytest.raises(ArtifactError, match="record it again"):
        OrderLog.load(tmp_path / "log")


@pytest.mark.parametrize("order", ["sorted", 3])
def test_an_unknown_order_is_refused_with_what_there_is(images, order):
    with pytest.raises(ConfigError, match="'strict', 'relaxed'"):
        _loader(images, order=order)


@pytest.mark.parametrize("delay", [-1, True, 2.0])
def test_a_delay_that_is_no_number_of_batches_is_refused(delay):
    with pytest.raises(ConfigError, match="max_delay"):
        Relaxed(delay)


def test_worker_processes_may_leave_the_order_too(images):
    loader = _loader(images, order="relaxed", kind="processes", columns=["id"])
    batches = list(loader)
    assert len({name for *_, columns in batches for name in columns["id"]}) == COUNT
    replayed = _loader(images, order=Replay(loader.log), kind="processes", columns=["id"])
    assert digest(batch[:2] for batch in replayed) == digest(batch[:2] for batch in batches)


def test_samples_known_to_be_slow_are_begun_before_their_turn(images, gate, monkeypatch):
    monkeypatch.setattr("sophon.store.reading._LEAST_AT_ONCE", 1)  # or the second may be read before the first
    pipeline = sophon.Pipeline([*RECIPE.ops, WaitAtGate()])
    dataset = sophon.RemoteDataset(str(images), pipeline, seed=5)
    order = np.arange(COUNT)
    gate.slow = {0}  # keeps the only worker until all the others are queued
    costs = Costs(COUNT)
    costs.expect(np.where(order == 30, 1.0, 0.01))
    # One request at a time, so that sample 0 is the first to be there.
    stats, samples, finishing = Stats(), dataset.samples, dataset.finishing
    mending = Mending(samples, dataset.bad_samples, stats)
    hands = Hands(samples, finishing, Here(finishing, None), mending, stats, costs)
    engine = Engine(hands, Stretch(order, 0, 4, workers=1), MachineConfig(max_requests=1))
    try:
        with engine._lock:
            while len(engine._received) + len(gate.begun) < COUNT:
                engine._changed.wait(0.01)  # which lets go of the lock, so that fetching gets on
        gate.open.set()
        assert len(list(engine.batches())) == 11
    finally:
        gate.open.set()
        engine.close()
    begun = gate.begun
    assert begun.index(30) < 3
    assert [sample for sample in begun if sample != 30] == [sample for sample in range(COUNT) if sample != 30]


def test_costs_follow_what_was_seen():
    costs = Costs(3)
    assert costs.lead(0, 2) == 0.0
    for _ in range(200):
        costs.saw(0, 0.01)
        costs.saw(1, 0.03)
    assert costs.lead(1, 2) == pytest.approx(2 * 3.0, rel=0.1)  # twice as early as would just do
    assert costs.lead(1, 2) == pytest.approx(3 * costs.lead(0, 2), rel=0.01)


def test_a_replay_goes_on_from_a_state(images):
    loader = _loader(images, order=Relaxed(5), num_workers=4)
    recorded = list(loader)
    first = _loader(images, order=Replay(loader.log))
    batches = iter(first)
    for _ in range(3):
        next(batches)
    state = first.state_dict()
    batches.close()
    second = _loader(images, order=Replay(loader.log), num_workers=1)
    second.load_state_dict(state)
    assert digest(second) == digest(recorded[3:])


@pytest.mark.parametrize("policy", ["skip", "substitute"])
def test_bad_samples_are_dealt_with_in_relaxed_order_too(tmp_path, policy):
    images = make_images(tmp_path / "data", 30)
    next(images.rglob("*.png")).write_bytes(b"no picture")
    loader = _loader(images, order="relaxed", on_error=policy, budget=0.5)
    assert sum(len(labels) for _, labels in loader) == (29 if policy == "skip" else 30)
    assert len(loader.bad_samples) == 1
