"""RemoteDataset under torch's own DataLoader: one plan and one account for all of its workers."""

import pickle

import pytest
import torch

import sophon
from sophon.loader.planning.ledger import Ledger
from tests.support.servers import RECIPE, digest, make_images, serve

COUNT = 48


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    return make_images(tmp_path_factory.mktemp("data") / "train", COUNT)


@pytest.fixture(scope="module")
def server(photos):
    with serve(photos, cores=2) as running:
        yield running


def _epochs(dataset, **told):
    sampler = sophon.EpochSampler(dataset, shuffle=True, seed=3)
    loader = torch.utils.data.DataLoader(dataset, 8, sampler=sampler, **told)
    return [digest(loader) for _ in range(3)]


@pytest.fixture(scope="module")
def truth(photos):
    return _epochs(sophon.RemoteDataset(photos, RECIPE, seed=3))


@pytest.mark.parametrize(
    "told",
    [
        {"num_workers": 2},
        pytest.param({"num_workers": 2, "persistent_workers": True}, marks=pytest.mark.slow),
        pytest.param({"num_workers": 1, "multiprocessing_context": "spawn"}, marks=pytest.mark.slow),
        {},
    ],
)
@pytest.mark.matrix(every=2)
def test_all_workers_measure_and_follow_one_plan(server, truth, told, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))  # no earlier run has measured anything
    dataset = sophon.RemoteDataset(server.url, RECIPE, seed=3, policy="sophon")
    assert dataset.plan is None
    assert _epochs(dataset, **told) == truth
    assert dataset.stats.samples == 3 * COUNT
    assert dataset.plan is not None
    planned = {str(cut): count for cut, count in dataset.plan.counts().items()}
    sampler = sophon.EpochSampler(dataset, shuffle=True, seed=3)
    sampler.set_epoch(2)  # of which the plan is
    before = dataset.stats.to_dict()
    list(torch.utils.data.DataLoader(dataset, 8, sampler=sampler, **told))
    assert dataset.stats.since(before).cuts == planned, "all of them did as planned"
    assert dataset.stats.finish_cpu_s > 0
    assert dataset.stats.link_bytes > 0


def test_counts_of_workers_are_all_there_without_a_plan_too(server, truth):
    dataset = sophon.RemoteDataset(server.url, RECIPE, seed=3, policy="resize", faults=sophon.Faults(hedge=30.0))
    assert _epochs(dataset, num_workers=2) == truth
    assert dataset.stats.samples == 3 * COUNT
    assert dataset.plan is None


def test_a_loader_of_ours_takes_the_policy_of_its_data_set(server):
    dataset = sophon.RemoteDataset(server.url, RECIPE, policy="sophon")
    assert "policy='sophon'" in repr(dataset)
    assert "policy='sophon'" in repr(sophon.DataLoader(dataset, batch_size=4))


def test_lines_of_several_processes_are_read_once():
    ledger = Ledger()
    ledger.add([["a", 1], ["b", 2]])
    assert ledger.take() == [["a", 1], ["b", 2]]
    other = pickle.loads(pickle.dumps(ledger))  # as where a process is spawned
    other.add([["c", 3]])
    assert ledger.take() == [["c", 3]]
    assert ledger.take() == []
