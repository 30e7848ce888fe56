"""A run goes on in the middle of a relaxed epoch: what left out of turn is neither lost nor repeated."""

import json
import random
import time
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import sophon
from sophon.errors import ArtifactError, ConfigError
from sophon.loader.machine.placement import Placement
from sophon.loader.order.log import OrderLog, Relaxed, Replay
from sophon.loader.order.order import epoch_order
from sophon.loader.order.ranks import Rank, share
from sophon.loader.order.turns import Turns
from sophon.loader.sampler import EpochSampler
from sophon.pipeline import Pipeline
from tests.support.effort import least_cpu_s
from tests.support.epochs import samples_of, wanted_in
from tests.support.servers import RECIPE, digest
from tests.support.settings import grouped
from tests.support.tensor_op import SeesSamples

COUNT, BATCH, SEED, EPOCH = 41, 3, 5, 2


@dataclass(frozen=True)
class SlowForSome(SeesSamples):
    """Pass a tensor on, one in five after a while."""

    def apply(self, value, params):
        if params % 5 == 0:
            time.sleep(0.01)
        return value


PIPELINE = Pipeline([*RECIPE.ops, SlowForSome()])
ORDER = epoch_order(COUNT, SEED, EPOCH, shuffle=True)


@pytest.fixture(scope="module")
def wanted(images):
    return wanted_in(images, SEED, EPOCH)


def _loader(url, ranks=(0, 1), batch_size=BATCH, **options):
    options = {"policy": "none", "seed": SEED, "shuffle": True, "columns": ("id",), "order": Relaxed(4)} | options
    rank, size = ranks
    made = sophon.DataLoader(url, PIPELINE, **grouped(batch_size=batch_size, rank=rank, size=size, **options))
    made.set_epoch(EPOCH)
    return made


class _Crowd:
    """Samples that are finished in an order that chance decides, some of them very late."""

    def __init__(self, seed):
        self.random = random.Random(seed)

    def run(self, turns, count, batch_size, max_delay, batches, ahead=60):
        """Hand out some batches of what is left; return how far it has come then, and who came in which order."""
        left = turns.left(count)
        placement = Placement(len(left), batch_size, max_delay, turns.latest(left, batch_size, max_delay))
        waiting, asked, placed = [], 0, 0
        stop = min(batches * batch_size, len(left))
        while placed < stop:
            while asked < len(left) and len(waiting) < ahead:
                waiting.append((self.random.random() + 5.0 * (self.random.random() < 0.2) + asked / ahead, asked))
                asked += 1
            chosen = min(waiting)
            waiting.remove(chosen)
            placed += len(placement.add(chosen[1]))
        handed = left[placement.position_at[:stop]]
        assert (handed >= 0).all()
        return handed


@settings(max_examples=150, deadline=None)
@given(st.integers(1, 300), st.integers(1, 9), st.integers(0, 6), st.integers(0, 10**6))
def test_late_and_early_are_few_however_often_a_run_goes_on(count, batch_size, max_delay, seed):
    crowd, turns, seen = _Crowd(seed), Turns(Rank(), 0), []
    while turns.places < count:
        for step in np.array_split(
            handed := crowd.run(turns, count, batch_size, max_delay, crowd.random.randint(1, 4)),
            range(batch_size, len(handed), batch_size),
        ):
            turns = turns.after(step)
            if turns.places < count:
                assert len(turns.late) == len(turns.early) <= max_delay * batch_size
            # The promise holds over the whole epoch, though it was stopped in between.
            last = (turns.places - 1) // batch_size
            assert all(last - int(p) // batch_size <= max_delay for p in step)
        seen += handed.tolist()
        turns = Turns.from_dict(json.loads(json.dumps(turns.to_dict())), turns.places, Rank())
    assert sorted(seen) == list(range(count))


@settings(max_examples=100, deadline=None)
@given(
    st.integers(1, 200), st.lists(st.tuples(st.integers(1, 9), st.integers(0, 6)), min_size=1), st.integers(0, 10**6)
)
def test_with_other_batches_and_delays_nothing_is_lost_and_the_largest_bound_holds(count, parts, seed):
    crowd, turns, seen, bound = _Crowd(seed), Turns(Rank(), 0), [], 0
    for batch_size, max_delay in (*parts, (5, 2)):
        bound = max(bound, batch_size * max_delay)
        is_last = len(seen) == count or (batch_size, max_delay) == (5, 2)
        handed = crowd.run(turns, count, batch_size, max_delay, 10**6 if is_last else crowd.random.randint(1, 4))
        seen += handed.tolist()
        turns = turns.after(handed)
        assert len(turns.late) == len(turns.early) <= bound
    assert sorted(seen) == list(range(count))


@pytest.mark.parametrize("max_delay", [0, 1, 3, 8])
@pytest.mark.matrix(every=4)
def test_the_rest_is_right_behind_every_batch_with_other_workers(images, wanted, max_delay):
    first = _loader(images, num_workers=2, order=Relaxed(max_delay))
    used, late = [], 0
    for number, batch in enumerate(first, 1):
        used += samples_of([batch], wanted)
        late += len(first._place.at[2].late) if first._place.at[2] else 0
        state = json.loads(json.dumps(first.state_dict()))
        assert state["cursor"] == min(number * BATCH, COUNT)
        for settings_ in ({"num_workers": number % 4}, {"order": "strict", "batch_size": 4, "num_workers": 1}):
            second = _loader(images, **{"order": Relaxed(max_delay), **settings_})
            second.load_state_dict(state)
            assert second.state_dict() == state
            second.set_epoch(EPOCH)  # as training loops do that count epochs themselves
            rest = samples_of(second, wanted)
            assert sorted(used + rest) == list(range(COUNT))
            assert second.epoch == EPOCH + 1
            if settings_.get("order") == "strict":
                assert rest == [sample for sample in ORDER.tolist() if sample not in used]
    assert "turns" not in state
    assert bool(late) == bool(max_delay)


def test_a_run_may_go_on_again_and_again_with_everything_else_changed(images, wanted):
    kinds = [
        {"num_workers": 2},
        {"num_workers": 1, "batch_size": 5, "order": Relaxed(1)},
        {"num_workers": 2, "order": "strict"},
        {"num_workers": 1, "order": "strict", "kind": "processes"},
        {"num_workers": 3, "batch_size": 2, "order": Relaxed(7)},
    ]
    used, state = [], None
    for number, options in enumerate(kinds):
        loader = _loader(images, **options)
        if state is not None:
            loader.load_state_dict(state)
        batches = iter(loader)
        used += samples_of((next(batches) for _ in range(2)), wanted)
        state = json.loads(json.dumps(loader.state_dict()))
        if number == len(kinds) - 1:
            used += samples_of(batches, wanted)
        batches.close()
    assert sorted(used) == list(range(COUNT))


def test_the_rest_is_right_under_torchs_own_loader(images):
    first = _loader(images, num_workers=2)
    batches = iter(first)
    for _ in range(4):
        next(batches)
    state = first.state_dict()
    batches.close()
    late, early = state["turns"]["late"], state["turns"]["early"]
    left = late + [position for position in range(4 * BATCH, COUNT) if position not in early]
    sampler = EpochSampler(first.dataset, shuffle=True, seed=SEED)
    sampler.load_state_dict(state)
    assert [sample for _, sample in sampler] == ORDER[left].tolist()
    again = sampler.state_dict(7)
    third = EpochSampler(first.dataset, shuffle=True, seed=SEED)
    third.load_state_dict(again)
    assert [sample for _, sample in third] == ORDER[left[7:]].tolist()
    with pytest.raises(ArtifactError, match="rank 0 of 1 but this is rank 1 of 2"):
        EpochSampler(first.dataset, shuffle=True, seed=SEED, ranks=sophon.Ranks(1, 2)).load_state_dict(state)


@pytest.mark.parametrize("uneven", ["pad", "drop"])
def test_two_ranks_go_on_from_their_own_states_in_equal_steps(images, wanted, uneven):
    loaders = [_loader(images, (rank, 2), num_workers=2, uneven=uneven) for rank in range(2)]
    passes = [iter(loader) for loader in loaders]
    used = [samples_of((next(batches) for _ in range(3)), wanted) for batches in passes]
    states = [loader.state_dict() for loader in loaders]
    for batches in passes:
        batches.close()
    steps = set()
    for rank, state in enumerate(states):
        with pytest.raises(ArtifactError, match="load each rank's own"):
            _loader(images, (1 - rank, 2)).load_state_dict(state)
        with pytest.raises(ArtifactError, match=f"by rank {rank} of 2 but this is rank 0 of 1"):
            _loader(images).load_state_dict(state)
        second = _loader(images, (rank, 2), num_workers=1, uneven=uneven)
        second.load_state_dict(state)
        rest = list(second)
        steps.add(len(rest))
        mine = share(ORDER, 0, Rank(rank, 2), uneven).tolist()
        assert sorted(used[rank] + samples_of(rest, wanted)) == sorted(mine)
    assert len(steps) == 1


def test_a_state_of_strict_order_goes_on_in_relaxed_order_with_other_ranks(images, wanted):
    strict = _loader(images, order="strict")
    batches = iter(strict)
    used = samples_of((next(batches) for _ in range(5)), wanted)
    state = strict.state_dict()
    assert set(state) == {
        "format", "seed", "epoch", "cursor", "samples", "shuffle", "dataset", "pipeline", "plan"
    }  # fmt: skip
    for rank in range(2):
        loader = _loader(images, (rank, 2), num_workers=2)
        loader.load_state_dict(state)
        batches = iter(loader)
        mine = samples_of((next(batches) for _ in range(2)), wanted)
        again = loader.state_dict()
        batches.close()
        assert (again["cursor"], again["turns"]["begun"]) == (15 + 12, 15)
        other = _loader(images, (rank, 2), num_workers=1)
        other.load_state_dict(again)
        used += mine + samples_of(other, wanted)
    assert sorted(used) == list(range(COUNT))


def test_between_epochs_and_with_the_last_batch_a_state_is_that_of_all_ranks(images):
    loader = _loader(images, num_workers=1, drop_last=True)
    assert "turns" not in loader.state_dict()
    batches = iter(loader)
    next(batches)
    assert "turns" in loader.state_dict()
    for _ in range(len(loader) - 1):
        next(batches)
    assert "turns" not in loader.state_dict()
    batches.close()
    loader.load_state_dict(loader.state_dict())
    assert (loader.epoch, loader.state_dict()["cursor"]) == (EPOCH + 1, 39)


@pytest.mark.parametrize(
    "change",
    [
        {"late": [1]},
        {"late": [1], "early": [2]},
        {"late": [9, 9], "early": [40, 41]},
        {"late": [-1], "early": [40]},
        {"late": ["1"], "early": [40]},
        {"late": 3},
        {"begun": 1000},
        {"begun": -3},
        {"rank": None},
        {"rank": 7},
        {"more": 1},
        {"late": [10**30], "early": [10**30]},
        None,
    ],
)
def test_a_damaged_state_is_refused(images, change):
    loader = _loader(images, num_workers=1)
    batches = iter(loader)
    for _ in range(4):
        next(batches)
    state = loader.state_dict()
    batches.close()
    state["turns"] = {**state["turns"], **change} if change else []
    with pytest.raises(ArtifactError, match="turns: not written by a sophon loader"):
        loader.load_state_dict(state)


def test_a_state_of_a_longer_row_is_refused(images):
    loader = _loader(images, (0, 2))
    state = {**loader.state_dict(), "cursor": 40}
    state["turns"] = {"rank": 0, "world_size": 2, "begun": 0, "late": [3], "early": [20]}
    loader.load_state_dict(state)  # 21 samples each, the last one padded
    assert len(list(loader)) == 1
    loader = _loader(images, (0, 2), uneven="drop", batch_size=1)
    state["cursor"] = 38
    loader.load_state_dict(state)
    with pytest.raises(ArtifactError, match="same uneven setting"):
        list(loader)


def test_states_are_cheap_in_the_middle_of_a_million_samples(images):
    count, batch_size, max_delay = 1_000_000, 256, 32
    loader = _loader(images, batch_size=batch_size, order=Relaxed(max_delay))
    next(iter(loader))
    # As many late ones as there can be: all of the last 32 batches.
    late = np.arange(500_000 - max_delay * batch_size, 500_000)
    turns = Turns(Rank(), 0, 500_000, late, np.arange(600_000, 600_000 + len(late)))
    near = Turns(Rank(), 0, len(late), np.arange(len(late)), np.arange(len(late), 2 * len(late)))
    # Once a batch, whatever the number of samples.
    assert least_cpu_s(lambda: turns.after(late[:batch_size])) < 5 * least_cpu_s(lambda: near.after(near.late[:256]))
    turns = turns.after(late[:batch_size])
    loader._place.move(EPOCH, turns.places, turns)
    state = loader.state_dict()
    assert least_cpu_s(loader.state_dict) < least_cpu_s(lambda: json.dumps(state))
    assert len(state["turns"]["late"]) == len(state["turns"]["early"]) == max_delay * batch_size
    assert turns.left(count).size == count - turns.places


def _two_parts(images, stop, beyond=0):
    """Run an epoch in two parts; return both logs, the state between them and all batches."""
    first = _loader(images, num_workers=3, columns=())
    batches = iter(first)
    seen = [next(batches) for _ in range(stop)]
    state = first.state_dict()
    for _ in range(beyond):
        next(batches)
    batches.close()
    second = _loader(images, num_workers=2, columns=())
    second.load_state_dict(state)
    return first, second, state, seen, list(second)


@pytest.mark.parametrize("beyond", [0, 2])
def test_an_epoch_in_two_parts_is_replayed_from_both_logs(images, tmp_path, beyond):
    for stop in (1, 4, 9):
        first, second, state, seen, rest = _two_parts(images, stop, beyond)
        second.log.save(tmp_path / "second.log")
        log = Replay([first.log, tmp_path / "second.log"])
        replay = _loader(images, order=log, columns=(), num_workers=2)
        assert digest(replay) == digest(seen + rest)
        # One part alone can be replayed from the state that it began with, and not from anywhere else.
        alone = _loader(images, order=Replay(second.log), columns=())
        with pytest.raises(ConfigError, match=rf"second part of epoch \d+: {stop * BATCH} samples came before it"):
            next(iter(alone))
        alone = _loader(images, order=Replay(second.log), columns=(), num_workers=1)
        alone.load_state_dict(state)
        assert digest(alone) == digest(rest)
        with pytest.raises(ConfigError, match="does not continue where the first log ends"):
            _loader(images, order=Replay([tmp_path / "second.log", first.log]), columns=())


def test_a_loader_that_goes_on_from_its_own_state_keeps_one_log(images):
    loader = _loader(images, num_workers=3, columns=())
    batches = iter(loader)
    seen = [next(batches) for _ in range(4)]
    state = loader.state_dict()
    next(batches)  # is done again
    batches.close()
    loader.load_state_dict(state)
    seen += list(loader)
    assert sorted(loader.log.replay(EPOCH, ORDER).tolist()) == list(range(COUNT))
    assert digest(_loader(images, order=Replay(loader.log), columns=())) == digest(seen)


def test_a_replay_goes_on_from_its_own_states_and_refuses_those_of_another_run(images):
    recorded = _loader(images, num_workers=3, columns=())
    whole = list(recorded)
    replay = _loader(images, order=Replay(recorded.log), columns=())
    for number, _ in enumerate(replay, 1):
        again = _loader(images, order=Replay(recorded.log), columns=(), num_workers=number % 3)
        again.load_state_dict(replay.state_dict())
        again.set_epoch(EPOCH)
        assert digest(again) == digest(whole[number:])
    mixed = OrderLog(recorded.log.dataset, BATCH)
    mixed.record(EPOCH, ORDER, np.arange(COUNT)[::-1].copy())
    strict = _loader(images, order="strict", columns=())
    next(iter(strict))
    other = _loader(images, order=Replay(mixed), columns=())
    other.load_state_dict(strict.state_dict())
    with pytest.raises(ConfigError, match="does not come from the run that recorded"):
        next(iter(other))


def test_a_log_of_an_epoch_that_began_at_a_state_is_replayed_from_that_state_only(images):
    strict = _loader(images, order="strict", columns=())
    next(iter(strict))
    recorded = _loader(images, num_workers=3, columns=())
    recorded.load_state_dict(strict.state_dict())
    rest = list(recorded)
    replay = _loader(images, order=Replay(recorded.log), columns=())
    with pytest.raises(ConfigError, match="starts after 3 samples"):
        next(iter(replay))
    replay = _loader(images, order=Replay(recorded.log), columns=())
    replay.load_state_dict(strict.state_dict())
    assert digest(replay) == digest(rest)


def test_logs_of_different_runs_are_not_put_together():
    with pytest.raises(ConfigError, match="two logs of different runs"):
        OrderLog("d", 4).joined(OrderLog("d", 5))
    with pytest.raises(ConfigError, match="expected a log"):
        Replay([]).opened("d", 4)
