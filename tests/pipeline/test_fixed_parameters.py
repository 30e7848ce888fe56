"""A random transform whose range is one value is deterministic: on real sizes it gives torchvision's bits."""

import numpy as np
import pytest

from sophon.pipeline import Key, Pipeline
from tests.support.pictures import encode, scene
from tests.support.torchvision_import import import_torchvision

import_torchvision()
from torchvision import transforms as v1  # noqa: E402
from torchvision.transforms import v2  # noqa: E402

# Numbers that float32 does not have, so that it matters in which format they are drawn.
FIXED = {
    "rotation": lambda t: t.RandomRotation((33.3, 33.3)),
    "rotation, bilinear": lambda t: t.RandomRotation((12.7, 12.7), v1.InterpolationMode.BILINEAR, expand=True),
    "affine": lambda t: t.RandomAffine((12.7, 12.7), scale=(1.1, 1.1), shear=(3.3, 3.3, 1.7, 1.7)),
    "jitter of brightness": lambda t: t.ColorJitter(brightness=(0.7, 0.7)),
    "jitter of contrast": lambda t: t.ColorJitter(contrast=(1.3, 1.3)),
    "jitter of saturation": lambda t: t.ColorJitter(saturation=(0.3, 0.3)),
    "jitter of hue": lambda t: t.ColorJitter(hue=(0.1, 0.1)),
    "blur": lambda t: t.GaussianBlur(5, 0.7),
}
JITTERS = [((100, 60), (0.7, 0.7)), ((640, 640), (1.2, 1.2)), ((333, 211), (0.31, 0.31))]
SIZES = [(375, 500), (500, 334), (97, 201), (640, 427)]


def _same(transform, size, seed):
    picture = scene(*size, seed=seed)
    pipeline = Pipeline.from_torchvision(v1.Compose([transform, v1.PILToTensor()]))
    ours = pipeline.run(encode(picture, "png"), Key(0, 0, seed))
    return np.array_equal(np.asarray(ours), v1.PILToTensor()(transform(picture)).numpy())


@pytest.mark.parametrize("api", [v1, v2], ids=["v1", "v2"])
@pytest.mark.parametrize("name", FIXED)
@pytest.mark.matrix(every=3)
def test_a_range_of_one_value_gives_torchvisions_bits(name, api):
    different = [size for seed, size in enumerate(SIZES) if not _same(FIXED[name](api), size, seed)]
    assert not different


@pytest.mark.parametrize("side", [1.0, 1.3, 2.7, 3.1])
@pytest.mark.matrix(every=4)
def test_a_zoom_of_one_factor_gives_torchvisions_sizes(side):
    transform = v2.RandomZoomOut(side_range=(side, side), p=1.0)
    for height in range(60, 700, 37):
        pipeline = Pipeline.from_torchvision(v2.Compose([transform]))
        ours = pipeline.run(encode(scene(height, 123, seed=1), "png"), Key(0, 0, 0))
        left, top, right, bottom = transform.make_params([scene(height, 123, seed=1)])["padding"]
        assert ours.size == (height + left + right, 123 + top + bottom)


@pytest.mark.parametrize("settings", JITTERS)
@pytest.mark.matrix(every=3)
def test_a_jitter_of_one_scale_gives_torchvisions_sizes(settings):
    transform = v2.ScaleJitter(*settings)
    for height in range(60, 700, 37):
        size = (height, 523)
        pipeline = Pipeline.from_torchvision(v2.Compose([transform]))
        ours = pipeline.run(encode(scene(*size, seed=1), "png"), Key(0, 0, 0))
        expected = transform.make_params([scene(*size, seed=1)])["size"]
        assert (ours.height, ours.width) == tuple(expected)
