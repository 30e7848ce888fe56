"""Invariant 1 for whole epochs: the sequence of batches depends on data, pipeline, batch size, seed and epoch only."""

import numpy as np
import pytest
import torch
from torch.utils.data import BatchSampler
from torch.utils.data import DataLoader as TorchDataLoader

import sophon
from sophon.loader.sources.assignment import OffloadWarning
from sophon.pipeline import Key, Pipeline
from tests.support.marks import slow
from tests.support.servers import RECIPE, digest
from tests.support.settings import grouped


def _two_epochs(loader):
    return digest(batch for _ in range(2) for batch in loader)


def _random_plan(count):
    cuts = [str(cut) for cut in sophon.legal_cuts(RECIPE)]
    return [cuts[i] for i in np.random.default_rng(3).integers(0, len(cuts), count)]


POLICIES = {
    "none": {"policy": "none"},
    "all": {"policy": "all"},
    "resize": {"policy": "resize"},
    "random plan": {"policy": _random_plan(41)},
}


@pytest.mark.parametrize("workers", [0, 2, *slow(1, 4)])
@pytest.mark.parametrize("policy", POLICIES)
def test_same_batches_for_every_policy_and_number_of_threads(server, expected, policy, workers):
    loader = sophon.DataLoader(
        server.url, RECIPE, **grouped(batch_size=8, shuffle=True, seed=5, num_workers=workers, **POLICIES[policy])
    )
    assert _two_epochs(loader) == expected
    assert loader.stats.samples == 82
    # No window can be cut from a PNG: the random plan asks for some, and gets the raw file.
    assert (loader.stats.smaller_cuts > 0) == (policy == "random plan")


@pytest.mark.filterwarnings("ignore:This DataLoader will create")  # four workers are more than this machine has cores
@pytest.mark.parametrize(
    ("policy", "workers", "start"),
    [
        ("random plan", 4, "fork"),
        ("resize", 2, "spawn"),
        *slow(("none", 1, "fork"), ("resize", 2, "fork"), ("all", 2, "fork"), ("random plan", 4, "spawn")),
    ],
)
@pytest.mark.matrix(every=2)
def test_same_batches_for_worker_processes(server, expected, policy, workers, start):
    loader = sophon.DataLoader(
        server.url,
        RECIPE,
        **grouped(
            batch_size=8,
            shuffle=True,
            seed=5,
            num_workers=sophon.Workers(workers, kind="processes"),
            multiprocessing_context=start,
            persistent_workers=start == "spawn",
            **POLICIES[policy],
        ),
    )
    assert _two_epochs(loader) == expected


@pytest.mark.parametrize(("workers", "start"), [(0, None), (2, "fork"), *slow((2, "spawn"))])
def test_same_batches_under_torchs_own_loader(server, expected, workers, start):
    dataset = sophon.RemoteDataset(server.url, RECIPE, seed=5, policy=POLICIES["random plan"]["policy"])
    sampler = sophon.EpochSampler(dataset, shuffle=True, seed=5)
    loader = TorchDataLoader(
        dataset,
        batch_sampler=BatchSampler(sampler, 8, False),
        num_workers=workers,
        multiprocessing_context=start,
        persistent_workers=start == "spawn",
    )
    assert _two_epochs(loader) == expected


def test_same_samples_under_torchs_own_loader_with_plain_indexes_and_set_epoch(server, images):
    dataset = sophon.RemoteDataset(server.url, RECIPE, seed=5)
    for epoch in (0, 3):
        dataset.set_epoch(epoch)
        loader = TorchDataLoader(dataset, batch_size=7, num_workers=2, persistent_workers=True)
        local = sophon.DataLoader(images, RECIPE, batch_size=7, seed=5)
        local.set_epoch(epoch)
        assert digest(loader) == digest(local)


def test_persistent_workers_learn_of_the_epoch(server, images):
    dataset = sophon.RemoteDataset(server.url, RECIPE, seed=5)
    loader = TorchDataLoader(dataset, batch_size=7, num_workers=1, persistent_workers=True)
    for epoch in range(2):
        dataset.set_epoch(epoch)
        local = sophon.DataLoader(images, RECIPE, batch_size=7, seed=5)
        local.set_epoch(epoch)
        assert digest(loader) == digest(local)


@pytest.mark.parametrize("workers", [0, 2])
def test_same_batches_in_local_mode(images, expected, workers):
    assert (
        _two_epochs(sophon.DataLoader(images, RECIPE, batch_size=8, shuffle=True, num_workers=workers, seed=5))
        == expected
    )


def test_every_epoch_has_another_order_and_other_crops(images):
    loader = sophon.DataLoader(images, RECIPE, batch_size=41, shuffle=True, seed=1)
    (one,), (two,) = list(loader), list(loader)
    assert not torch.equal(one[1], two[1])
    assert sorted(one[1].tolist()) == sorted(two[1].tolist())
    loader.set_epoch(0)
    (again,) = list(loader)
    assert digest([again]) == digest([one])


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("where", ["server", "local"])
def test_the_window_policy_sends_windows(server, images, where, workers):
    url = server.url if where == "server" else str(images)
    loader = sophon.DataLoader(url, RECIPE, batch_size=8, num_workers=workers, policy="0:window")
    plain = sophon.DataLoader(images, RECIPE, batch_size=8)
    with pytest.warns(OffloadWarning, match="samples as raw files instead of making the requested cut"):
        assert digest(loader) == digest(plain)
    assert loader.stats.cuts["0:window"] > 10
    assert loader.stats.cuts["0:window"] + loader.stats.cuts["0:raw"] == 41


def _noisy(tensor):
    return tensor + torch.rand(1)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_callable_and_a_training_loop_that_both_draw_do_not_disturb_each_other(images, workers):
    pipeline = Pipeline([*RECIPE.ops, _noisy])
    torch.manual_seed(3)
    batches, drawn = [], []
    for batch in sophon.DataLoader(images, pipeline, batch_size=4, num_workers=workers):
        batches.append(batch)
        drawn += [torch.rand(1).item() for _ in range(50)]
    torch.manual_seed(3)
    assert drawn == [torch.rand(1).item() for _ in range(len(drawn))]
    store = sophon.open_store(images)
    expected = [pipeline.run(store.read(i), Key(0, 0, i)) for i in range(4)]
    assert batches[0][0].numpy().tobytes() == np.stack(expected).tobytes()


@pytest.mark.parametrize("persistent", [False, True])
def test_two_iterators_of_worker_processes_never_get_each_others_batches(images, persistent):
    processes = {"num_workers": 1, "kind": "processes", "persistent_workers": persistent}
    loader = sophon.DataLoader(images, RECIPE, **grouped(batch_size=8, shuffle=True, seed=5, **processes))
    plain = sophon.DataLoader(images, RECIPE, batch_size=8, shuffle=True, seed=5)
    expected = [digest(plain), digest(plain)]
    first, second = [], []
    older = iter(loader)
    first.append(next(older))
    newer = iter(loader)
    second.append(next(newer))
    first += older
    second += newer
    assert digest(second) == expected[1]
    assert digest(first) == expected[0]
