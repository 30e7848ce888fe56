"""Recipes over picture, mask, boxes, keypoints and labels, through loaders: torchvision's samples, wherever ops run."""

import contextlib
import random
import shutil
import warnings
from collections import defaultdict

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import sophon
from sophon import Joint, LocalServer
from sophon.errors import ConfigError, OpError, StoreError
from sophon.pipeline import Key, Rng
from tests.support.marks import slow
from tests.support.one_thread import one_thread_of_torch  # noqa: F401 - for all tests here
from tests.support.torchvision_import import import_torchvision

import_torchvision()
import numpy as np  # noqa: E402
import torch  # noqa: E402
from PIL import Image  # noqa: E402
from torchvision import tv_tensors  # noqa: E402
from torchvision.transforms import v2  # noqa: E402

from tests.support.joint_data import COUNT, OPTIONS, SAMPLE, by_number, expected, make_data  # noqa: E402
from tests.support.joint_oracle import differences  # noqa: E402

RECIPE = v2.Compose(
    [
        v2.RandomResize(50, 200),
        v2.RandomHorizontalFlip(),
        v2.RandomCrop((48, 56), pad_if_needed=True, fill={tv_tensors.Mask: 255, "others": 0}),
        v2.ToImage(),
        v2.ToDtype({tv_tensors.Image: torch.float32, tv_tensors.Mask: torch.int64, "others": None}, scale=True),
        v2.ClampBoundingBoxes(),
        v2.SanitizeBoundingBoxes(),
        v2.ToPureTensor(),
    ]
)
CROPPED = v2.Compose([v2.RandomResizedCrop(40), *RECIPE.transforms[3:]])
OWN = v2.Compose([v2.RandomPhotometricDistort(), v2.RandomPerspective(), *RECIPE.transforms[1:]])
SSD = v2.Compose(
    [
        v2.RandomPhotometricDistort(),
        v2.RandomZoomOut(fill=defaultdict(lambda: (123, 117, 104), {tv_tensors.Mask: 0})),
        v2.RandomIoUCrop(),
        v2.RandomHorizontalFlip(),
        *RECIPE.transforms[3:],
    ]
)
SEED = 5


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("joint")
    return folder, make_data(folder)


@pytest.fixture(scope="module")
def node(data):
    options = ("--cache-dir", str(data[0] / "cache"))
    with LocalServer(f"{data[0]}?{OPTIONS}", 1, options=options) as server:
        yield server


def two_epochs(source, recipe=RECIPE, **more):
    more = {"batch_size": 5, "seed": SEED, "shuffle": True} | more
    with sophon.DataLoader(source, Joint(recipe, SAMPLE), **more) as loader:
        return [by_number(loader) for _ in range(2)], loader.stats


def check(found, recipe, raws):
    for epoch, samples in enumerate(found):
        assert sorted(samples) == list(range(COUNT))
        for number, theirs in enumerate(expected(recipe, raws, SEED, epoch)):
            assert not differences(samples[number], theirs), (epoch, number)


@pytest.mark.parametrize("workers", [0, 2, sophon.Workers(1, kind="processes")], ids=["none", "threads", "processes"])
@pytest.mark.matrix(every=3)
def test_samples_of_a_folder_are_torchvisions(data, workers):
    folder, raws = data
    check(two_epochs(f"{folder}?{OPTIONS}", num_workers=workers)[0], RECIPE, raws)


@pytest.mark.parametrize("policy", ["none", "0:window", "3:webp", *slow("1:zstd", "all", "resize", "4:raw", "2:jxl1")])
@pytest.mark.matrix(every=3)
def test_samples_of_a_node_are_torchvisions_at_every_cut(data, node, policy):
    found, stats = two_epochs(node.url, policy=policy, num_workers=2)
    check(found, RECIPE, data[1])
    assert stats.samples == 2 * COUNT


@pytest.mark.slow
@pytest.mark.parametrize(
    ("recipe", "more"),
    [
        (CROPPED, {"policy": "optimal"}),
        (SSD, {"policy": "4:webp"}),
        pytest.param(
            *(SSD, {"policy": "0:window", "num_workers": sophon.Workers(2, kind="processes")}),
            marks=pytest.mark.filterwarnings(
                "ignore::sophon.OffloadWarning"
            ),  # where contrast is changed, or no crop made
        ),
        (OWN, {"policy": "1:webp", "num_workers": sophon.Workers(2, kind="processes")}),
        *slow(
            (OWN, {"policy": "all", "num_workers": 0}),
            (SSD, {"policy": "optimal", "num_workers": 2}),
            (SSD, {"policy": "none", "num_workers": 0}),
            (SSD, {"policy": "all", "num_workers": 1, "order": "relaxed"}),
            (CROPPED, {"policy": "sophon", "num_workers": sophon.Workers(2, kind="processes")}),
            (CROPPED, {"policy": "fastflow", "num_workers": 0}),
            (CROPPED, {"policy": "0:window", "num_workers": 1, "order": "relaxed"}),
        ),
    ],
)
def test_other_recipes_policies_and_workers(data, node, recipe, more):
    check(two_epochs(node.url, recipe, **more)[0], recipe, data[1])


@pytest.mark.slow
def test_a_cache_keeps_whole_masks_where_the_crop_is_not_made_yet(data, node, tmp_path):
    cache = sophon.Cache("1:webp", folder=tmp_path)
    for _ in range(2):
        check(two_epochs(node.url, cache=cache, num_workers=0)[0], RECIPE, data[1])


@pytest.mark.parametrize("options", ["images=pictures&masks=masks", "images=pictures"])
@pytest.mark.parametrize("where", ["node", "path"])
def test_a_window_that_would_be_the_whole_file_is_not_reported_as_less_than_requested(tmp_path, where, options):
    """Neither if the server makes it itself nor if a child does, as for samples with masks."""
    for name in ("pictures", "masks"):
        (tmp_path / name).mkdir()
    for number in range(4):
        Image.new("RGB", (40, 30)).save(tmp_path / f"pictures/{number}.jpg")
        Image.new("L", (40, 30)).save(tmp_path / f"masks/{number}.png")
    has_masks = "masks" in options
    source = f"{tmp_path}?{options}" if has_masks else f"{tmp_path}/pictures"
    sample = ("image", "mask") if has_masks else ("image",)
    steps = Joint(v2.Compose([v2.CenterCrop(64), v2.ToImage()]), sample)
    options = ("--cache-dir", str(tmp_path / "cache"))
    with LocalServer(source, 1, options=options) if where == "node" else contextlib.nullcontext() as server:
        address = source if server is None else server.url
        with sophon.DataLoader(address, steps, policy="0:window", batch_size=2) as loader:  # warnings are errors
            assert len(list(loader)) == 2
            assert loader.stats.cuts == {"0:raw": 4}
            assert loader.stats.smaller_cuts == 0
            assert "less than requested" not in loader.explain()


def test_masks_are_cut_down_with_their_picture(data, node):
    folder, _ = data
    only = Joint(v2.Compose([v2.CenterCrop(20), v2.ToImage()]), ("image", "mask"))
    sent = {}
    for policy in ("none", "2:webp"):
        with sophon.DataLoader(node.url, only, policy=policy, batch_size=4) as loader:
            pictures, masks = next(iter(loader))
            list(loader)
            sent[policy] = loader.stats.link_bytes / loader.stats.samples
        assert pictures.shape == (4, 3, 20, 20)
        expected_masks = [np.array(Image.open(folder / "masks" / f"{at:03d}.png")) for at in range(4)]
        for mask, whole in zip(masks, expected_masks, strict=True):
            top, left = (round((side - 20) / 2.0) for side in whole.shape)
            assert (mask.numpy() == whole[top : top + 20, left : left + 20]).all()
    assert sent["2:webp"] < 0.6 * sent["none"]


def test_an_epoch_goes_on_where_a_state_was_taken(data, node):
    joint = Joint(RECIPE, SAMPLE)
    more = {"batch_size": 4, "seed": SEED, "shuffle": True}
    with sophon.DataLoader(node.url, joint, policy="3:webp", num_workers=2, **more) as loader:
        batches = iter(loader)
        before = by_number([next(batches)])
        state = loader.state_dict()
        batches.close()
    with sophon.DataLoader(f"{data[0]}?{OPTIONS}", joint, num_workers=0, **more) as loader:
        loader.load_state_dict(state)
        rest = by_number(loader)
    assert not before.keys() & rest.keys()
    check([before | rest], RECIPE, data[1])


def test_a_sample_may_be_a_dict_and_batches_of_one_size_are_stacked(data):
    folder, raws = data
    joint = Joint(CROPPED.transforms[0], {"image": "image", "mask": "mask", "id": "id"})
    with sophon.DataLoader(f"{folder}?{OPTIONS}", joint, seed=SEED, batch_size=None) as loader:
        first = next(iter(loader))
    assert first.keys() == {"image", "mask", "id"}
    assert first["id"] == "images/000.jpg"
    assert isinstance(first["mask"], tv_tensors.Mask)
    with_tensors = Joint(v2.Compose([CROPPED.transforms[0], v2.ToImage()]), {"image": "image", "mask": "mask"})
    with sophon.DataLoader(f"{folder}?{OPTIONS}", with_tensors, seed=SEED, batch_size=4) as loader:
        batch = next(iter(loader))
    assert batch["image"].shape == (4, 3, 40, 40)
    assert batch["mask"].shape == (4, 40, 40)
    assert torch.equal(batch["mask"][0], first["mask"].as_subclass(torch.Tensor))
    boxes = Joint(with_tensors.transform, {"image": "image", "boxes": "boxes"})
    with sophon.DataLoader(f"{folder}?{OPTIONS}", boxes, seed=SEED, batch_size=4, output="numpy") as loader:
        batch = next(iter(loader))
    assert [type(part) for part in batch["boxes"]] == [np.ndarray] * 4
    assert [len(part) for part in batch["boxes"]] == [len(raw.boxes) for raw in raws[:4]]


@pytest.fixture
def damaged(data, tmp_path):
    """Return a data set of which three samples have damaged targets."""
    folder = tmp_path / "damaged"
    shutil.copytree(data[0], folder, ignore=shutil.ignore_patterns("cache"))
    Image.new("L", (7, 7)).save(folder / "masks" / "002.png")  # of another size
    (folder / "masks" / "004.png").unlink()  # the pair is missing
    (folder / "masks" / "006.png").write_bytes(b"\x89PNG no more")
    text = (folder / "boxes.json").read_text()
    far = '"annotations": [{"image_id": 8, "bbox": [5000, 1, 2, 3], "category_id": 1}, '
    (folder / "boxes.json").write_text(text.replace('"annotations": [', far, 1))
    return folder


BAD = {
    2: (OpError, r"sample 2.*field 'mask': the mask has 7×7 pixels, but its picture has 108×118"),
    4: (StoreError, r"sample 4 \('images/004.jpg'\): field 'mask': there is no mask named 004"),
    6: (OpError, r"sample 6.*field 'mask': the mask cannot be decoded"),
    8: (OpError, r"sample 8.*field 'boxes': box 0 \(xywh: 5000, 1, 2, 3\) lies outside the picture of 162×82"),
}


@pytest.mark.filterwarnings("ignore:targets for 1 sample")
@pytest.mark.parametrize("cut", ["3:webp", *slow("none")])
def test_damaged_targets_are_errors_that_name_sample_and_field(damaged, cut):
    with LocalServer(f"{damaged}?{OPTIONS}", 1) as server, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dataset = sophon.RemoteDataset(server.url, Joint(RECIPE, SAMPLE), seed=SEED, policy=cut)
        for number, (kind, words) in BAD.items():
            with pytest.raises(kind, match=words):
                dataset[number]
        assert dataset[3][1]["n"] == 3


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("workers", [0, sophon.Workers(1, kind="processes")], ids=["none", "processes"])
@pytest.mark.matrix(every=2)
def test_damaged_targets_are_what_the_policy_for_bad_samples_says(data, damaged, workers):
    more = {"batch_size": 5, "seed": SEED, "num_workers": workers}
    for action in ("skip", "substitute"):
        on_error = sophon.OnError(action, 0.9)
        with sophon.DataLoader(f"{damaged}?{OPTIONS}", Joint(RECIPE, SAMPLE), on_error=on_error, **more) as loader:
            batches = list(loader)
            bad = sorted(one.sample for one in loader.bad_samples)
        assert bad == sorted(BAD)
        assert sum(len(pictures) for pictures, _ in batches) == (COUNT if action == "substitute" else COUNT - len(BAD))
        found = by_number(batches)
        assert sorted(found) == [number for number in range(COUNT) if number not in BAD]
        if action == "skip":
            theirs = expected(RECIPE, data[1], SEED, 0)
            assert not [text for number in found for text in differences(found[number], theirs[number])]


def test_members_of_tar_shards_are_what_kinds_says(data, tmp_path):
    from tests.store.test_fields import write_shard

    _, raws = data
    members = []
    for at, raw in enumerate(raws):
        numbers = {"boxes": raw.boxes.tobytes(), "ids": raw.labels.tobytes(), "caption": f"photo {at}".encode()}
        files = {"jpg": raw.image, "seg.png": raw.mask, "cls": str(at).encode(), **numbers}
        members += [(f"{at:03d}.{ending}", found) for ending, found in files.items()]
    shard = write_shard(tmp_path / "train.tar", members)
    parts = {"boxes": "boxes", "masks": "seg.png", "labels": "ids", "n": "label", "text": "caption"}
    kinds = {"boxes": "boxes:xywh", "seg.png": "mask", "ids": "labels", "caption": "text"}
    path = f"{shard}?fields=image,seg.png,boxes,ids,caption"
    with pytest.raises(ConfigError, match=r"declare the kind of 'seg.png', such as kinds"):
        sophon.DataLoader(path, Joint(RECIPE, ("image", parts), {"boxes": "boxes:xywh"}))
    joint = Joint(RECIPE, ("image", parts), kinds)
    with sophon.DataLoader(path, joint, seed=SEED, batch_size=4, policy="0:window") as loader:
        found = by_number(loader)
    for number, (picture, target) in enumerate(expected(RECIPE, raws, SEED, 0)):
        ours = found[number][1]
        assert ours.pop("text") == f"photo {number}"
        del target["keypoints"]
        wanted = {name: target[name] for name in ours}
        assert not differences((found[number][0], ours), (picture, wanted))


@pytest.mark.filterwarnings("ignore::sophon.OffloadWarning")  # nothing but Decode can run near storage
@pytest.mark.parametrize("policy", ["none", "1:webp"])
@pytest.mark.matrix(every=2)
def test_albumentations_is_given_arrays_by_its_own_names_and_a_seed(data, node, policy):
    albumentations = pytest.importorskip("albumentations")
    crop = albumentations.Compose([albumentations.RandomCrop(30, 40), albumentations.HorizontalFlip(p=0.5)])
    joint = Joint(crop, {"image": "image", "mask": "mask"})
    found = []
    for source, more in ((f"{data[0]}?{OPTIONS}", {}), (node.url, {"policy": policy})):
        with sophon.DataLoader(source, joint, seed=SEED, batch_size=None, **more) as loader:
            found.append(list(loader))
    for number, (one, other) in enumerate(zip(*found, strict=True)):
        assert one["image"].shape == (30, 40, 3)
        assert np.array_equal(one["image"], other["image"])
        assert np.array_equal(one["mask"], other["mask"])
        # Where picture and mask are cut out together, a place of the one is that place of the other.
        assert any(
            np.array_equal(window["image"], one["image"]) and np.array_equal(window["mask"], one["mask"])
            for window in windows(data[1][number])
        )


def windows(raw):
    """Yield all that a crop of 30 × 40 may be, flipped and not."""
    picture, target = raw.theirs()
    both = {"image": np.array(picture), "mask": target["masks"].numpy()}
    for top in range(raw.height - 29):
        for left in range(raw.width - 39):
            cut = {name: part[top : top + 30, left : left + 40] for name, part in both.items()}
            yield cut
            yield {name: part[:, ::-1] for name, part in cut.items()}


@pytest.mark.filterwarnings("ignore::sophon.OffloadWarning")  # nothing but Decode can run near storage
@pytest.mark.parametrize("policy", ["1:webp", *slow("none")])
def test_albumentations_gives_its_own_boxes_labels_and_masks(data, node, policy):
    albumentations = pytest.importorskip("albumentations")

    def recipe():
        steps = [albumentations.RandomCrop(60, 70), albumentations.HorizontalFlip(p=0.5), albumentations.Affine()]
        boxes = albumentations.BboxParams("coco", min_area=9, label_fields=["classes"])
        return albumentations.Compose(steps, bbox_params=boxes)

    joint = Joint(recipe(), {"image": "image", "mask": "mask", "bboxes": "boxes", "classes": "labels"})
    with sophon.DataLoader(node.url, joint, seed=SEED, batch_size=None, policy=policy) as loader:
        found = list(loader)
    left = 0
    for number, raw in enumerate(data[1]):
        picture, target = raw.theirs()
        seed = Rng(Key(SEED, 0, number), 1).word() & 0x7FFFFFFF
        alone = recipe()
        alone.set_random_state(np.random.default_rng(seed), random.Random(seed))
        theirs = alone(image=np.array(picture), mask=target["masks"].numpy(), bboxes=raw.boxes, classes=raw.labels)
        assert found[number].keys() == theirs.keys()
        for name, part in theirs.items():
            assert np.array_equal(found[number][name], part), (number, name)
        left += len(theirs["bboxes"])
    assert 0 < left < sum(len(raw.boxes) for raw in data[1])  # some boxes were cut away, with their labels


@pytest.mark.filterwarnings("ignore::sophon.OffloadWarning")  # nothing but Decode can run near storage
def test_albumentations_gives_its_own_keypoints(data, node):
    albumentations = pytest.importorskip("albumentations")

    def recipe():
        points = albumentations.KeypointParams("xy", label_fields=["seen"], remove_invisible=True)
        return albumentations.Compose(
            [albumentations.RandomCrop(60, 70), albumentations.HorizontalFlip(p=0.5)], keypoint_params=points
        )

    joint = Joint(recipe(), {"image": "image", "keypoints": "keypoints", "seen": "visibility", "n": "image_id"})
    with sophon.DataLoader(node.url, joint, seed=SEED, batch_size=None, policy="1:webp", num_workers=2) as loader:
        found = list(loader)
    left = 0
    for number, raw in enumerate(data[1]):
        seed = Rng(Key(SEED, 0, number), 1).word() & 0x7FFFFFFF
        alone = recipe()
        alone.set_random_state(np.random.default_rng(seed), random.Random(seed))
        points = raw.keypoints.reshape(-1, 2)
        theirs = alone(image=np.array(raw.theirs()[0]), keypoints=points, seen=np.full(len(points), 2), n=number)
        assert found[number].keys() == theirs.keys()
        for name, part in theirs.items():
            assert np.array_equal(found[number][name], part), (number, name)
        left += len(theirs["keypoints"])
    assert 0 < left < sum(raw.keypoints.size // 2 for raw in data[1])  # some points were cut away


class Unsteady(torch.nn.Module):
    """Draws from a generator of its own, which nobody seeds."""

    def __init__(self):
        super().__init__()
        self.random = np.random.default_rng()

    def forward(self, image, target):
        return image, target | {"boxes": target["boxes"] + self.random.random()}


def test_a_step_that_does_not_depend_on_the_seed_is_told_of(data):
    sample = ("image", {"boxes": "boxes"})
    with pytest.warns(sophon.SeedWarning, match="Unsteady"):
        sophon.DataLoader(f"{data[0]}?{OPTIONS}", Joint(v2.Compose([v2.CenterCrop(9), Unsteady()]), sample))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        sophon.DataLoader(f"{data[0]}?{OPTIONS}", Joint(OWN, SAMPLE))


@pytest.mark.parametrize(
    ("sample", "words"),
    [
        ("image", "expected more than the picture"),
        (("mask",), "expected the picture once"),
        (("image", "image"), "expected the picture once"),
        (("image", 3), "expected field names"),
        (("image", "depth"), "no column 'depth'"),
        (("image", "label"), "has no labels"),
    ],
)
def test_a_sample_that_cannot_be_made_is_refused(data, sample, words):
    with pytest.raises(ConfigError, match=words):
        sophon.DataLoader(f"{data[0]}?{OPTIONS}", Joint(RECIPE, sample))


def test_what_does_not_go_with_samples_of_fields_is_refused(data):
    path = f"{data[0]}?{OPTIONS}"
    for more, words in (
        ({"output": sophon.Output(columns=["mask"])}, "name it in Joint"),
        ({"target_transform": str}, "use a step of the recipe instead"),
    ):
        with pytest.raises(ConfigError, match=words):
            sophon.DataLoader(path, Joint(RECIPE, SAMPLE), **more)
    with pytest.raises(ConfigError, match="expected one of mask"):
        Joint(RECIPE, SAMPLE, {"masks": "polygon"})


STEPS = {
    "distort": v2.RandomPhotometricDistort(),
    "zoom": v2.RandomZoomOut(fill={tv_tensors.Mask: 255, "others": 7}, side_range=(1.0, 2.0)),
    "crop by boxes": v2.RandomIoUCrop(),
    "flip": v2.RandomHorizontalFlip(),
    "crop": v2.RandomCrop((48, 56), pad_if_needed=True, fill={tv_tensors.Mask: 255, "others": 0}),
    "resized crop": v2.RandomResizedCrop(50),
    "resize": v2.RandomShortestSize([40, 60, 90], 120),
    "some": v2.RandomApply([v2.RandomIoUCrop(), v2.Resize(60)], 0.6),
    "one": v2.RandomChoice([v2.RandomZoomOut(p=1.0, side_range=(1.0, 1.5)), v2.RandomVerticalFlip(1.0)]),
    "own": v2.RandomPerspective(),
    "sanitise": v2.SanitizeBoundingBoxes(),
}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::sophon.OffloadWarning")
@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    st.lists(st.sampled_from(sorted(STEPS)), min_size=1, max_size=3),
    st.sampled_from(["none", "all", "optimal", "sophon", "fastflow", "cut", "cut", "cut"]),
    st.sampled_from([0, 2, sophon.Workers(2, kind="processes")]),
    st.sampled_from(["strict", "relaxed"]),
    st.data(),
)
def test_random_recipes_give_torchvisions_samples(data, node, names, policy, workers, order, more):
    """At any cut, by any policy, with any workers, in any order."""
    recipe = v2.Compose([*(STEPS[name] for name in names), *RECIPE.transforms[3:]])
    pipeline = sophon.RemoteDataset(f"{data[0]}?{OPTIONS}", Joint(recipe, SAMPLE)).pipeline
    if policy == "cut":
        policy = str(more.draw(st.sampled_from(sophon.legal_cuts(pipeline))))
    check(two_epochs(node.url, recipe, policy=policy, num_workers=workers, order=order)[0], recipe, data[1])
