"""Picture, mask, boxes, keypoints and labels through torchvision's v2: same bits as torchvision, at every cut."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sophon.codec.cut import legal_cuts
from sophon.errors import ConfigError, OpError
from sophon.pipeline import Call, Key
from tests.support.one_thread import one_thread_of_torch  # noqa: F401 - for all tests here
from tests.support.torchvision_import import import_torchvision

import_torchvision()
import torch  # noqa: E402
from torchvision import tv_tensors  # noqa: E402
from torchvision.transforms import v2  # noqa: E402

from tests.support.joint_oracle import Ours, differences, raw_sample, theirs  # noqa: E402

TO_FLOAT = [v2.ToImage(), v2.ToDtype(torch.float32, scale=True), v2.Normalize([0.5] * 3, [0.2] * 3)]
ENDING = [*TO_FLOAT, v2.ClampBoundingBoxes(), v2.SanitizeBoundingBoxes(), v2.ToPureTensor()]
RESIZED = v2.InterpolationMode

# Each is tried by itself, and before and after a crop. What has no op for samples stays the user's own.
STEPS = {
    "CenterCrop": v2.CenterCrop((40, 50)),
    "CenterCrop of more": v2.CenterCrop((80, 120)),
    "ClampBoundingBoxes": v2.ClampBoundingBoxes(),
    "ClampKeyPoints": v2.ClampKeyPoints(),
    "ColorJitter": v2.ColorJitter(0.4, 0.4, 0.4, 0.1),
    "ConvertBoundingBoxFormat": v2.ConvertBoundingBoxFormat("XYXY"),
    "ElasticTransform": v2.ElasticTransform(20.0),
    "GaussianBlur": v2.GaussianBlur(5),
    "Grayscale": v2.Grayscale(3),
    "Lambda": v2.Lambda(lambda part: part),
    "Pad": v2.Pad((3, 1, 2, 7), fill=9),
    "Pad by kind": v2.Pad(4, fill={tv_tensors.Mask: 255, "others": 3}),
    "RandomAdjustSharpness": v2.RandomAdjustSharpness(2.0),
    "RandomAffine": v2.RandomAffine(20, (0.1, 0.2), (0.7, 1.3), (-10, 10, -5, 5)),
    "RandomAffine by kind": v2.RandomAffine(20, fill={tv_tensors.Mask: 255, "others": (1, 2, 3)}),
    "RandomApply": v2.RandomApply([v2.RandomHorizontalFlip(1.0)]),
    "RandomApply of several": v2.RandomApply(
        [v2.Compose([v2.RandomIoUCrop(), v2.ColorJitter(0.4)]), v2.Pad(3, fill={tv_tensors.Mask: 9, "others": 1})], 0.7
    ),
    "RandomApply of targets": v2.RandomApply([v2.Resize(40), v2.SanitizeBoundingBoxes()]),
    "RandomChannelPermutation": v2.RandomChannelPermutation(),
    "RandomChoice": v2.RandomChoice([v2.RandomHorizontalFlip(1.0), v2.RandomVerticalFlip(1.0)]),
    "RandomChoice of several": v2.RandomChoice(
        [v2.Compose([v2.RandomZoomOut(p=1.0), v2.RandomIoUCrop()]), v2.Compose([v2.Resize(30)]), v2.GaussianBlur(3)],
        [0.6, 0.2, 0.2],
    ),
    "RandomCrop": v2.RandomCrop((40, 48)),
    "RandomCrop of more": v2.RandomCrop((80, 90), pad_if_needed=True, fill={tv_tensors.Mask: 255, "others": 0}),
    "RandomCrop padded": v2.RandomCrop((50, 60), padding=(1, 2, 3, 4), fill=5),
    "RandomEqualize": v2.RandomEqualize(),
    "RandomGrayscale": v2.RandomGrayscale(0.5),
    "RandomHorizontalFlip": v2.RandomHorizontalFlip(),
    "RandomIoUCrop": v2.RandomIoUCrop(),
    "RandomIoUCrop of one overlap": v2.RandomIoUCrop(0.2, 0.9, 0.4, 2.5, [0.3, 1.0], 7),
    "RandomOrder": v2.RandomOrder(
        [v2.RandomIoUCrop(), v2.Compose([v2.Resize(60), v2.RandomHorizontalFlip()]), v2.RandomZoomOut()]
    ),
    "RandomPerspective": v2.RandomPerspective(),
    "RandomPhotometricDistort": v2.RandomPhotometricDistort(),
    "RandomPosterize": v2.RandomPosterize(3),
    "RandomResize": v2.RandomResize(30, 110),
    "RandomResizedCrop": v2.RandomResizedCrop((37, 41)),
    "RandomResizedCrop nearest": v2.RandomResizedCrop(33, scale=(0.1, 0.4), interpolation=RESIZED.NEAREST),
    "RandomRotation": v2.RandomRotation(25),
    "RandomRotation grown": v2.RandomRotation(25, expand=True, fill=4),
    "RandomShortestSize": v2.RandomShortestSize([30, 50, 90], max_size=120),
    "RandomSolarize": v2.RandomSolarize(100),
    "RandomVerticalFlip": v2.RandomVerticalFlip(),
    "RandomZoomOut": v2.RandomZoomOut(fill={tv_tensors.Mask: 255, "others": 7}),
    "Resize": v2.Resize(45),
    "Resize to a size": v2.Resize((50, 30), interpolation=RESIZED.BICUBIC),
    "SanitizeBoundingBoxes": v2.SanitizeBoundingBoxes(),
    "SanitizeBoundingBoxes by a function": v2.SanitizeBoundingBoxes(labels_getter=lambda s: s[1]["labels"]),
    "SanitizeKeyPoints": v2.SanitizeKeyPoints(),
    "ScaleJitter": v2.ScaleJitter((80, 60)),
    "SetClampingMode": v2.SetClampingMode("hard"),
    "ToDtype by kind": v2.ToDtype({tv_tensors.Mask: torch.int64, "others": None}),
}
OWN = {  # run as they are, with all that follows
    "ElasticTransform", "Lambda", "RandomApply of targets", "RandomPerspective", "RandomRotation grown",
    "SanitizeBoundingBoxes by a function",
}  # fmt: skip

# Recipes people train with, and tensors first.
RECIPES = {
    "segmentation": [
        v2.RandomResize(40, 120), v2.RandomHorizontalFlip(), v2.RandomCrop(36, pad_if_needed=True), *ENDING
    ],
    "segmentation on tensors": [v2.ToImage(), v2.RandomResizedCrop(32), v2.RandomHorizontalFlip(), *ENDING[1:]],
    "segmentation, other dtypes": [
        v2.RandomResizedCrop(32), v2.ToImage(),
        v2.ToDtype({tv_tensors.Image: torch.float32, tv_tensors.Mask: torch.int64, "others": None}, scale=True),
    ],
    "jitter": [
        v2.ScaleJitter((90, 90), (0.3, 1.5)), v2.RandomCrop(64, pad_if_needed=True), v2.RandomHorizontalFlip(), *ENDING
    ],
    "multi-scale": [v2.RandomHorizontalFlip(), v2.RandomShortestSize([30, 60], 80), *ENDING],
    "ssd": [
        v2.RandomPhotometricDistort(), v2.RandomZoomOut(fill=8), v2.RandomIoUCrop(), v2.RandomHorizontalFlip(), *ENDING
    ],
    "crop first": [v2.RandomIoUCrop(), v2.RandomHorizontalFlip(), *ENDING],
    "flip on tensors": [v2.RandomCrop(40), v2.ToImage(), v2.RandomVerticalFlip(), *ENDING[1:]],
    "turned": [v2.RandomAffine(30), v2.RandomResizedCrop(30), *ENDING],
}  # fmt: skip


def check(recipe, raws, epochs, cuts=None):
    report = []
    recipe = v2.Compose(recipe)
    for raw in raws:
        ours = Ours(recipe, raw)
        for epoch in epochs:
            key = Key(3, epoch, 11)
            expected = theirs(recipe, raw, key)
            for cut in cuts or legal_cuts(ours.pipeline):
                try:
                    found = ours.finished(raw, key, cut)
                except OpError as error:
                    if "needs the whole picture" in str(error):
                        continue  # a node then sends the file
                    raise
                report += [f"{cut}, epoch {epoch}: {text}" for text in differences(found, expected)]
    if report:
        pytest.fail("\n".join([*report[:20], ours.pipeline.describe()]), pytrace=False)
    return ours.pipeline


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", STEPS)
@pytest.mark.matrix(every=3)
def test_every_transform_gives_torchvisions_samples_at_every_cut(name):
    raw = raw_sample(seed=1)
    pipeline = check([STEPS[name]], [raw], range(2))
    assert any(isinstance(op, Call) for op in pipeline.ops) == (name in OWN), pipeline.describe()


RAWS = (
    raw_sample(97, 64, 5, "xyxy"),
    raw_sample(60, 101, 0, "xywh", seed=1),
    raw_sample(50, 50, 2, "cxcywh", seed=2),
    raw_sample(131, 80, 3, "xywh", seed=3),
)


@pytest.mark.parametrize("name", RECIPES)
@pytest.mark.matrix(every=3)
def test_recipes_give_torchvisions_samples_at_every_cut(name):
    check(RECIPES[name], RAWS[2:3], [len(name) % 3])


@pytest.mark.slow
@pytest.mark.parametrize("name", RECIPES)
def test_recipes_give_torchvisions_samples_at_every_cut_whatever_the_sample(name):
    check(RECIPES[name], RAWS, range(8))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    names=st.lists(st.sampled_from(sorted(STEPS)), min_size=1, max_size=4),
    at=st.integers(0, 4),
    raw=st.builds(
        raw_sample,
        st.integers(20, 200),
        st.integers(20, 200),
        st.integers(0, 6),
        st.sampled_from(["xyxy", "xywh", "cxcywh"]),
        st.integers(0, 99),
    ),
    epoch=st.integers(0, 99),
)
def test_random_recipes_give_torchvisions_samples_at_every_cut(names, at, raw, epoch):
    steps = [STEPS[name] for name in names]
    steps[at:at] = TO_FLOAT
    recipe = v2.Compose(steps)
    try:
        theirs(recipe, raw, Key(3, epoch, 11))
    except Exception:  # noqa: BLE001 - whatever torchvision or an op refuses must be refused
        with pytest.raises((OpError, ConfigError)):
            Ours(recipe, raw).finished(raw, Key(3, epoch, 11))
        return
    check(steps, [raw], [epoch])


def test_what_torchvision_refuses_for_a_target_is_refused_and_named():
    raw = raw_sample()
    recipe = v2.Compose([v2.RandomHorizontalFlip(), v2.Pad(4, padding_mode="reflect")])
    with pytest.raises(ValueError, match="'reflect' is not supported with bounding boxes"):
        recipe(raw.theirs())
    with pytest.raises(OpError, match=r"sample 11, op 2 \(Pad\): on the targets: .*'reflect' is not supported"):
        Ours(recipe, raw).finished(raw, Key(3, 0, 11))


def test_what_can_run_near_storage_is_known():
    raw = raw_sample()
    cuts = {name: Ours(v2.Compose(recipe), raw).pipeline.max_cut for name, recipe in RECIPES.items()}
    assert cuts["segmentation"] == 7  # all of it
    assert cuts["ssd"] == 8  # all of it, and a window as well, unless contrast is changed
    for name in ("ssd", "crop first"):
        assert "0:window" in map(str, legal_cuts(Ours(v2.Compose(RECIPES[name]), raw).pipeline))
    assert cuts["segmentation on tensors"] == 1
    assert "0:window" in map(str, legal_cuts(Ours(v2.Compose(RECIPES["segmentation on tensors"]), raw).pipeline))
