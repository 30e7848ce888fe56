import pickle

import numpy as np
import pytest

from sophon.pipeline import Call, Key, Pipeline, ops
from tests.support.pictures import encode, scene
from tests.support.torchvision_import import import_torchvision

tv = import_torchvision()
import torch  # noqa: E402
from torchvision import transforms as T  # noqa: E402, N812
from torchvision.transforms import v2  # noqa: E402

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
DATA = encode(scene(120, 90), "jpeg 4:2:0")


def _ops(*transforms):
    return Pipeline.from_torchvision(T.Compose(list(transforms))).ops[1:]


def test_the_imagenet_recipe_becomes_ops():
    pipeline = Pipeline.from_torchvision(
        T.Compose([T.RandomResizedCrop(224), T.RandomHorizontalFlip(), T.ToTensor(), T.Normalize(MEAN, STD)])
    )
    assert pipeline == Pipeline(
        [
            ops.Decode(),
            ops.RandomResizedCrop(224),
            ops.RandomHorizontalFlip(),
            ops.ToTensor(),
            ops.Normalize(MEAN, STD),
        ]
    )
    assert pipeline.max_cut == 5


@pytest.mark.parametrize("lib", [T, v2], ids=["v1", "v2"])
def test_every_known_transform_becomes_its_op(lib):
    nearest, api = T.InterpolationMode.NEAREST, "v2" if lib is v2 else "v1"
    pairs = [
        (lib.Resize(256), ops.Resize(256)),
        (lib.Resize((20, 30), nearest), ops.Resize((20, 30), "nearest")),
        (lib.Resize(20, max_size=30), ops.Resize(20, max_size=30)),
        (lib.CenterCrop(224), ops.CenterCrop(224)),
        (lib.RandomCrop(32, 4), ops.RandomCrop(32, 4)),
        (lib.RandomCrop((30, 32), (1, 2, 3, 4), fill=9), ops.RandomCrop((30, 32), (1, 2, 3, 4), fill=9)),
        (lib.RandomCrop(32, pad_if_needed=True), ops.RandomCrop(32, pad_if_needed=True)),
        (lib.RandomResizedCrop((9, 8), (0.1, 0.9), (0.5, 2)), ops.RandomResizedCrop((9, 8), (0.1, 0.9), (0.5, 2))),
        (lib.RandomHorizontalFlip(0.3), ops.RandomHorizontalFlip(0.3)),
        (lib.RandomVerticalFlip(), ops.RandomVerticalFlip()),
        (lib.Pad((1, 2), fill=3, padding_mode="edge"), ops.Pad((1, 2), 3, "edge")),
        (lib.RandomRotation(30), ops.RandomRotation(30)),
        (lib.RandomAffine(10, (0.1, 0.2), shear=5), ops.RandomAffine(10, (0.1, 0.2), shear=5, api=api)),
        (lib.ColorJitter(0.4, 0.3, 0.2, 0.1), ops.ColorJitter(0.4, 0.3, 0.2, 0.1)),
        (lib.ColorJitter(contrast=(0.5, 2)), ops.ColorJitter(contrast=(0.5, 2))),
        (lib.Grayscale(3), ops.Grayscale(3)),
        (lib.RandomGrayscale(), ops.RandomGrayscale()),
        (lib.RandomInvert(), ops.RandomInvert()),
        (lib.RandomPosterize(4), ops.RandomPosterize(bits=4)),
        (lib.RandomSolarize(100), ops.RandomSolarize(threshold=100)),
        (lib.RandomAdjustSharpness(2), ops.RandomAdjustSharpness(sharpness_factor=2)),
        (lib.RandomAutocontrast(), ops.RandomAutocontrast()),
        (lib.RandomEqualize(), ops.RandomEqualize()),
        (lib.RandAugment(3, 7), ops.RandAugment(3, 7, api=api)),
        (lib.TrivialAugmentWide(), ops.TrivialAugmentWide(api=api)),
        (lib.AutoAugment(lib.AutoAugmentPolicy.SVHN), ops.AutoAugment("svhn", api=api)),
        (lib.RandomOrder([lib.Resize(3), lib.RandomInvert()]), ops.RandomOrder((ops.Resize(3), ops.RandomInvert()))),
        (
            lib.RandomOrder([lib.Compose([lib.Resize(3), lib.RandomInvert()]), lib.Compose([lib.CenterCrop(2)])]),
            ops.RandomOrder((ops.RandomApply((ops.Resize(3), ops.RandomInvert()), 1.0), ops.CenterCrop(2))),
        ),
        (lib.RandomApply([lib.ColorJitter(0.4)], 0.8), ops.RandomApply((ops.ColorJitter(0.4),), 0.8)),
        (
            lib.RandomChoice([lib.CenterCrop(3), lib.Resize((3, 3))]),
            ops.RandomChoice((ops.CenterCrop(3), ops.Resize((3, 3)))),
        ),
        (lib.PILToTensor(), ops.PILToTensor()),
    ]
    for transform, op in pairs:
        assert _ops(transform) == (op,), transform


@pytest.mark.parametrize("lib", [T, v2], ids=["v1", "v2"])
def test_a_blur_becomes_an_op_that_adds_as_the_torch_of_this_machine_does(lib):
    (op,) = _ops(lib.GaussianBlur(23, (0.1, 2.0)))
    api = "v2" if lib is v2 else "v1"
    # Vectors of 8 or of 16 numbers: that depends on the processor, and the translation has asked torch.
    assert op in [ops.GaussianBlur(23, api=api, lanes=lanes) for lanes in (8, 16)]


def test_tensors_of_v1_and_v2():
    assert _ops(T.ToTensor(), T.RandomErasing(value="random")) == (ops.ToTensor(), ops.RandomErasing(value="random"))
    assert _ops(v2.ToImage(), v2.ToDtype(torch.float32, scale=True), v2.Normalize(MEAN, STD), v2.ToPureTensor()) == (
        ops.PILToTensor(),
        ops.ToFloat("multiply"),
        ops.Normalize(MEAN, STD),
    )
    assert _ops(T.PILToTensor(), T.ConvertImageDtype(torch.float32)) == (ops.PILToTensor(), ops.ToFloat("divide"))
    assert _ops(v2.ToImage(), v2.ToDtype(torch.float32, scale=True), v2.RandomErasing())[2] == ops.RandomErasing()


def test_a_preset_of_pretrained_weights():
    from torchvision.transforms._presets import ImageClassification

    preset = ImageClassification(crop_size=224)
    pipeline = Pipeline.from_torchvision(preset)
    assert pipeline.max_cut == len(pipeline) == 6
    picture = scene(300, 280)
    ours = pipeline.run(encode(picture, "png"), Key(0, 0, 0))
    assert ours.tobytes() == preset(picture).numpy().tobytes()


def test_a_preset_and_what_follows_it():
    from torchvision.transforms._presets import ImageClassification

    recipe = T.Compose([ImageClassification(crop_size=24, resize_size=32), _negative])
    pipeline = Pipeline.from_torchvision(recipe)
    assert pipeline.max_cut == 6
    picture = ops.Decode().apply(DATA)
    assert torch.equal(pipeline.run(DATA, Key(0, 0, 0)), recipe(picture))


def test_ops_of_ours_may_stand_among_transforms():
    recipe = T.Compose([T.Resize(40), ops.ToTensor(), T.RandomCrop(8), ops.Normalize(MEAN, STD)])
    pipeline = Pipeline.from_torchvision(recipe)
    assert pipeline.ops[2] == ops.ToTensor()
    assert isinstance(pipeline.ops[3], Call)
    assert pipeline.run(DATA, Key(0, 0, 0)).shape == (3, 8, 8)


def test_nested_and_sequential_containers_are_flattened():
    nested = T.Compose([T.Resize(64), T.Compose([T.CenterCrop(32), torch.nn.Sequential(T.RandomHorizontalFlip())])])
    assert Pipeline.from_torchvision(nested).ops[1:] == (ops.Resize(64), ops.CenterCrop(32), ops.RandomHorizontalFlip())


def test_a_deterministic_recipe_gives_torchvisions_bits():
    recipe = T.Compose([T.Resize(64), T.CenterCrop(56), T.ToTensor(), T.Normalize(MEAN, STD)])
    pipeline = Pipeline.from_torchvision(recipe)
    picture = ops.Decode().apply(DATA)
    assert pipeline.run(DATA, Key(0, 0, 0)).tobytes() == recipe(picture).numpy().tobytes()


class _OwnFlip(T.RandomHorizontalFlip):
    """A subclass may do anything."""


def _negative(tensor):
    return -tensor


def _noise(tensor):
    assert isinstance(tensor, torch.Tensor)
    return tensor + torch.rand(1) + float(np.random.rand())


@pytest.mark.parametrize(
    "unknown",
    [
        T.Lambda(lambda x: x),
        T.RandomPerspective(),
        T.AugMix(),
        v2.Resize(None, max_size=64),
        v2.Pad(3, fill={torch.Tensor: 0}),
        v2.RandomCrop(8, pad_if_needed=True, padding_mode="reflect"),
        T.RandomApply([T.Lambda(lambda x: x)]),
        T.RandomOrder([T.Resize(4), T.RandomPerspective()]),
        _OwnFlip(),
    ],
    ids=lambda t: type(t).__name__,
)
def test_what_has_no_op_stays_on_the_trainer(unknown):
    pipeline = Pipeline.from_torchvision(T.Compose([T.CenterCrop(32), unknown, T.ToTensor()]))
    assert isinstance(pipeline.ops[2], Call)
    assert pipeline.max_cut == 2
    assert "trainer only" in pipeline.describe()


def test_a_transform_that_torchvision_takes_at_a_place_where_our_op_does_not_stays_on_the_trainer():
    pipeline = Pipeline.from_torchvision(T.Compose([T.CenterCrop(32), T.ToTensor(), T.RandomHorizontalFlip(1.0)]))
    assert isinstance(pipeline.ops[3], Call)
    flipped = pipeline.run(DATA, Key(0, 0, 0))
    assert np.array_equal(flipped, pipeline.run(DATA, Key(0, 0, 0), 0, 3)[:, :, ::-1])


def test_a_callable_is_seeded_per_sample_and_leaves_the_users_generators_alone():
    pipeline = Pipeline.from_torchvision(T.Compose([T.CenterCrop(8), T.ToTensor(), _noise]))
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    first = pipeline.run(DATA, Key(0, 0, 1))
    assert torch.equal(torch.rand(3), expected)
    torch.manual_seed(99)
    np.random.seed(99)
    again = pipeline.run(DATA, Key(0, 0, 1))
    assert isinstance(first, torch.Tensor)  # what the callable returned, as it is
    assert torch.equal(first, again)
    others = [pipeline.run(DATA, key).numpy().tobytes() for key in (Key(1, 0, 1), Key(0, 1, 1), Key(0, 0, 2))]
    assert len({first.numpy().tobytes(), *others}) == 4


def test_a_pipeline_with_a_callable_can_be_pickled_for_worker_processes():
    pipeline = Pipeline.from_torchvision(T.Compose([T.CenterCrop(8), T.ToTensor(), _noise]))
    copy = pickle.loads(pickle.dumps(pipeline))
    assert copy.fingerprint == pipeline.fingerprint
    assert torch.equal(copy.run(DATA, Key(0, 0, 0)), pipeline.run(DATA, Key(0, 0, 0)))


def test_something_that_is_no_transform_is_refused():
    with pytest.raises(ValueError, match="expected a transform, got 3"):
        Pipeline.from_torchvision(T.Compose([3]))
