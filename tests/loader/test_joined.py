"""`ConcatDataset` and `Subset` of remote data sets, under our loader and under torch's."""

import itertools

import pytest
import torch
from torch.utils.data import ConcatDataset, Subset
from torch.utils.data import DataLoader as TorchDataLoader

import sophon
from sophon.errors import ConfigError
from sophon.pipeline import Key, Pipeline, ops
from sophon.store import open_store
from tests.support.servers import make_images, serve

RECIPE = Pipeline([ops.Decode(), ops.RandomResizedCrop(12), ops.ToTensor()])
SIZES = (7, 4)


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    base = tmp_path_factory.mktemp("joined")
    return [make_images(base / f"set {number}", size, classes=3 - number) for number, size in enumerate(SIZES)]


@pytest.fixture(scope="module")
def nodes(folders):
    with serve(folders[0]) as one, serve(folders[1]) as two:
        yield [one.url, two.url]


def _by_hand(folders, indexes, epoch=0):
    """Values and labels of samples of the whole, without a loader or a server."""
    stores = [open_store(folder) for folder in folders]
    values, labels = [], []
    for index in indexes:
        number, own = (0, index) if index < SIZES[0] else (1, index - SIZES[0])
        values.append(torch.from_numpy(RECIPE.run(stores[number].read(own), Key(5, epoch, index))))
        labels.append(stores[number].manifest.label(own))
    return torch.stack(values), labels


def _got(batches):
    parts = list(batches)
    return torch.cat([values for values, _ in parts]), torch.cat([labels for _, labels in parts]).tolist()


def _same(one, two):
    return torch.equal(one[0], two[0]) and one[1] == two[1]


def _sets(nodes, **settings):
    return [sophon.RemoteDataset(url, RECIPE, seed=5, **settings) for url in nodes]


@pytest.mark.parametrize("policy", [None, "2:webp", "none"])
def test_data_sets_follow_each_other_with_their_own_labels(nodes, folders, policy):
    with sophon.DataLoader(ConcatDataset(_sets(nodes, policy=policy)), 3, policy=None) as loader:
        assert len(loader) == 4
        for epoch in range(2):
            assert _same(_got(loader), _by_hand(folders, range(11), epoch))


def test_shuffled_and_resumed_in_the_middle(nodes, folders):
    data = ConcatDataset(_sets(nodes))
    first, second = (sophon.DataLoader(data, 2, shuffle=True) for _ in range(2))
    whole = _got(sophon.DataLoader(data, 2, shuffle=True))
    begun = list(itertools.islice(first, 2))
    second.load_state_dict(first.state_dict())
    assert _same(_got([*begun, *second]), whole)
    assert sorted(whole[1]) == sorted(_by_hand(folders, range(11))[1])


def test_subsets_of_them_and_of_the_whole(nodes, folders):
    one, two = _sets(nodes)
    cases = {
        (Subset(ConcatDataset([one, two]), [10, 3, 7]), (10, 3, 7)),
        (ConcatDataset([Subset(one, [6, 0]), two]), (6, 0, 7, 8, 9, 10)),
        (ConcatDataset([ConcatDataset([one]), Subset(two, [3])]), (0, 1, 2, 3, 4, 5, 6, 10)),
        (ConcatDataset([Subset(one, [1, 2]), Subset(one, [5])]), (1, 2, 5)),
    }
    for data, indexes in cases:
        with sophon.DataLoader(data, 4) as loader:
            assert _same(_got(loader), _by_hand(folders, indexes))


def test_paths_and_objects_too(folders):
    loader = sophon.DataLoader(ConcatDataset([sophon.RemoteDataset(path, RECIPE, seed=5) for path in folders]), 11)
    assert _same(_got(loader), _by_hand(folders, range(11)))


def test_the_sum_of_two_is_one_for_torchs_loader_with_one_request_for_a_batch(nodes, folders):
    one, two = _sets(nodes)
    whole = one + two
    assert len(whole) == 11
    assert _same(_got(TorchDataLoader(whole, 4)), _by_hand(folders, range(11)))
    whole.set_epoch(1)
    assert _same(_got(TorchDataLoader(whole, 4, num_workers=1)), _by_hand(folders, range(11), 1))


def test_torchs_loader_takes_torchs_own_wrappers(nodes, folders):
    one, two = _sets(nodes)
    got = _got(TorchDataLoader(ConcatDataset([one, two]), 4))
    assert got[1] == _by_hand(folders, range(11))[1]
    assert torch.equal(got[0][:7], _by_hand(folders, range(7))[0])
    assert _same(_got(TorchDataLoader(Subset(one, [4, 2]), 2)), _by_hand(folders, [4, 2]))


@pytest.mark.parametrize(
    ("other", "problem"),
    [
        ({"pipeline": Pipeline([ops.Decode(), ops.ToTensor()])}, r"different pipelines \(Decode, ToTensor, "),
        ({"seed": 6}, "seed=6"),
        ({"on_error": "skip"}, "on_error='skip'"),
        ({"output": sophon.Output(columns=("id",))}, "columns="),
        ({"cache": True}, "cache|policy"),
    ],
)
def test_data_sets_that_differ_in_more_than_their_samples_are_refused(folders, other, problem, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    told = {"pipeline": RECIPE, "seed": 5} | other
    sets = [sophon.RemoteDataset(folders[0], RECIPE, seed=5), sophon.RemoteDataset(folders[1], **told)]
    with pytest.raises(ConfigError, match=problem):
        sophon.DataLoader(ConcatDataset(sets))
