"""A run can go on at any batch, with other workers and ranks: what is left is right, bit for bit."""

import json

import pytest
from torch.utils.data import BatchSampler
from torch.utils.data import DataLoader as TorchDataLoader

import sophon
from sophon.errors import ArtifactError, ConfigError
from sophon.loader.order.order import epoch_order
from sophon.loader.sampler import EpochSampler
from sophon.pipeline import Pipeline, ops
from tests.support.effort import least_cpu_s
from tests.support.epochs import samples_of, wanted_in
from tests.support.marks import slow
from tests.support.servers import RECIPE, make_images
from tests.support.settings import grouped

COUNT, BATCH, SEED, EPOCH = 41, 3, 5, 2


@pytest.fixture(scope="module")
def wanted(images):
    return wanted_in(images, SEED, EPOCH)


def _loader(url, ranks=(0, 1), count=0, batch_size=BATCH, **settings):
    rank, size = ranks
    settings = {"policy": "none", "seed": SEED, "shuffle": True, "columns": ("id",), **settings}
    made = sophon.DataLoader(
        url, RECIPE, **grouped(batch_size=batch_size, num_workers=count, rank=rank, size=size, **settings)
    )
    made.set_epoch(EPOCH)
    return made


def _states(url, size, count, wanted, **settings):
    """Run an epoch on all ranks; yield the state behind every batch and the samples used up by then, in order."""
    loaders = [_loader(url, (rank, size), count, **settings) for rank in range(size)]
    passes = [iter(loader) for loader in loaders]
    used = []
    for _ in range(len(loaders[0])):
        mine = [samples_of([next(batches)], wanted) for batches in passes]
        used += [sample for row in zip(*mine, strict=True) for sample in row]
        states = [loader.state_dict() for loader in loaders]
        assert all(state == states[0] for state in states)
        yield json.loads(json.dumps(states[0])), list(used)
    for batches in passes:
        assert next(batches, None) is None
    assert loaders[0].state_dict()["epoch"] == EPOCH + 1


def _rest(url, state, size, count, wanted, batch_size=BATCH, **settings):
    """Go on from a state on all ranks; return what is left of its epoch in global order."""
    parts = []
    for rank in range(size):
        loader = _loader(url, (rank, size), count, batch_size, **settings)
        loader.load_state_dict(state)
        loader.set_epoch(EPOCH)  # as training loops do that count epochs themselves
        parts.append(samples_of(loader, wanted))
        assert loader.epoch == EPOCH + 1
    return [sample for row in zip(*parts, strict=True) for sample in row]


ORDER = epoch_order(COUNT, SEED, EPOCH, shuffle=True).tolist()


def _padded(rest, size):
    return [*rest, *ORDER[: -len(rest) % size]]


@pytest.mark.parametrize("after", [(4, 1), (2, 2), (1, 0)])
@pytest.mark.parametrize("before", [(1, 0), (1, 2), (2, 1)])
@pytest.mark.matrix(every=4)
def test_the_rest_of_an_epoch_is_right_behind_every_batch(images, wanted, before, after):
    for state, used in _states(images, *before, wanted):
        cursor = min(len(used), COUNT)
        assert used[:cursor] == ORDER[:cursor]
        assert state["cursor"] == cursor
        assert _rest(images, state, *after, wanted) == _padded(ORDER[cursor:], after[0])


def test_the_rest_is_right_with_a_server_and_another_batch_size_and_policy(server, wanted):
    for number, (state, used) in enumerate(_states(server.url, 2, 1, wanted)):
        if number % 3 == 0:
            rest = _rest(server.url, state, 2, 2, wanted, batch_size=5, policy="resize")
            assert rest == _padded(ORDER[len(used) :], 2)


@pytest.mark.parametrize("start", ["fork", *slow("spawn")])
def test_the_rest_is_right_with_worker_processes(images, wanted, start):
    settings = {"kind": "processes", "multiprocessing_context": start}
    for number, (state, used) in enumerate(_states(images, 1, 2, wanted, prefetch_factor=4, **settings)):
        if number in (0, 5) if start == "fork" else number == 2:
            assert state["cursor"] == len(used)  # what was handed out, not what workers made ahead
            assert _rest(images, state, 1, 1, wanted, **settings) == ORDER[len(used) :]
            assert _rest(images, state, 2, 1, wanted) == _padded(ORDER[len(used) :], 2)


@pytest.mark.parametrize("workers", [0, 2])
def test_the_rest_is_right_under_torchs_own_loader(images, wanted, workers):
    def made(size=1, rank=0):
        dataset = sophon.RemoteDataset(images, RECIPE, seed=SEED, output=sophon.Output(columns=("id",)))
        sampler = EpochSampler(dataset, shuffle=True, seed=SEED, ranks=sophon.Ranks(rank, size))
        sampler.set_epoch(EPOCH)
        return sampler, TorchDataLoader(
            dataset, batch_sampler=BatchSampler(sampler, BATCH, False), num_workers=workers, prefetch_factor=None
        )

    sampler, loader = made()
    assert sampler.state_dict(0)["cursor"] == 0
    states = [sampler.state_dict(step * BATCH) for step, _ in enumerate(loader, 1)]
    assert len(states) == 14
    for state in states[:: 1 if workers == 0 else 5]:
        sampler, loader = made()
        sampler.load_state_dict(json.loads(json.dumps(state)))
        sampler.set_epoch(EPOCH)
        assert samples_of(loader, wanted) == ORDER[state["cursor"] :]
        again = sampler.state_dict(2)
        assert again["cursor"] == min(state["cursor"] + 2, COUNT)
    assert _rest(images, states[4], 2, 1, wanted) == _padded(ORDER[15:], 2)
    halves = [made(2, rank) for rank in range(2)]
    for sampler, _ in halves:
        sampler.load_state_dict(states[6])
    parts = [samples_of(loader, wanted) for _, loader in halves]
    assert [sample for row in zip(*parts, strict=True) for sample in row] == _padded(ORDER[21:], 2)


def test_a_state_taken_behind_the_last_batch_goes_on_with_the_next_epoch(images):
    loader = _loader(images)
    batches = iter(loader)
    for _ in range(len(loader)):
        next(batches)
    state = loader.state_dict()
    assert (state["epoch"], state["cursor"]) == (EPOCH, COUNT)
    other = _loader(images)
    other.load_state_dict(state)
    assert other.epoch == EPOCH + 1
    assert len(list(other)) == len(other)
    # Whoever counts epochs himself and asks for the finished one gets what is left of it.
    other.load_state_dict(state)
    other.set_epoch(EPOCH)
    assert list(other) == []
    assert len(list(other)) == len(other)
    sampler = EpochSampler(loader.dataset, shuffle=True, seed=SEED)
    sampler.load_state_dict(state)
    assert {epoch for epoch, _ in sampler} == {EPOCH + 1}


def test_set_epoch_to_another_epoch_begins_at_its_beginning(images):
    loader = _loader(images)
    next(iter(loader))
    other = _loader(images)
    other.load_state_dict(loader.state_dict())
    other.set_epoch(EPOCH + 3)
    assert len(list(other)) == len(other)
    assert other.epoch == EPOCH + 4


def test_a_state_survives_being_loaded_and_taken_again(images):
    loader = _loader(images)
    assert loader.state_dict()["cursor"] == 0
    batches = iter(loader)
    next(batches)
    state = loader.state_dict()
    other = _loader(images)
    other.load_state_dict(state)
    assert other.state_dict() == state


def test_with_drop_last_the_small_batch_is_left_out_and_the_epoch_is_over(images):
    loader = _loader(images, batch_size=8, drop_last=True)
    batches = iter(loader)
    for _ in range(5):
        next(batches)
    other = _loader(images, batch_size=8, drop_last=True)
    other.load_state_dict(loader.state_dict())
    assert other.epoch == EPOCH + 1
    other.set_epoch(EPOCH)
    assert list(other) == []


def test_a_state_is_cheap_and_small(images):
    loader = _loader(images)
    next(iter(loader))
    state = loader.state_dict()
    taking_s = least_cpu_s(lambda: [loader.state_dict() for _ in range(100)])
    assert taking_s < 5 * least_cpu_s(lambda: [json.loads(json.dumps(state)) for _ in range(100)])
    assert len(json.dumps(state)) < 500


@pytest.mark.parametrize(
    ("change", "both"),
    [
        ({"seed": 6}, ("saved seed=5", "here seed=6")),
        ({"shuffle": False}, ("saved shuffle=True", "here shuffle=False")),
    ],
)
def test_a_state_of_another_run_is_refused_with_both_sides_shown(images, change, both):
    state = _loader(images).state_dict()
    with pytest.raises(ArtifactError) as caught:
        _loader(images, **change).load_state_dict(state)
    assert all(text in str(caught.value) for text in both)


def test_a_state_of_another_pipeline_or_data_set_is_refused(images, tmp_path):
    state = _loader(images).state_dict()
    other = sophon.DataLoader(images, Pipeline([*RECIPE.ops[:3], ops.ToTensor()]), seed=SEED, shuffle=True)
    with pytest.raises(ArtifactError, match="another pipeline"):
        other.load_state_dict(state)
    folder = make_images(tmp_path / "train", 7)
    with pytest.raises(ArtifactError, match=r"samples=41, here samples=7.*a different data set"):
        _loader(folder).load_state_dict(state)
    sampler = EpochSampler(sophon.RemoteDataset(folder, RECIPE), shuffle=True, seed=SEED)
    with pytest.raises(ArtifactError, match="a different data set"):
        sampler.load_state_dict(state)


@pytest.mark.parametrize("state", [None, {}, {"format": 2}, {"format": 1}, {"format": 1, "what": 0}])
def test_what_is_no_state_is_refused(images, state):
    with pytest.raises(ArtifactError, match="state of a sophon loader"):
        _loader(images).load_state_dict(state)


@pytest.mark.parametrize("cursor", [-1, 1.5, True, "3"])
def test_a_damaged_state_is_refused(images, cursor):
    loader = _loader(images)
    with pytest.raises(ArtifactError, match="cursor: expected an integer"):
        loader.load_state_dict({**loader.state_dict(), "cursor": cursor})


@pytest.mark.parametrize("change", [{"cursor": COUNT + 1}, {"cursor": 2**70}, {"epoch": 2**63}])
def test_a_state_beyond_all_samples_and_epochs_is_refused(images, change):
    loader = _loader(images)
    with pytest.raises(ArtifactError, match=f"state: {next(iter(change))}: expected"):
        loader.load_state_dict({**loader.state_dict(), **change})


def test_a_sampler_must_be_told_what_was_taken(images):
    sampler = EpochSampler(sophon.RemoteDataset(images, RECIPE))
    for taken in (-1, True, "3"):
        with pytest.raises(ConfigError, match="taken: expected"):
            sampler.state_dict(taken)
    with pytest.raises(ConfigError, match="nothing has been requested"):
        sampler.state_dict(3)


def test_resume_goes_on_while_the_planner_plans(server, wanted):
    loader = _loader(server.url, policy="optimal", profile=False)
    batches = iter(loader)
    used = [sample for _ in range(4) for sample in samples_of([next(batches)], wanted)]
    batches.close()
    rest = _rest(server.url, loader.state_dict(), 1, 1, wanted, policy="optimal", profile=False)
    assert used + rest == ORDER
