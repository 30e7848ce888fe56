"""Views through a loader: what users see of them, resuming, bad files, caches, and nodes that are checked.

That their bits are torchvision's, however the work is divided, is compared in tests/loader/test_recipes.py.
"""

import numpy as np
import pytest
import torch
from torch.utils.data import default_collate

import sophon
from sophon import ops
from sophon.errors import ConfigError
from sophon.loader.order.order import epoch_order
from sophon.pipeline import Key, Pipeline
from sophon.store.digests import write_digests
from tests.support.servers import make_images, serve
from tests.support.settings import grouped

SEED = 7
END = [ops.ToTensor(), ops.Normalize((0.5,), (0.25,))]
LARGE = [ops.RandomResizedCrop(24), ops.RandomHorizontalFlip(), ops.ColorJitter(0.4), *END]
SMALL = [ops.RandomResizedCrop(12, scale=(0.05, 0.4)), ops.RandomGrayscale(0.5), *END]
PIPELINE = Pipeline([ops.Decode(), ops.Views([LARGE, LARGE, SMALL])])
WORKERS = {"no workers": {"num_workers": 0}, "threads": {"num_workers": 2}}
WORKERS["processes"] = {"num_workers": 2, "kind": "processes", "multiprocessing_context": "fork"}


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    return make_images(tmp_path_factory.mktemp("views") / "train", 23)


@pytest.fixture(scope="module")
def node(images):
    with serve(images, cores=2) as running:
        yield running


def _loader(data, pipeline=PIPELINE, **told):
    policy = sophon.Planning(told.pop("policy", "none"), profile=False)
    return sophon.DataLoader(
        data, pipeline, **grouped(**{"batch_size": 4, "shuffle": True, "seed": SEED, "policy": policy, **told})
    )


def _expected(images, pipeline=PIPELINE, epoch=0):
    """Return the batches that the pipeline itself and torch's collating give."""
    store = sophon.open_store(images)
    order = epoch_order(len(store), SEED, epoch, shuffle=True).tolist()
    samples = []
    for i in order:
        views = pipeline.run(store.read(i), Key(SEED, epoch, i)).values
        samples.append(([torch.as_tensor(np.array(view)) for view in views], int(store.manifest.labels[i])))
    return [default_collate(samples[start : start + 4]) for start in range(0, len(samples), 4)]


def _same(ours, theirs):
    ours, theirs = list(ours), list(theirs)
    assert len(ours) == len(theirs)
    for (views, labels), (others, other_labels) in zip(ours, theirs, strict=True):
        assert type(views) is list
        assert len(views) == len(others)
        assert all(torch.equal(one, two) for one, two in zip(views, others, strict=True))
        assert torch.equal(labels, other_labels)


@pytest.mark.parametrize("workers", WORKERS)
def test_a_batch_is_a_list_of_views_and_the_labels(images, node, workers):
    expected = _expected(images)
    assert [tuple(view.shape) for view in expected[0][0]] == [(4, 3, 24, 24), (4, 3, 24, 24), (4, 3, 12, 12)]
    _same(_loader(images, **WORKERS[workers]), expected)
    for policy in ("2:webp", "3:raw", "all"):
        _same(_loader(node.url, policy=policy, **WORKERS[workers]), expected)


def test_a_sample_is_a_list_or_tuple_of_tensors_that_may_be_written_to(images):
    for container, kind in (("list", list), ("tuple", tuple)):
        dataset = sophon.RemoteDataset(images, Pipeline([ops.Decode(), ops.Views([LARGE, SMALL], container)]))
        views, label = dataset[3]
        assert type(views) is kind
        assert type(label) is int
        views[0].add_(1)
        assert not torch.equal(views[0], dataset[3][0][0])


def test_views_as_arrays(images):
    ours = next(iter(_loader(images, output="numpy")))
    theirs = _expected(images)[0]
    assert all(type(view) is np.ndarray for view in ours[0])
    assert all(np.array_equal(one, two.numpy()) for one, two in zip(ours[0], theirs[0], strict=True))


def test_what_a_step_of_ones_own_gives_users_see_as_it_is(images, node):
    pipeline = Pipeline([ops.Decode(), ops.Views([[*LARGE[:2], np.asarray], SMALL])])
    for data, workers in ((images, "no workers"), (node.url, "threads"), (node.url, "processes")):
        batch = next(iter(_loader(data, pipeline, collate_fn=list, **WORKERS[workers])))
        (array, tensor), _ = batch[0]
        assert type(array) is np.ndarray
        assert array.shape == (24, 24, 3)
        assert type(tensor) is torch.Tensor


@pytest.mark.parametrize("workers", ["no workers", "processes"])
def test_an_epoch_goes_on_where_it_was_left(images, node, workers):
    expected = [*_expected(images), *_expected(images, epoch=1)]
    loader = _loader(images)
    batches = iter(loader)
    first = [next(batches) for _ in range(2)]
    state = loader.state_dict()
    again = _loader(node.url, policy="2:webp", **WORKERS[workers])
    again.load_state_dict(state)
    _same([*first, *again, *again], expected)


@pytest.mark.filterwarnings("ignore::sophon.OffloadWarning")  # a node sends what it cannot work on as it is
def test_a_broken_file_is_skipped_with_all_its_views(images, tmp_path):
    folder = make_images(tmp_path / "train", 9, classes=1)
    broken = sorted((folder / "class_0").iterdir())[4]
    broken.write_bytes(broken.read_bytes()[:40])
    with serve(folder) as server:
        for workers in WORKERS.values():
            loader = _loader(server.url, policy="2:webp", on_error="skip", budget=1, **workers)
            views = [views for views, _ in loader]
            assert sum(len(part[0]) for part in views) == sum(len(part[2]) for part in views) == 8
            assert [bad.id for bad in loader.bad_samples] == [f"class_0/{broken.name}"]


def test_planned_epochs_have_the_same_views(images, node):
    expected = [_expected(images, epoch=epoch) for epoch in range(3)]
    for policy in ("optimal", "sophon", "fastflow"):
        loader = _loader(node.url, policy=policy, num_workers=2)
        for batches in expected:
            _same(loader, batches)


def test_views_without_chance_are_kept_by_a_cache(images, node, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    pipeline = Pipeline([ops.Decode(), ops.Views([[ops.CenterCrop(20), *END], [ops.Resize((9, 9)), *END]])])
    expected = [_expected(images, pipeline, epoch) for epoch in range(2)]
    loader = sophon.DataLoader(node.url, pipeline, batch_size=4, shuffle=True, seed=SEED, cache="3:raw")
    for batches in expected:
        _same(loader, batches)
    assert loader.stats.cached == 23


def test_a_node_that_is_checked_gives_views(images, node, tmp_path):
    write_digests(sophon.open_store(images), tmp_path / "digests")
    faults = sophon.Faults(verify=sophon.Verify(tmp_path / "digests", "all"))
    _same(_loader(node.url, policy="2:webp", faults=faults), _expected(images))


def test_a_policy_that_no_view_can_have_is_refused(images, node):
    with pytest.raises(ConfigError, match="cannot be cut at 4:webp"):
        _loader(node.url, policy="4:webp")
