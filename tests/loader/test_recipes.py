"""The recipes that people train with give the same batches however the work is divided.

What is expected is not computed by a pipeline: the user's own transform is called on every picture, with the parameters
or under the seed that the steps of the pipeline draw (see `tests.support.transform_oracle`), and torch collates them.
"""

import hashlib
import io
import warnings
from functools import cache

import pytest
import torch
from PIL import Image
from torch.utils.data import default_collate

import sophon
from sophon.errors import OpError
from sophon.loader.order.order import epoch_order
from sophon.loader.sources.assignment import OffloadWarning
from sophon.pipeline import Key, Pipeline
from sophon.profile.columns import resize_k
from tests.support import transform_oracle as oracle
from tests.support.one_thread import one_thread_of_torch  # noqa: F401 - for all tests here
from tests.support.pictures import encode, scene
from tests.support.recipes import RECIPES
from tests.support.servers import serve
from tests.support.settings import grouped
from tests.support.torchvision_import import import_torchvision

import_torchvision()
from torchvision import transforms as v1  # noqa: E402
from torchvision.transforms import v2  # noqa: E402

SEED, BATCH, EPOCHS = 11, 4, 2
POLICIES = ("none", "all", "resize", "0:window", "2:webp")
PLANNING = ("fastflow", "sophon", "optimal")  # with a storage node, and without worker processes
WORKERS = {"no workers": {"num_workers": 0}, "threads": {"num_workers": 2}}
WORKERS["processes"] = {"num_workers": 2, "kind": "processes", "multiprocessing_context": "fork"}
USUAL = [
    "torchvision train v1 pil none 0.1 bilinear",
    "torchvision train v2 tensor ra 0.1 bilinear",
    "torchvision eval v1 tensor bilinear",
    "torchvision eval v2 pil bicubic",
    "timm train rand-m9-mstd0.5-inc1 0.25 random",
    "timm eval border",
    "simclr view",
    "simclr",
    "dino",
    "albumentations train",
]


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """Baseline JPEGs, of which windows can be cut, so that no policy asks for something that cannot be made."""
    folder = tmp_path_factory.mktemp("recipes") / "train"
    forms = ["jpeg 4:2:0", "jpeg 4:4:4", "jpeg 4:2:2", "jpeg gray", "jpeg rotated"]
    for i in range(7):
        home = folder / f"class_{i % 3}"
        home.mkdir(parents=True, exist_ok=True)
        (home / f"{i:04d}.jpg").write_bytes(encode(scene(64 + 13 * (i % 5), 60 + 9 * (i % 4), seed=i), forms[i % 5]))
    return folder


@pytest.fixture(scope="module")
def node(photos):
    with serve(photos, cores=2) as running:
        yield running


@cache
def _recipe(name):
    """Return a recipe's transform and its pipeline; the same objects for all tests, as in a training script."""
    transform = RECIPES[name].build()
    return transform, Pipeline.from_torchvision(transform)


@cache
def _expected(photos, name):
    transform, _ = _recipe(name)
    store = sophon.open_store(photos)
    steps = oracle.steps_of(list(oracle.flat(transform)))
    batches = []
    for epoch in range(EPOCHS):
        order = epoch_order(len(store), SEED, epoch, shuffle=True).tolist()
        for start in range(0, len(order), BATCH):
            samples = []
            for i in order[start : start + BATCH]:
                picture = Image.open(io.BytesIO(bytes(store.read(i)))).convert("RGB")
                value = oracle.run(picture, steps, Key(SEED, epoch, i), chance=True)
                samples.append((value, int(store.manifest.labels[i])))
            batches.append(default_collate(samples))
    return _digest(batches)


def _digest(batches):
    """Return a digest of batches whose samples may be lists of views."""
    hasher = hashlib.sha256()

    def add(value):
        if isinstance(value, list | tuple):
            hasher.update(b"[")
            for part in value:
                add(part)
            hasher.update(b"]")
        else:
            assert isinstance(value, torch.Tensor), type(value)
            hasher.update(f"{value.dtype}{tuple(value.shape)}".encode())
            hasher.update(value.contiguous().numpy().tobytes())

    for batch in batches:
        add(batch)
    return hasher.hexdigest()


def _run(data, name, policy, workers):
    _, pipeline = _recipe(name)
    loader = sophon.DataLoader(
        data,
        pipeline,
        **grouped(
            batch_size=BATCH, shuffle=True, seed=SEED, policy=sophon.Planning(policy, profile=False), **WORKERS[workers]
        ),
    )
    return _digest(batch for _ in range(EPOCHS) for batch in loader)


def _legal(name):
    """Return the policies that a recipe can have; a fixed cut is one where the pipeline can be divided there."""
    pipeline = _recipe(name)[1]
    legal = {"none", "all", *map(str, sophon.legal_cuts(pipeline))}
    if resize_k(pipeline) is not None:
        legal.add("resize")
    return [policy for policy in POLICIES if policy in legal]


def _check(data, expected, name, where, workers, policies):
    wrong = []
    for policy in policies:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "This DataLoader will create", UserWarning)
            warnings.simplefilter("ignore", OffloadWarning)  # a crop that pads a small picture needs all of it
            if _run(data, name, policy, workers) != expected:
                wrong.append(policy)
    assert not wrong, f"{name}, {where}, {workers}: other batches with {wrong}"


@pytest.mark.parametrize("name", USUAL)
@pytest.mark.matrix(every=4)
def test_same_batches_for_usual_recipes(photos, node, name):
    expected = _expected(photos, name)
    _check(photos, expected, name, "from a path", "no workers", ["none"])
    _check(node.url, expected, name, "from a node", "threads", [*_legal(name), "optimal"])
    _check(node.url, expected, name, "from a node", "processes", _legal(name)[-1:])


@pytest.mark.slow
@pytest.mark.parametrize("name", RECIPES)
def test_same_batches_for_every_recipe(photos, node, name):
    expected = _expected(photos, name)
    for workers in WORKERS:
        _check(photos, expected, name, "from a path", workers, _legal(name))
        planning = () if workers == "processes" else PLANNING
        _check(node.url, expected, name, "from a node", workers, [*_legal(name), *planning])


def test_a_recipe_that_crops_lets_a_window_be_cut():
    """Wherever the crop runs: what it needs of the picture is known before anything is decoded."""
    whole = []
    for name in [name for name, recipe in RECIPES.items() if recipe.window]:
        _, pipeline = _recipe(name)
        if "0:window" not in map(str, sophon.legal_cuts(pipeline)):
            whole.append(f"{name}:\n{pipeline.describe()}")
    if whole:
        pytest.fail("\n".join(whole), pytrace=False)


def test_a_list_of_transforms_is_a_recipe_and_timms_three_parts_are_one(photos):
    steps = [v1.RandomResizedCrop(32), v1.ToTensor()]
    listed = sophon.RemoteDataset(photos, steps)
    assert listed.pipeline == Pipeline.from_torchvision(v1.Compose(steps))
    parts = pytest.importorskip("timm.data").create_transform(32, is_training=True, separate=True)
    assert len(parts) == 3
    whole = v1.Compose([step for part in parts for step in part.transforms])
    assert sophon.RemoteDataset(photos, parts).pipeline.fingerprint == Pipeline.from_torchvision(whole).fingerprint
    assert sophon.RemoteDataset(photos, [len]).pipeline.max_cut == 0  # own functions may want bytes


def test_the_recipe_of_torchvisions_documentation_lets_a_window_be_cut():
    recipe = v2.Compose(
        [
            v2.ToImage(),
            v2.ToDtype(torch.uint8, scale=True),
            v2.RandomResizedCrop(32),
            v2.ToDtype(torch.float32, scale=True),
        ]
    )
    assert "0:window" in map(str, sophon.legal_cuts(Pipeline.from_torchvision(recipe)))


def test_an_error_of_own_code_names_the_file(photos):
    def fail(picture):
        raise ValueError("no such colour")

    with pytest.raises(OpError, match=r"0000\.jpg.*no such colour|no such colour.*0000\.jpg"):
        sophon.RemoteDataset(photos, v1.Compose([v1.CenterCrop(8), fail]))[0]
