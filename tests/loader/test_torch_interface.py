"""What torch's DataLoader does with its arguments, ours does too: the same batches, or an error of the same class."""

import collections
import hashlib
import inspect
import itertools
import pickle
import shutil
import threading

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import (
    BatchSampler,
    Dataset,
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    Subset,
    SubsetRandomSampler,
    WeightedRandomSampler,
)
from torch.utils.data import DataLoader as TorchDataLoader

import sophon
from sophon.errors import ConfigError, OpError
from sophon.loader.order.sampling import keys_of
from sophon.pipeline import Key, Pipeline, ops
from sophon.store import open_store
from tests.support.marks import slow
from tests.support.servers import make_images, serve
from tests.support.torch_workers import end_workers
from tests.support.waiting import HANG_S

COUNT = 19
STEADY = Pipeline([ops.Decode(), ops.CenterCrop(12), ops.ToTensor()])
RANDOM = Pipeline([ops.Decode(), ops.RandomResizedCrop(12), ops.ToTensor()])


class Plain(Dataset):
    """The same samples, made without any code of ours."""

    def __init__(self, folder, step=None):
        names = sorted(path.name for path in folder.iterdir())
        self.files = [(path, names.index(path.parent.name)) for path in sorted(folder.glob("*/*"))]
        self.step = step

    def __len__(self):
        return len(self.files)

    def __getitem__(self, index):
        path, label = self.files[index]
        picture = Image.open(path).convert("RGB")
        top, left = round((picture.height - 12) / 2), round((picture.width - 12) / 2)
        array = np.asarray(picture.crop((left, top, left + 12, top + 12)), np.float32) / 255
        value = torch.from_numpy(array.transpose(2, 0, 1).copy())
        return (value if self.step is None else self.step(value)), label


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    return make_images(tmp_path_factory.mktemp("data") / "train", COUNT)


@pytest.fixture(scope="module")
def node(images):
    with serve(images) as running:
        yield running


def _pair(images, step=None):
    """Return a data set for torch's loader and the same one for ours."""
    mine = Pipeline([*STEADY.ops, step]) if step else STEADY
    return Plain(images, step), sophon.RemoteDataset(images, mine)


def _described(value):
    if isinstance(value, torch.Tensor):
        return str(value.dtype), tuple(value.shape), hashlib.sha256(value.contiguous().numpy().tobytes()).hexdigest()
    if isinstance(value, dict):
        return {name: _described(part) for name, part in value.items()}
    return [_described(part) for part in value] if isinstance(value, list | tuple) else value


def _outcome(make, epochs=2):
    """Return the batches of some epochs, and the length of one; or the error that there is instead."""
    batches, found = None, []
    try:
        loader = make()
        length = len(loader)
        for _ in range(epochs):
            batches = iter(loader)
            found.append([_described(batch) for batch in batches])
    except Exception as error:  # noqa: BLE001 - it is what is compared
        end_workers(batches)
        return _kind(error)
    return length, found


def _kind(error):
    """Return the class of an error that users may have in an `except`."""
    return next(kind for kind in (IndexError, KeyError, TypeError, ValueError, RuntimeError) if isinstance(error, kind))


def _generator(seed=3):
    return torch.Generator().manual_seed(seed)


class Backwards:
    """A sampler of somebody's own: it has a length and can be iterated over."""

    def __init__(self, count):
        self.count = count

    def __len__(self):
        return self.count

    def __iter__(self):
        return iter(range(self.count - 1, -1, -1))


class Buckets:
    """A batch sampler whose batches have different sizes."""

    def __iter__(self):
        return iter([[0, 5, 7], [2], [18, 1, 3, 4, 9], [6, 6]])

    def __len__(self):
        return 4


def _as_dict(items):
    return {"image": torch.stack([value for value, _ in items]), "label": [label for _, label in items]}


def _fails(items):
    raise KeyError("no such thing")


# What each is built from is made anew for either loader, since samplers and generators have states.
SAME = {
    **{f"batches of {size}": lambda size=size: {"batch_size": size} for size in (1, 2, 5, 8, 19, 100)},
    **{
        f"batches of {size}, whole ones": lambda size=size: {"batch_size": size, "drop_last": True}
        for size in (1, 4, 19, 100)
    },
    "single samples": lambda: {"batch_size": None},
    "single samples of a sampler": lambda: {"batch_size": None, "sampler": [4, 4, 2]},
    "single samples, collated": lambda: {"batch_size": None, "collate_fn": lambda sample: ("one", sample[1])},
    "not shuffled": lambda: {"batch_size": 4, "shuffle": False},
    "a sequential sampler": lambda: {"batch_size": 4, "sampler": SequentialSampler(range(COUNT))},
    "a random sampler": lambda: {"batch_size": 4, "sampler": RandomSampler(range(COUNT), generator=_generator())},
    "a random sampler, with replacement": lambda: {
        "batch_size": 4,
        "sampler": RandomSampler(range(COUNT), replacement=True, num_samples=30, generator=_generator()),
    },
    "a random sampler of a few": lambda: {
        "sampler": RandomSampler(range(COUNT), num_samples=5, generator=_generator()),
        "batch_size": 2,
    },
    "a subset sampler": lambda: {"batch_size": 3, "sampler": SubsetRandomSampler([1, 3, 5, 8], generator=_generator())},
    "a weighted sampler": lambda: {
        "batch_size": 6,
        "sampler": WeightedRandomSampler([1.0] * 10 + [9.0] * 9, 25, generator=_generator()),
    },
    "a distributed sampler": lambda: {"sampler": DistributedSampler(range(COUNT), 2, 1, shuffle=True, seed=4)},
    "a distributed sampler that drops": lambda: {
        "sampler": DistributedSampler(range(COUNT), 3, 0, shuffle=False, drop_last=True),
        "batch_size": 4,
    },
    "a sampler of one's own": lambda: {"batch_size": 4, "sampler": Backwards(COUNT)},
    "a sampler, whole batches": lambda: {"batch_size": 4, "sampler": Backwards(COUNT), "drop_last": True},
    "a list of indexes": lambda: {"batch_size": 2, "sampler": [3, 1, 2]},
    "a range of indexes": lambda: {"batch_size": 2, "sampler": range(2, 9, 3)},
    "an array of indexes": lambda: {"batch_size": 2, "sampler": np.array([5, 0, 18])},
    "a tensor of indexes": lambda: {"batch_size": 2, "sampler": torch.tensor([5, 0, 18])},
    "repeated indexes": lambda: {"batch_size": 3, "sampler": [7, 7, 7, 7]},
    "negative indexes": lambda: {"batch_size": 3, "sampler": [-1, -19]},
    "no indexes": lambda: {"batch_size": 3, "sampler": []},
    "a batch sampler": lambda: {"batch_sampler": BatchSampler(SequentialSampler(range(COUNT)), 6, False)},
    "a batch sampler that drops": lambda: {"batch_sampler": BatchSampler(SequentialSampler(range(COUNT)), 6, True)},
    "a random batch sampler": lambda: {
        "batch_sampler": BatchSampler(RandomSampler(range(COUNT), generator=_generator()), 4, False)
    },
    "batches of different sizes": lambda: {"batch_sampler": Buckets()},
    "a list of batches": lambda: {"batch_sampler": [[1, 2], [3]]},
    "no batches": lambda: {"batch_sampler": []},
    "collated as a list": lambda: {"batch_size": 4, "collate_fn": list},
    "collated as a dict": lambda: {"batch_size": 4, "collate_fn": _as_dict},
    "collated by torch": lambda: {"batch_size": 4, "collate_fn": torch.utils.data.default_collate},
    "one worker": lambda: {"batch_size": 4, "num_workers": 1},
    "two workers": lambda: {"batch_size": 4, "num_workers": 2},
    "workers and batches of different sizes": lambda: {"batch_sampler": Buckets(), "num_workers": 2},
    "workers and a weighted sampler": lambda: {
        "batch_size": 6,
        "sampler": WeightedRandomSampler([1.0] * 10 + [9.0] * 9, 25, generator=_generator()),
        "num_workers": 2,
    },
    "workers that collate": lambda: {"batch_size": 4, "num_workers": 1, "collate_fn": _as_dict},
    "workers that are kept": lambda: {"batch_size": 4, "num_workers": 1, "persistent_workers": True},
    "forked workers": lambda: {"batch_size": 4, "num_workers": 1, "multiprocessing_context": "fork"},
    "a few batches ahead": lambda: {"batch_size": 4, "num_workers": 1, "prefetch_factor": 3},
    "time enough": lambda: {"batch_size": 4, "num_workers": 1, "timeout": HANG_S},
    "workers that are told first": lambda: {"batch_size": 4, "num_workers": 1, "worker_init_fn": print},
    "in order": lambda: {"batch_size": 4, "num_workers": 1, "in_order": True},
    "none of many": lambda: {
        "batch_size": 4,
        "sampler": None,
        "batch_sampler": None,
        "collate_fn": None,
        "worker_init_fn": None,
        "multiprocessing_context": None,
        "generator": None,
        "prefetch_factor": None,
        "pin_memory_device": "",
    },
}
REFUSED = {
    **{f"batch_size={size!r}": lambda size=size: {"batch_size": size} for size in (0, -1, 1.5, "4", True)},
    "no batches to drop": lambda: {"batch_size": None, "drop_last": True},
    "a sampler and shuffle": lambda: {"sampler": [1], "shuffle": True},
    "a batch sampler and batch_size": lambda: {"batch_sampler": [[1]], "batch_size": 4},
    "a batch sampler and shuffle": lambda: {"batch_sampler": [[1]], "shuffle": True},
    "a batch sampler and a sampler": lambda: {"batch_sampler": [[1]], "sampler": [1]},
    "a batch sampler and drop_last": lambda: {"batch_sampler": [[1]], "drop_last": True},
    "fewer than no workers": lambda: {"num_workers": -1},
    "a time before now": lambda: {"timeout": -1},
    "prefetching without workers": lambda: {"num_workers": 0, "prefetch_factor": 2},
    "keeping no workers": lambda: {"num_workers": 0, "persistent_workers": True},
    "starting no workers": lambda: {"num_workers": 0, "multiprocessing_context": "fork"},
    "no such start method": lambda: {"num_workers": 1, "multiprocessing_context": "teleport"},
    "an index beyond the end": lambda: {"sampler": [0, COUNT]},
    "an index before the beginning": lambda: {"sampler": [-COUNT - 1]},
    "an error in collate_fn": lambda: {"collate_fn": _fails},
    "an error in a worker's collate_fn": lambda: {"collate_fn": _fails, "num_workers": 1},
    "an error in worker_init_fn": lambda: {"num_workers": 1, "worker_init_fn": _fails},
    "an unknown argument": lambda: {"batch_sizes": 4},
}


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("case", [*SAME, *REFUSED])
@pytest.mark.matrix(every=3)
def test_the_same_as_with_torchs_loader(images, case):
    torchs, ours = _pair(images)
    settings = SAME[case] if case in SAME else REFUSED[case]
    expected = _outcome(lambda: TorchDataLoader(torchs, **settings()))
    assert isinstance(expected, type) == (case in REFUSED)
    assert _outcome(lambda: sophon.DataLoader(ours, **settings())) == expected


OVER_A_LINK = ("batches of 5", "a weighted sampler", "batches of different sizes")
OTHERS = [case for case in SAME if not SAME[case]().keys() & {"num_workers", "collate_fn"}]


@pytest.mark.parametrize(
    ("case", "workers"), [*((case, 1) for case in OVER_A_LINK), *slow(*((c, n) for c in OTHERS for n in (0, 2)))]
)
def test_the_same_over_a_storage_node(node, images, case, workers):
    settings = SAME[case]()
    expected = _outcome(lambda: TorchDataLoader(Plain(images), **SAME[case]()))
    ours = {"num_workers": workers, **settings, "policy": "2:webp"}
    assert _outcome(lambda: sophon.DataLoader(node.url, STEADY, **ours)) == expected


@pytest.mark.parametrize(
    "arguments",
    [(4,), (4, False), (4, False, [3, 2, 1]), (1, False, None, [[1, 2], [3]]), (4, None, None, None, 1, list)],
)
def test_arguments_after_a_data_set_have_torchs_order(images, arguments):
    torchs, ours = _pair(images)
    assert _outcome(lambda: sophon.DataLoader(ours, *arguments)) == _outcome(
        lambda: TorchDataLoader(torchs, *arguments)
    )


@pytest.mark.parametrize("arguments", [((4,), {"batch_size": 4}), ((1,) * 13, {})])
def test_an_argument_too_many_is_a_type_error(images, arguments):
    torchs, ours = _pair(images)
    positional, named = arguments
    for made, dataset in ((TorchDataLoader, torchs), (sophon.DataLoader, ours)):
        with pytest.raises(TypeError):
            made(dataset, *positional, **named)


def test_after_an_address_torchs_arguments_are_keywords(images):
    with pytest.raises(ConfigError, match="torch's arguments are keywords"):
        sophon.DataLoader(images, STEADY, 4)


@pytest.mark.parametrize("settings", [{"batch_size": 3}, {"batch_size": 2, "sampler": [2, 0]}])
def test_a_subset(images, settings):
    torchs, ours = (Subset(Subset(one, range(2, 15)), [9, 4, 4, 1]) for one in _pair(images))
    expected = _outcome(lambda: TorchDataLoader(torchs, **settings))
    assert _outcome(lambda: sophon.DataLoader(ours, **settings)) == expected
    shuffled = sophon.DataLoader(ours, 1, True)
    labels = [int(label) for _ in range(3) for _, label in shuffled]
    assert collections.Counter(labels[:4]) == collections.Counter(int(label) for _, label in TorchDataLoader(torchs))


def test_a_data_set_of_ones_own_is_refused_with_a_remedy(images):
    for data in (Plain(images), Subset(Plain(images), [1])):
        with pytest.raises(ConfigError, match=r"Plain does not say where its files are.*from_dataset"):
            sophon.DataLoader(data, 4)


def test_shuffled_epochs_differ_and_a_generator_gives_the_seed(images):
    def labels(loader):
        return [tuple(label.tolist()) for _, label in loader]

    made = [sophon.DataLoader(images, STEADY, batch_size=5, shuffle=True, generator=_generator(s)) for s in (1, 1, 2)]
    first, again, other = ([labels(loader) for _ in range(2)] for loader in made)
    assert first == again
    assert first[0] != first[1]
    assert first != other
    with pytest.raises(ConfigError, match="seed and generator"):
        sophon.DataLoader(images, STEADY, seed=0, generator=_generator())


def test_a_sampler_without_a_generator_follows_the_seed_and_leaves_the_training_loop_alone(images):
    def labels(seed):
        loader = sophon.DataLoader(images, STEADY, batch_size=5, sampler=RandomSampler(range(COUNT)), seed=seed)
        return [tuple(label.tolist()) for _ in range(2) for _, label in loader]

    torch.manual_seed(1)
    expected = torch.rand(1)
    torch.manual_seed(1)
    first = labels(7)
    assert torch.rand(1) == expected
    assert first == labels(7)
    assert first[:4] != first[4:]
    assert first != labels(8)


@pytest.mark.parametrize(
    "sampler",
    [
        lambda: {"sampler": RandomSampler(range(COUNT)), "batch_size": 4},
        lambda: {"sampler": RandomSampler(range(COUNT), generator=_generator()), "batch_size": 4},
        lambda: {"batch_sampler": Buckets()},
        lambda: {"batch_sampler": BatchSampler(RandomSampler(range(COUNT), generator=_generator()), 4, False)},
    ],
)
@pytest.mark.parametrize("taken", [0, 1, 3])
@pytest.mark.matrix(every=3)
def test_a_run_with_a_sampler_goes_on_where_it_was(images, sampler, taken):
    def made():
        return sophon.DataLoader(images, STEADY, seed=5, **sampler())

    whole = made()
    expected = [_described(batch) for _ in range(3) for batch in whole]
    first = made()
    got = [_described(batch) for batch in first]
    got += [_described(batch) for batch in itertools.islice(first, taken)]
    second = made()
    second.load_state_dict(pickle.loads(pickle.dumps(first.state_dict())))
    for _ in range(2):
        got += [_described(batch) for batch in second]
    assert got == expected


REPEATED = [3, 3, 4, 3, 0, 4, 4, 3]


def _by_hand(images, samples, epoch=0):
    """The samples of an epoch one after the other, without a loader: each time with other random parameters."""
    store, came = open_store(images), collections.Counter()
    values = []
    for sample in samples:
        key = Key(0, epoch, sample + came[sample] * len(store))
        values.append(torch.from_numpy(RANDOM.run(store.read(sample), key)))
        came[sample] += 1
    return values


@pytest.mark.parametrize("settings", [{}, {"num_workers": 2}, {"cache": True}, {"policy": "2:webp"}], ids=str)
def test_a_sample_that_comes_several_times_is_another_each_time(images, settings):
    expected = _by_hand(images, REPEATED)
    assert len({value.numpy().tobytes() for value in expected}) == len(REPEATED)
    batches = list(sophon.DataLoader(images, RANDOM, batch_size=3, sampler=REPEATED, **settings))
    assert all(map(torch.equal, torch.cat([values for values, _ in batches]), expected))
    labels = [open_store(images).manifest.label(sample) for sample in REPEATED]
    assert torch.cat([labels for _, labels in batches]).tolist() == labels


def _half(images, folder, which):
    for number, path in enumerate(sorted(images.glob("*/*"))):
        if number % 2 == which:
            (folder / path.parent.name).mkdir(parents=True, exist_ok=True)
            shutil.copy(path, folder / path.parent.name)
    return folder


@pytest.mark.filterwarnings("ignore::sophon.OffloadWarning")  # not all of these files are JPEGs
@pytest.mark.parametrize(
    "policy", ["optimal", *(pytest.param(p, marks=pytest.mark.slow) for p in ("2:webp", "0:window"))]
)
def test_over_nodes_that_hold_parts_and_after_resuming_too(images, tmp_path, policy):
    expected = [_by_hand(images, REPEATED, epoch) for epoch in range(2)]

    def made():
        groups = [REPEATED[:2], REPEATED[2:5], REPEATED[5:]]
        settings = {"policy": sophon.Planning(policy, profile=False), "batch_sampler": groups}
        return sophon.DataLoader(one.url if policy == "0:window" else [one.url, two.url], RANDOM, **settings)

    halves = [_half(images, tmp_path / f"half {number}", number) for number in range(2)]
    with serve(images if policy == "0:window" else halves[0]) as one, serve(halves[1]) as two:
        first, second = made(), made()
        got = [values for values, _ in first]
        got += [values for values, _ in itertools.islice(first, 1)]
        second.load_state_dict(first.state_dict())
        got += [values for values, _ in second]
        for loader in (first, second):
            loader.close()
    assert all(map(torch.equal, torch.cat(got), [*expected[0], *expected[1]]))


def test_a_bad_sample_that_comes_twice_is_called_by_its_own_index(tmp_path):
    folder = make_images(tmp_path / "images", 4)
    name = sorted(path for path in folder.rglob("*") if path.is_file())[1]
    name.write_bytes(b"no picture")
    loader = sophon.DataLoader(folder, RANDOM, batch_size=4, sampler=[1, 1, 1, 2], on_error="skip")
    assert [len(values) for values, _ in loader] == [1]
    assert {bad.sample for bad in loader.bad_samples} == {1}
    assert "sample 1," in str(list(loader.bad_samples)[-1].message)


def test_keys_differ_for_every_time_a_sample_comes_and_are_indexes_the_first_time():
    samples = np.random.default_rng(0).integers(0, 50, 1000)
    keys = keys_of(samples, 60)
    assert len(set(keys.tolist())) == 1000
    assert (keys % 60 == samples).all()
    came = collections.Counter()
    for sample, key in zip(samples.tolist(), keys.tolist(), strict=True):
        assert key == sample + 60 * came[sample]
        came[sample] += 1
    assert keys_of(np.arange(10)[::-1], 10) is None
    assert keys_of(np.zeros(0, np.int64), 10) is None


def test_batches_that_come_as_they_are_finished(images):
    loader = sophon.DataLoader(images, STEADY, batch_size=4, num_workers=2, in_order=False)
    plain = sophon.DataLoader(images, STEADY, batch_size=4)
    assert sorted(int(label) for _, labels in loader for label in labels) == sorted(
        int(label) for _, labels in plain for label in labels
    )
    assert loader.log is not None
    with pytest.raises(ConfigError, match="in_order"):
        sophon.DataLoader(images, STEADY, in_order=False, order="strict")


def _waits(value):
    threading.Event().wait(HANG_S)
    return value


@pytest.mark.filterwarnings("ignore::sophon.SeedWarning")
def test_a_batch_that_does_not_come_in_time_is_a_runtime_error(images, monkeypatch):
    monkeypatch.setattr("sophon.loader.dataset.try_calls", lambda *_: None)  # which would wait as well
    loader = sophon.DataLoader(images, [*STEADY.ops, _waits], batch_size=2, num_workers=1, timeout=0.2)
    with pytest.raises(RuntimeError, match=r"did not arrive within timeout=0\.2 seconds"):
        next(iter(loader))


def _note(folder):
    def note(number):
        info = torch.utils.data.get_worker_info()
        (folder / f"{number} {info.id} {info.num_workers} {len(info.dataset)}").touch()

    return note


def test_workers_are_told_their_number_first(images, tmp_path):
    loader = sophon.DataLoader(images, STEADY, batch_size=4, num_workers=2, worker_init_fn=_note(tmp_path))
    assert "processes" in repr(loader)
    list(loader)
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"0 0 2 {COUNT}", f"1 1 2 {COUNT}"]


def _odd(value):
    raise ValueError("odd")


@pytest.mark.parametrize("workers", [0, 1])
def test_an_error_of_a_step_names_it_and_has_the_original_as_its_cause(images, workers):
    with pytest.raises(OpError, match=r"odd.*") as caught:
        list(sophon.DataLoader(images, [*STEADY.ops, _odd], batch_size=4, num_workers=workers))
    assert isinstance(caught.value.__cause__, ValueError)


def test_it_has_torchs_attributes(images):
    torchs, ours = _pair(images)
    told = {"batch_size": 4, "drop_last": True, "num_workers": 1, "timeout": 5.0, "prefetch_factor": 2}
    one, other = TorchDataLoader(torchs, **told), sophon.DataLoader(ours, **told)
    for name in (*told, "pin_memory", "persistent_workers", "in_order", "generator", "worker_init_fn"):
        assert getattr(other, name) == getattr(one, name)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = other.nothing


def test_it_is_closed_by_hand_or_by_a_with_block(images):
    with sophon.DataLoader(images, STEADY, batch_size=4, num_workers=sophon.Workers(1, "processes")) as loader:
        batches = iter(loader)
        next(batches)
    with pytest.raises(sophon.Error, match="closed"):
        list(batches)
    with pytest.raises(sophon.Error, match="this loader is closed"):
        list(loader)
    loader.close()


def test_a_loader_can_be_pickled_and_goes_on_where_it_was(images):
    loader = sophon.DataLoader(images, STEADY, batch_size=4, shuffle=True, seed=3)
    whole = [_described(batch) for batch in loader]
    loader.set_epoch(0)
    batches = iter(loader)
    first = [_described(next(batches)) for _ in range(2)]
    other = pickle.loads(pickle.dumps(loader))
    assert first + [_described(batch) for batch in other] == whole


def test_the_signature_stays_small():
    torchs = set(inspect.signature(TorchDataLoader).parameters)
    ours = set(inspect.signature(sophon.DataLoader).parameters)
    assert torchs - ours == {"dataset"}
    assert len(ours - torchs - {"data"}) <= 12


def test_with_a_storage_node_workers_come_by_themselves(node, images):
    assert "'auto'" in repr(sophon.DataLoader(node.url, STEADY, batch_size=4))
    assert repr(sophon.DataLoader(images, STEADY, batch_size=4)).endswith("num_workers=0)")
