"""What a collate_fn draws depends on (seed, epoch, position in the epoch) alone, and the user's generators stay put.

The oracle is torchvision's own CutMix and MixUp, run on torch's own batches with seeds of the documented stream.
"""

import multiprocessing
import random
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch.utils.data import default_collate

import sophon
from sophon.loader.order.order import epoch_order
from sophon.pipeline import Key, Rng
from tests.support.servers import RECIPE, digest, make_images
from tests.support.settings import grouped
from tests.support.tensor_op import SeesSamples
from tests.support.torchvision_import import import_torchvision
from tests.support.waiting import HANG_S

import_torchvision()
from torchvision.transforms import v2  # noqa: E402 - torchvision needs two operators first

SEED = 5
COUNT = 41  # images of the fixture
CLASSES = 3

mix = v2.RandomChoice([v2.CutMix(num_classes=CLASSES), v2.MixUp(num_classes=CLASSES)])


def collate(batch):
    return mix(*default_collate(batch))


def draw_all(batch):
    """Return what each of the global generators gives, beside the labels."""
    drawn = torch.tensor([random.random(), np.random.random(), torch.rand(1).item()])
    return drawn, torch.tensor([label for _, label in batch])


def _loader(data, workers=0, kind=None, **settings):
    told = {"shuffle": True, "seed": SEED, "collate_fn": collate, "policy": "none", **settings}
    return sophon.DataLoader(
        data, RECIPE, **grouped(batch_size=8, num_workers=sophon.Workers(workers, kind=kind), **told)
    )


def _two_epochs(loader):
    for _ in range(2):
        for batch in loader:
            torch.rand(3)  # a training loop draws too
            random.random()
            np.random.random()
            yield batch


def _drawn_at(position):
    """Return the first number of each generator under the seed of a batch at a position of epoch 0."""
    word = Rng(Key(SEED, 0, position), 1 << 32).word()
    in_torch = torch.Generator().manual_seed(word & 0x7FFFFFFFFFFFFFFF)
    in_numpy = np.random.RandomState(word & 0xFFFFFFFF)
    return [random.Random(word).random(), in_numpy.random(), torch.rand(1, generator=in_torch).item()]


@pytest.fixture(scope="module")
def mixed(images):
    """Two epochs, made by torchvision of plain batches under the documented seeds."""
    plain = sophon.DataLoader(images, RECIPE, batch_size=8, shuffle=True, seed=SEED)
    made = []
    for epoch in range(2):
        for number, batch in enumerate(plain):
            word = Rng(Key(SEED, epoch, 8 * number), 1 << 32).word()
            random.seed(word)
            np.random.seed(word & 0xFFFFFFFF)
            torch.manual_seed(word & 0x7FFFFFFFFFFFFFFF)
            made.append(mix(*batch))
    return digest(made)


@pytest.mark.parametrize(("workers", "kind"), [(0, None), (2, None), (1, "processes")])
def test_mixed_batches_are_the_same_for_every_kind_and_number_of_workers(images, mixed, workers, kind):
    torch.manual_seed(workers)
    assert digest(_two_epochs(_loader(images, workers, kind))) == mixed


@pytest.mark.parametrize(("workers", "kind"), [(0, None), (2, None)])
def test_mixed_batches_are_the_same_over_a_server(server, mixed, workers, kind):
    assert digest(_two_epochs(_loader(server.url, workers, kind))) == mixed


@pytest.mark.slow  # spawned workers take seconds to start
def test_mixed_batches_are_the_same_with_spawned_workers(images, mixed):
    told = {"multiprocessing_context": "spawn", "persistent_workers": True}  # they take seconds to start
    assert digest(_two_epochs(_loader(images, 2, "processes", **told))) == mixed


def test_mixed_batches_are_the_same_with_automatic_workers_and_a_cut(server, mixed):
    assert digest(_two_epochs(_loader(server.url, "auto", policy="resize"))) == mixed


def test_every_batch_is_mixed_in_its_own_way(images):
    drawn = [tuple(batch[0].tolist()) for batch in _two_epochs(_loader(images, collate_fn=draw_all))]
    for column in zip(*drawn, strict=True):
        assert len(set(column)) == len(column) == 12


@pytest.mark.parametrize(("workers", "kind"), [(0, None), (2, None)])
@pytest.mark.parametrize("taken", [1, 4])
@pytest.mark.matrix(every=4)
def test_the_rest_of_an_epoch_is_mixed_as_without_an_interruption(images, taken, workers, kind):
    whole = list(_loader(images))
    first = _loader(images)
    batches = iter(first)
    for _ in range(taken):
        next(batches)
    second = _loader(images, workers, kind)
    second.load_state_dict(first.state_dict())
    assert digest(second) == digest(whole[taken:])


@pytest.mark.parametrize(("workers", "kind"), [(0, None), (2, None)])
@pytest.mark.parametrize("rank", [0, 1])
def test_with_ranks_the_position_is_that_in_the_whole_epoch(images, rank, workers, kind):
    loader = _loader(images, workers, kind, rank=rank, size=2, collate_fn=draw_all)
    for number, (drawn, _) in enumerate(loader):
        assert drawn.tolist() == torch.tensor(_drawn_at(16 * number + rank)).tolist()


def test_a_batch_of_the_same_samples_at_the_same_position_is_the_same_with_other_ranks(images):
    # With batches of one sample every rank's batch is a batch of the whole epoch.
    alone = list(sophon.DataLoader(images, RECIPE, batch_size=1, shuffle=True, collate_fn=collate, seed=SEED))
    for rank in range(2):
        told = {"rank": rank, "size": 2, "uneven": "drop"}
        shared = sophon.DataLoader(
            images, RECIPE, **grouped(batch_size=1, shuffle=True, collate_fn=collate, seed=SEED, **told)
        )
        assert digest(shared) == digest(alone[: COUNT // 2 * 2][rank::2])


def test_going_on_with_other_ranks_keeps_the_position(images):
    first = _loader(images, rank=0, size=2, collate_fn=draw_all)
    next(iter(first))
    second = _loader(images, collate_fn=draw_all)
    second.load_state_dict(first.state_dict())
    whole = list(_loader(images, collate_fn=draw_all))
    assert digest(second) == digest(whole[2:])


def draw_named(batch):
    """Return what each of the global generators gives, beside the names of the samples."""
    return [random.random(), np.random.random(), torch.rand(1).item()], [columns["id"] for *_, columns in batch]


def _named(images, workers, kind=None, **settings):
    return _loader(images, workers, kind, collate_fn=draw_named, columns=["id"], **settings)


def _is_of_its_first_sample(images, batches):
    """Return whether what batches drew is that of the position of the sample in their first slot."""
    names = [
        name
        for _, found in sophon.DataLoader(
            images, RECIPE, batch_size=COUNT, collate_fn=draw_named, output=sophon.Output(columns=["id"])
        )
        for name in found
    ]
    position_of = {names[sample]: at for at, sample in enumerate(epoch_order(COUNT, SEED, 0, shuffle=True))}
    return all(drawn == _drawn_at(position_of[found[0]]) for drawn, found in batches)


@pytest.mark.parametrize("workers", [0, 3])
def test_in_relaxed_order_the_sample_in_the_first_slot_decides_and_a_replay_is_the_same(images, workers):
    loader = _named(images, workers, order="relaxed")
    batches = list(loader)
    assert len(batches) == 6
    assert _is_of_its_first_sample(images, batches)
    assert list(_named(images, 0, order=sophon.Replay(loader.log))) == batches


others_came = multiprocessing.get_context("fork").Event()  # worker processes wait for it


@dataclass(frozen=True)
class HoldFirst(SeesSamples):
    """Pass tensors on; that of the first sample of the order when others have come."""

    def apply(self, value, params):
        if params == epoch_order(COUNT, SEED, 0, shuffle=True)[0]:
            assert others_came.wait(HANG_S)
        return value


@pytest.mark.parametrize("settings", [{"order": "relaxed"}, {}])
def test_what_is_left_of_a_relaxed_epoch_keeps_its_positions(images, settings):
    others_came.clear()
    told = {"seed": SEED, "collate_fn": draw_named, "columns": ["id"], "order": sophon.Relaxed(2)}
    first = sophon.DataLoader(
        images, [*RECIPE.ops, HoldFirst()], **grouped(batch_size=8, shuffle=True, num_workers=3, **told)
    )
    batches = iter(first)
    got = [next(batches)]
    others_came.set()
    got.append(next(batches))
    state = first.state_dict()
    assert got[0][0] != _drawn_at(0)  # the first sample came late
    second = _named(images, 2, **settings)
    second.load_state_dict({**state, "pipeline": second.dataset.pipeline.fingerprint})
    got += second
    assert len({name for _, found in got for name in found}) == COUNT
    assert _is_of_its_first_sample(images, got)


def _states():
    return (
        random.getstate(),
        np.random.get_state()[1].tobytes(),
        np.random.get_state()[2:],
        torch.get_rng_state().tolist(),
    )


@pytest.mark.parametrize(("workers", "kind"), [(0, None), (2, None)])
def test_the_users_generators_are_left_as_they_were(images, workers, kind):
    batches = iter(_loader(images, workers, kind))
    next(batches)  # to start worker processes, torch itself draws a number
    random.gauss()  # which keeps a second number for the next call
    np.random.normal()
    torch.randn(1)
    before = _states()
    assert len(list(batches)) == 5
    assert _states() == before


@pytest.mark.parametrize("workers", [0, 2])
def test_no_number_is_drawn_for_the_first_batch_either(images, workers):
    before = _states()
    next(iter(_loader(images, workers)))
    assert _states() == before


def test_the_users_generators_are_put_back_after_an_error(images):
    def fail(batch):
        random.random(), np.random.random(), torch.rand(1)
        raise ValueError(f"{len(batch)} samples")

    before = _states()
    with pytest.raises(ValueError, match="8 samples"):
        next(iter(_loader(images, collate_fn=fail)))
    assert _states() == before


def test_a_skipped_first_sample_does_not_change_what_its_batch_draws(tmp_path):
    images = make_images(tmp_path / "train", 8)
    sample = int(epoch_order(8, SEED, 0, shuffle=True)[0])
    plain = sophon.DataLoader(images, RECIPE, batch_size=8, collate_fn=draw_named, output=sophon.Output(columns=["id"]))
    ((_, names),) = plain
    (images / names[sample]).write_bytes(b"no picture")
    for workers, kind in ((0, None), (1, None)):
        ((drawn, found),) = _named(images, workers, kind, on_error="skip", budget=1)
        assert len(found) == 7
        assert drawn == _drawn_at(0)


def _noisy(label):
    return label + random.random() + np.random.rand() + float(torch.rand(1))


@pytest.mark.parametrize(("workers", "kind"), [(0, None), (2, None)])
def test_what_a_target_transform_draws_depends_on_the_sample_alone(images, server, workers, kind):
    def labels(data, **told):
        loader = sophon.DataLoader(data, RECIPE, **grouped(shuffle=True, seed=3, target_transform=_noisy, **told))
        return torch.cat([batch[1] for _ in range(2) for batch in loader]).tolist()

    expected = labels(images, batch_size=5)
    assert len(set(expected)) == len(expected)
    torch.manual_seed(1)
    state = torch.random.get_rng_state()
    assert labels(images, batch_size=4, num_workers=workers, kind=kind) == expected
    assert labels(server.url, batch_size=8, num_workers=workers, kind=kind, policy="all") == expected
    assert torch.equal(torch.random.get_rng_state(), state)


def test_an_error_of_a_target_transform_names_the_sample(images):
    loader = sophon.DataLoader(images, RECIPE, batch_size=4, target_transform=lambda label: label.missing)
    with pytest.raises(AttributeError) as caught:
        next(iter(loader))
    assert "target_transform" in caught.value.__notes__[0]
    assert "sample 0 " in caught.value.__notes__[0]
