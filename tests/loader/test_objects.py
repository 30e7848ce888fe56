"""Data sets given as objects: the loader's samples are the object's own, bit for bit, or it says why they cannot be."""

import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader as TorchLoader
from torch.utils.data import Subset

import sophon
from sophon import ops
from sophon.errors import ConfigError, StoreError
from tests.support.servers import make_images
from tests.support.torchvision_import import import_torchvision

import_torchvision()
from torchvision import datasets, transforms  # noqa: E402 - its stand-ins have to be there first


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return make_images(tmp_path_factory.mktemp("data") / "photos", 14)


RECIPE = transforms.Compose([transforms.Resize(24), transforms.CenterCrop(20), transforms.ToTensor()])


def _assert_same(ours, theirs):
    if isinstance(theirs, list | tuple):
        assert len(ours) == len(theirs)
        for mine, other in zip(ours, theirs, strict=True):
            _assert_same(mine, other)
    elif isinstance(theirs, torch.Tensor):
        assert ours.dtype == theirs.dtype
        assert torch.equal(ours, theirs)
    elif isinstance(theirs, Image.Image):
        assert (ours.mode, ours.size, ours.tobytes()) == (theirs.mode, theirs.size, theirs.tobytes())
    else:
        assert type(ours) is type(theirs)
        assert ours == theirs


def _assert_batches(data, **more):
    ours = list(sophon.DataLoader(data, batch_size=4, **more))
    _assert_same(ours, list(TorchLoader(data, batch_size=4)))


def _one_more(label):
    return label + 1


@pytest.mark.parametrize("target_transform", [None, _one_more])
def test_an_image_folder_gives_its_own_batches(folder, target_transform):
    data = datasets.ImageFolder(folder, RECIPE, target_transform)
    _assert_batches(data)
    assert sophon.DataLoader(data).dataset.classes == tuple(data.classes)


def test_transforms_that_are_set_later_count(folder):
    data = datasets.ImageFolder(folder)
    data.transform = RECIPE
    _assert_batches(data)


def test_without_a_transform_samples_are_pictures(folder):
    data = datasets.ImageFolder(folder)
    found = sophon.RemoteDataset(data)
    _assert_same([found[i] for i in range(len(data))], [data[i] for i in range(len(data))])


def test_a_pipeline_may_be_given_instead_of_a_transform(folder):
    data = datasets.ImageFolder(folder)
    ours = list(sophon.DataLoader(data, RECIPE, batch_size=4))
    data.transform = RECIPE
    _assert_same(ours, list(TorchLoader(data, batch_size=4)))
    with pytest.raises(ConfigError, match="the data set already has a transform; leave one of them out"):
        sophon.DataLoader(data, [ops.Decode(), ops.ToTensor()])
    data = datasets.ImageFolder(folder, RECIPE, _one_more)
    with pytest.raises(ConfigError, match="the data set already has a target_transform"):
        sophon.DataLoader(data, target_transform=lambda label: label)


def test_a_subset_and_a_random_split(folder):
    data = datasets.ImageFolder(folder, RECIPE)
    _assert_batches(Subset(data, [5, 3, 3, 0]))
    for part in torch.utils.data.random_split(data, [9, 5], torch.Generator().manual_seed(1)):
        _assert_batches(part)
    _assert_batches(Subset(Subset(data, range(2, 12)), [1, 4]))


def test_the_samples_of_an_object_go_to_worker_processes(folder):
    data = datasets.ImageFolder(folder, RECIPE, _one_more)
    _assert_batches(data, num_workers=2)
    found = pickle.loads(pickle.dumps(sophon.RemoteDataset(data)))
    _assert_same([found[i] for i in range(3)], [data[i] for i in range(3)])


# Sets that torchvision would download. Their own __getitem__ is what is compared with; only the lists that their
# constructors read from the downloaded files are written here.
def _made(kind, folder, **attributes):
    data = kind.__new__(kind)
    datasets.VisionDataset.__init__(data, folder, transform=RECIPE)
    data.loader = datasets.folder.default_loader
    for name, value in attributes.items():
        setattr(data, name, value)
    return data


def _photos(folder):
    return sorted(path for path in Path(folder).glob("*/*") if path.is_file())


LISTS = ["Flowers102", "Food101", "DTD", "FGVCAircraft", "SUN397", "CLEVRClassification"]


@pytest.mark.parametrize("name", LISTS)
def test_sets_with_lists_of_files_and_labels(folder, name):
    paths = _photos(folder)
    data = _made(getattr(datasets, name), folder, _image_files=paths, _labels=[i * 3 % 7 for i in range(len(paths))])
    _assert_batches(data)


@pytest.mark.parametrize("name", ["StanfordCars", "GTSRB", "RenderedSST2", "Imagenette"])
def test_sets_with_a_list_of_pairs(folder, name):
    pairs = [(str(path), i % 5) for i, path in enumerate(_photos(folder))]
    _assert_batches(_made(getattr(datasets, name), folder, _samples=pairs))


def test_places365(folder):
    _assert_batches(_made(datasets.Places365, folder, imgs=[(str(path), 3) for path in _photos(folder)]))


@pytest.mark.parametrize("types", [["category"], ["binary-category"], ["category", "binary-category"]])
def test_pets_with_one_or_two_targets(folder, types):
    paths = _photos(folder)
    numbers = list(range(len(paths)))
    data = _made(datasets.OxfordIIITPet, folder, _images=paths, _labels=numbers, _bin_labels=[n % 2 for n in numbers])
    data._target_types = types
    _assert_batches(data)
    data._target_types = ["segmentation"]
    with pytest.raises(ConfigError, match=r"targets of kind \['segmentation'\] are not labels"):
        sophon.DataLoader(data)


def test_float_and_odd_targets_are_the_objects_own(folder):
    paths = _photos(folder)
    for targets in ([i / 4 for i in range(len(paths))], [np.uint8(i) for i in range(len(paths))],
                    [f"caption {i}" for i in range(len(paths))], [(i, -i) for i in range(len(paths))]):  # fmt: skip
        _assert_batches(_made(datasets.Flowers102, folder, _image_files=paths, _labels=targets))


class _Rotated(datasets.ImageFolder):
    def __getitem__(self, index):
        picture, target = super().__getitem__(index)
        return picture.rotate(90), target


def test_what_cannot_be_represented_is_refused_with_a_reason(folder, tmp_path):
    from torchvision.datasets import FakeData

    class Joint(datasets.ImageFolder):
        pass

    joint = _made(datasets.Places365, folder, imgs=[(str(path), 3) for path in _photos(folder)])
    joint.transforms = lambda picture, target: (picture, target)
    own_loader = datasets.DatasetFolder(str(folder), np.fromfile, extensions=("jpg", "png"))
    for data, message in [
        (_Rotated(folder), "_Rotated has its own __getitem__.*sophon.from_dataset"),
        (FakeData(4), "FakeData does not say in a known way where its files are"),
        (joint, "its `transforms` change picture and target together"),
        (own_loader, "its loader fromfile reads files in its own way"),
        (_made(datasets.UCF101, folder, samples=[("a", 1)], video_clips=object()), "video clips"),
        (torch.utils.data.TensorDataset(torch.zeros(3)), "TensorDataset does not say where its files are"),
    ]:
        with pytest.raises(ConfigError, match=message):
            sophon.DataLoader(data)
    assert len(sophon.DataLoader(Joint(folder, RECIPE), batch_size=14)) == 1  # nothing of its own in it
    data = datasets.ImageFolder(folder, RECIPE)
    data.samples = [(str(tmp_path / "gone.jpg"), 0)]
    with pytest.raises(StoreError, match=r"sample 0, .*gone\.jpg: FileNotFoundError"):
        sophon.DataLoader(data)


def test_a_folder_of_other_files_with_a_step_that_takes_bytes(tmp_path):
    for i in range(4):
        (tmp_path / f"{'ab'[i % 2]}").mkdir(exist_ok=True)
        np.full((2, 3), i, np.float32).tofile(tmp_path / f"{'ab'[i % 2]}/{i}.bin")
    data = datasets.DatasetFolder(str(tmp_path), _load_bin, extensions=("bin",))
    ours = list(sophon.DataLoader(data, [_from_bytes], batch_size=2))
    _assert_same(ours, list(TorchLoader(data, batch_size=2)))


def _load_bin(path):
    return torch.from_numpy(np.fromfile(path, np.float32))


def _from_bytes(data):
    return torch.from_numpy(np.frombuffer(data, np.float32).copy())


class _Own(torch.utils.data.Dataset):
    def __init__(self, paths, transform=None, mode="RGB"):
        self.files, self.transform, self.mode = paths, transform, mode
        self.ages = [20.5 + i for i in range(len(paths))]

    def __len__(self):
        return len(self.files)

    def __getitem__(self, index):
        picture = Image.open(self.files[index]).convert(self.mode)
        return picture if self.transform is None else self.transform(picture), self.ages[index]


def test_a_data_set_of_ones_own_says_where_its_files_lie(folder):
    data = _Own(_photos(folder), RECIPE)
    for path, target in [("files", "ages"), (data.files, data.ages), (lambda i: data.files[i], lambda i: data.ages[i])]:
        ours = list(sophon.DataLoader(sophon.from_dataset(data, path, target), batch_size=4))
        _assert_same(ours, list(TorchLoader(data, batch_size=4)))


def test_a_data_set_of_ones_own_in_another_mode(folder):
    recipe = transforms.Compose([transforms.Resize(9), transforms.CenterCrop(8), transforms.PILToTensor()])
    gray = _Own(_photos(folder), recipe, "L")
    with pytest.raises(
        ConfigError, match=r"sample 0: the object's pixels \(L, .* differ from its file's .*decode=\"L\""
    ):
        sophon.DataLoader(sophon.from_dataset(gray, "files", "ages"))
    # PILToTensor keeps channels: a translated recipe has to know that there is one.
    ours = list(sophon.DataLoader(sophon.from_dataset(gray, "files", "ages", decode="L"), batch_size=4))
    _assert_same(ours, list(TorchLoader(gray, batch_size=4)))


def test_an_object_that_does_more_than_its_transform_is_found_out(folder):
    class Flipped(_Own):
        def __getitem__(self, index):
            picture, age = super().__getitem__(index)
            return picture.transpose(Image.Transpose.FLIP_LEFT_RIGHT), age

    class Older(_Own):
        def __getitem__(self, index):
            picture, age = super().__getitem__(index)
            return picture, age + 1

    class Array(_Own):
        def __getitem__(self, index):
            picture, age = super().__getitem__(index)
            return np.asarray(picture), age

    for kind, message in [
        (Flipped, "the object's pixels .* differ from its file's"),
        (Older, "the object's target is 21.5, but 20.5 was found"),
        (Array, "the object gives a ndarray where a picture was expected"),
    ]:
        with pytest.raises(ConfigError, match=message):
            sophon.DataLoader(sophon.from_dataset(kind(_photos(folder)), "files", "ages"))
    unchecked = sophon.from_dataset(Array(_photos(folder)), "files", "ages", check=False)
    assert len(sophon.DataLoader(unchecked, RECIPE)) == 14


def test_what_from_dataset_is_told_is_checked(folder):
    data = _Own(_photos(folder), RECIPE)
    for path, target, message in [
        ("nope", None, "path: _Own has no attribute 'nope'"),
        (data.files[:3], None, "path: expected one for each of 14 samples, got 3"),
        ([3] * 14, None, "expected the path of a file for sample 0, got 3"),
        (None, None, "path: expected the paths of _Own's files"),
    ]:
        with pytest.raises(ConfigError, match=message):
            sophon.from_dataset(data, path, target)


def test_a_data_set_without_targets(folder):
    class Pictures(_Own):
        def __getitem__(self, index):
            return super().__getitem__(index)[0]

    data = Pictures(_photos(folder), RECIPE)
    ours = list(sophon.DataLoader(sophon.from_dataset(data, "files"), batch_size=4))
    for mine, other in zip(ours, TorchLoader(data, batch_size=4), strict=True):
        assert torch.equal(mine, other)


def test_class_ids_in_palette_masks_reach_the_batch_from_a_path_and_from_a_node(tmp_path):
    masks = []
    (tmp_path / "masks").mkdir()
    for i in range(6):
        ids = np.random.default_rng(i).integers(0, 21, (20, 30), np.uint8)
        mask = Image.fromarray(ids).convert("P")
        mask.putpalette(np.random.default_rng(9).integers(0, 256, 63, np.uint8).tobytes())
        mask.save(tmp_path / f"masks/{i}.png")
        masks.append(ids)
    steps = [ops.Decode(mode="P"), ops.CenterCrop((16, 24)), ops.PILToTensor()]
    wanted = torch.from_numpy(np.stack(masks)[:, None, 2:18, 3:27])
    assert torch.equal(next(iter(sophon.DataLoader(tmp_path / "masks", steps, batch_size=6))), wanted)
    with sophon.LocalServer(tmp_path / "masks") as server:
        for policy in ("none", "1:raw", "2:zstd", "all"):
            loader = sophon.DataLoader(server.url, steps, batch_size=6, policy=policy)
            assert torch.equal(next(iter(loader)), wanted), policy
            cuts = loader.dataset.samples.assignment.cuts
            assert (cuts == (sophon.Cut(0),)) == (policy == "none"), policy  # the node really does its part


def test_numbers_of_16_bits_reach_the_batch(tmp_path):
    depth = np.random.default_rng(0).integers(0, 65536, (4, 10, 12), np.uint16)
    for i, numbers in enumerate(depth):
        Image.fromarray(numbers).save(tmp_path / f"{i}.png")
    steps = [ops.Decode(mode="I;16"), ops.CenterCrop((10, 12)), ops.PILToTensor()]
    (batch,) = sophon.DataLoader(tmp_path, steps, batch_size=4)
    assert batch.dtype == torch.uint16
    assert np.array_equal(batch.numpy(), depth[:, None])
