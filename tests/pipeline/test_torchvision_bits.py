"""Given the same parameters our ops give the same bits as torchvision on PIL images."""

import io
import math

import numpy as np
import pytest
from PIL import Image

from sophon.pipeline import Key, Rng, ops, spec_of
from sophon.pipeline.ops import blur
from sophon.pipeline.ops.augment import ADJUSTMENTS
from tests.support.pictures import FORMS, encode, photos, scene
from tests.support.torchvision_import import import_torchvision

tv = import_torchvision()
import torch  # noqa: E402
from torchvision.transforms import InterpolationMode  # noqa: E402
from torchvision.transforms import functional as F  # noqa: E402, N812
from torchvision.transforms._functional_tensor import _get_gaussian_kernel1d  # noqa: E402

SIZES = [(1, 1), (3, 2), (17, 31), (64, 48), (225, 224), (333, 500)]


def _pictures(mode: str = "RGB") -> list[Image.Image]:
    made = [scene(*size, seed=i) for i, size in enumerate(SIZES)]
    real = [Image.open(io.BytesIO(data)).convert("RGB") for data in photos()[:4]]
    return [picture.convert(mode) for picture in made + real]


def _same(ours: object, theirs: object) -> None:
    if isinstance(theirs, torch.Tensor):
        theirs = theirs.numpy()
    if isinstance(theirs, Image.Image):
        assert isinstance(ours, Image.Image)
        assert (ours.mode, ours.size) == (theirs.mode, theirs.size)
        assert ours.tobytes() == theirs.tobytes()
    else:
        assert isinstance(ours, np.ndarray)
        assert ours.dtype == theirs.dtype
        assert ours.tobytes() == theirs.tobytes()


def _drawn(op, picture, count=6):
    """Return a few parameters as the op itself draws them for this picture."""
    return [op.draw(Rng(Key(5, epoch, 0), 1), spec_of(picture)) for epoch in range(count)]


@pytest.mark.parametrize("form", FORMS)
def test_decode(form):
    data = encode(scene(67, 41), form)
    _same(ops.Decode().apply(data), Image.open(io.BytesIO(data)).convert("RGB"))


def test_decode_of_photos():
    for data in photos():
        _same(ops.Decode().apply(data), Image.open(io.BytesIO(data)).convert("RGB"))


@pytest.mark.parametrize("interpolation", ["nearest", "bilinear", "bicubic", "box", "hamming", "lanczos"])
@pytest.mark.parametrize("size", [7, 32, (20, 45), (224, 224)])
def test_resize(size, interpolation):
    mode = InterpolationMode(interpolation)
    for picture in _pictures()[2:] + _pictures("L")[2:5]:
        theirs = F.resize(picture, [size] if isinstance(size, int) else list(size), mode)
        _same(ops.Resize(size, interpolation).apply(picture), theirs)


def test_resize_with_a_bound_on_the_longer_edge():
    for picture in _pictures()[2:]:
        _same(ops.Resize(40, max_size=50).apply(picture), F.resize(picture, [40], max_size=50))


@pytest.mark.parametrize("size", [1, 24, (30, 50), (300, 7), 600])
def test_center_crop(size):
    for picture in _pictures() + _pictures("L"):
        _same(
            ops.CenterCrop(size).apply(picture), F.center_crop(picture, size if isinstance(size, int) else list(size))
        )


@pytest.mark.parametrize("padding_mode", ["constant", "edge", "reflect", "symmetric"])
@pytest.mark.parametrize("padding", [0, 2, (1, 0), (3, 1, 0, 2)])
def test_pad(padding, padding_mode):
    theirs_padding = list(padding) if isinstance(padding, tuple) else padding
    for picture in _pictures()[2:] + _pictures("L")[2:4]:
        for fill in (0, 7) if picture.mode == "L" else (0, 7, (1, 2, 255)):
            theirs = F.pad(picture, theirs_padding, fill, padding_mode)
            _same(ops.Pad(padding, fill, padding_mode).apply(picture), theirs)


@pytest.mark.parametrize("padding_mode", ["constant", "edge", "reflect", "symmetric"])
@pytest.mark.parametrize(
    ("size", "padding", "pad_if_needed"), [(32, None, True), ((30, 40), 4, True), (16, (1, 2), False)]
)
def test_random_crop(size, padding, pad_if_needed, padding_mode, monkeypatch):
    theirs = tv.transforms.RandomCrop(size, padding, pad_if_needed, 9, padding_mode)
    ours = ops.RandomCrop(size, padding, pad_if_needed, 9, padding_mode)
    for picture in _pictures()[2:] + _pictures("L")[3:5]:
        for top, left in _drawn(ours, picture):
            monkeypatch.setattr(theirs, "get_params", lambda *_, at=(top, left): (*at, *theirs.size))
            _same(ours.apply(picture, (top, left)), theirs(picture))


@pytest.mark.parametrize("interpolation", ["nearest", "bilinear", "bicubic", "box", "hamming", "lanczos"])
def test_random_resized_crop(interpolation):
    for size in ((224, 224), (31, 64)):
        op = ops.RandomResizedCrop(size, interpolation=interpolation)
        for picture in _pictures()[1:] + _pictures("L")[3:5]:
            for box in _drawn(op, picture, 3):
                _same(
                    op.apply(picture, box), F.resized_crop(picture, *box, list(size), InterpolationMode(interpolation))
                )


@pytest.mark.parametrize(("op", "theirs"), [(ops.RandomHorizontalFlip(), F.hflip), (ops.RandomVerticalFlip(), F.vflip)])
def test_flips(op, theirs):
    for picture in _pictures() + _pictures("L"):
        _same(op.apply(picture, True), theirs(picture))
        _same(op.apply(picture, False), picture)


@pytest.mark.parametrize("mode", ["RGB", "L"])
def test_grayscale(mode):
    for picture in _pictures(mode):
        _same(ops.Grayscale(1).apply(picture), F.rgb_to_grayscale(picture, 1))
        _same(ops.Grayscale(3).apply(picture), F.rgb_to_grayscale(picture, 3))
        _same(ops.RandomGrayscale().apply(picture, True), F.rgb_to_grayscale(picture, len(mode)))


@pytest.mark.parametrize("mode", ["RGB", "L"])
def test_color_jitter(mode):
    adjust = (F.adjust_brightness, F.adjust_contrast, F.adjust_saturation, F.adjust_hue)
    op = ops.ColorJitter(0.8, 0.8, 0.8, 0.5)
    for picture in _pictures(mode):
        for steps in _drawn(op, picture, 8):
            theirs = picture
            for which, factor in steps:
                theirs = adjust[which](theirs, factor)
            _same(op.apply(picture, steps), theirs)


@pytest.mark.parametrize("turn", [-0.5, -0.25, -0.001, 0.0, 0.004, 0.1, 0.49, 0.5])
def test_hue(turn):
    for picture in _pictures():
        _same(ops.ColorJitter(hue=0.5).apply(picture, ((3, turn),)), F.adjust_hue(picture, turn))


KERNELS = [1, 3, 5, (5, 9), 7, 15, 23, (31, 33)]


def _blur_weights(count, sigma):
    return _get_gaussian_kernel1d(count, sigma, torch.float32, torch.device("cpu")).numpy()


@pytest.mark.parametrize("kernel_size", KERNELS)
def test_gaussian_blur(kernel_size):
    """Same bits for the same weights; see `weights` for why torchvision's may differ in the last bit of exp."""
    op = ops.GaussianBlur(kernel_size, (0.1, 3.0))
    across, down = op.kernel_size
    whole = 0
    for picture in [p for p in _pictures() + _pictures("L") if 32 < min(p.size) <= 225]:
        for sigma in (*_drawn(op, picture, 2), 0.1, 1.0):
            ours = op.apply(picture, sigma)
            kernel = torch.from_numpy(np.outer(blur.weights(down, sigma), blur.weights(across, sigma)))
            pixels = F.pil_to_tensor(picture).float()[None]
            padded = torch.nn.functional.pad(pixels, [across // 2] * 2 + [down // 2] * 2, mode="reflect")
            bands = len(picture.getbands())
            theirs = torch.nn.functional.conv2d(padded, kernel.expand(bands, 1, down, across), groups=bands)
            _same(ours, F.to_pil_image(theirs[0].round().byte()))
            if all((_blur_weights(n, sigma) == blur.weights(n, sigma)).all() for n in (across, down)):
                _same(ours, F.gaussian_blur(picture, list(op.kernel_size), [sigma, sigma]))
                whole += 1
    assert whole > 0


def test_blur_weights_are_torchvisions_but_for_the_last_bit_of_exp():
    same = total = 0
    for count in (1, 3, 5, 7, 9, 15, 23, 31, 63, 101):
        for sigma in np.linspace(0.1, 5.0, 40):
            ours, theirs = blur.weights(count, sigma), _blur_weights(count, sigma)
            np.testing.assert_array_max_ulp(ours, theirs, 4)
            same += bool((ours == theirs).all())
            total += 1
    assert same > 0.75 * total


@pytest.mark.parametrize("interpolation", ["nearest", "bilinear", "bicubic"])
def test_random_rotation(interpolation):
    for settings in ({}, {"expand": True, "fill": 200.0}, {"center": (5.0, 9.0)}):
        op = ops.RandomRotation(180, interpolation, **settings)
        for picture in _pictures()[2:] + _pictures("L")[3:4]:
            for angle in _drawn(op, picture, 3):
                theirs = F.rotate(picture, angle, InterpolationMode(interpolation), op.expand, op.center, op.fill)
                _same(op.apply(picture, angle), theirs)


@pytest.mark.parametrize("interpolation", ["nearest", "bilinear", "bicubic"])
def test_random_affine(interpolation):
    op = ops.RandomAffine(30, (0.2, 0.3), (0.7, 1.4), (-20, 20, -10, 10), interpolation, fill=30)
    for picture in _pictures()[2:] + _pictures("L")[3:4]:
        for m in _drawn(op, picture, 4):
            theirs = F.affine(
                picture, m.angle, list(m.translate), m.scale, list(m.shear), InterpolationMode(interpolation), fill=30
            )
            _same(op.apply(picture, m), theirs)


@pytest.mark.parametrize("mode", ["RGB", "L"])
def test_tones(mode):
    for picture in _pictures(mode):
        _same(ops.RandomInvert().apply(picture, True), F.invert(picture))
        _same(ops.RandomAutocontrast().apply(picture, True), F.autocontrast(picture))
        _same(ops.RandomEqualize().apply(picture, True), F.equalize(picture))
        for bits in range(1, 9):
            _same(ops.RandomPosterize(bits=bits).apply(picture, True), F.posterize(picture, bits))
        for threshold in (0, 17, 127.5, 255):
            _same(ops.RandomSolarize(threshold=threshold).apply(picture, True), F.solarize(picture, threshold))
        for factor in (0.0, 0.6, 2.5):
            op = ops.RandomAdjustSharpness(sharpness_factor=factor)
            _same(op.apply(picture, True), F.adjust_sharpness(picture, factor))


@pytest.mark.parametrize("interpolation", ["nearest", "bilinear"])
@pytest.mark.parametrize("name", ADJUSTMENTS)
def test_rand_augment_adjustments(name, interpolation):
    from torchvision.transforms.autoaugment import _apply_op

    op = ops.RandAugment(interpolation=interpolation, fill=(10, 20, 30))
    for picture in _pictures()[2:7]:
        size = op.magnitude_of(name, picture.height, picture.width)
        signs = (1, -1) if name not in ("Posterize", "Solarize") else (1,)
        for sign in signs:
            theirs = _apply_op(picture, name, sign * size, InterpolationMode(interpolation), [10, 20, 30])
            _same(op.apply(picture, ((name, sign * size),)), theirs)


def test_rand_augment_magnitudes_are_torchvisions_to_the_bit():
    for bins in (2, 10, 31, 50):
        for height, width in ((224, 224), (375, 500), (17, 31)):
            theirs = tv.transforms.RandAugment()._augmentation_space(bins, (height, width))
            for index in range(bins):
                op = ops.RandAugment(magnitude=index, num_magnitude_bins=bins)
                for name, (magnitudes, _) in theirs.items():
                    expected = float(magnitudes[index]) if magnitudes.ndim else 0.0
                    assert op.magnitude_of(name, height, width) == expected, (name, bins, index)


def test_trivial_augment_magnitudes_are_torchvisions_to_the_bit():
    for bins in (2, 10, 31, 50):
        op = ops.TrivialAugmentWide(bins)
        for name, (magnitudes, _) in tv.transforms.TrivialAugmentWide()._augmentation_space(bins).items():
            for index in range(bins):
                expected = float(magnitudes[index]) if magnitudes.ndim else 0.0
                assert op.magnitude_of(name, index) == expected, (name, bins, index)


@pytest.mark.parametrize("mode", ["RGB", "L"])
def test_to_tensor_and_normalize(mode):
    mean, std = [0.485, 0.456, 0.406][: len(mode)], [0.229, 0.224, 0.225][: len(mode)]
    for picture in _pictures(mode):
        tensor = F.to_tensor(picture)
        _same(ops.ToTensor().apply(picture), tensor)
        _same(ops.PILToTensor().apply(picture), F.pil_to_tensor(picture))
        _same(ops.Normalize(mean, std).apply(tensor.numpy()), F.normalize(tensor, mean, std))


def test_to_float_as_v1_divides_and_v2_multiplies():
    from torchvision.transforms.v2 import functional as F2  # noqa: N812

    every = torch.arange(256, dtype=torch.uint8).reshape(1, 16, 16)
    _same(ops.ToFloat("divide").apply(every.numpy()), F.convert_image_dtype(every, torch.float32))
    _same(ops.ToFloat("multiply").apply(every.numpy()), F2.to_dtype(every, torch.float32, scale=True))


def test_random_erasing():
    for value in (0.0, 0.5, (0.1, 0.2, 0.3)):
        op = ops.RandomErasing(1.0, value=value)
        for picture in _pictures()[3:]:
            tensor = ops.ToTensor().apply(picture)
            for top, left, height, width, _ in [p for p in _drawn(op, tensor) if p is not None]:
                v = torch.tensor([value] if isinstance(value, float) else value)[:, None, None]
                theirs = F.erase(torch.from_numpy(tensor), top, left, height, width, v)
                _same(op.apply(tensor, (top, left, height, width, None)), theirs)


def test_random_erasing_with_noise():
    op = ops.RandomErasing(1.0, value="random")
    tensor = ops.ToTensor().apply(scene(64, 48))
    (top, left, height, width, noise), *_ = [p for p in _drawn(op, tensor) if p is not None]
    theirs = F.erase(torch.from_numpy(tensor), top, left, height, width, torch.from_numpy(noise))
    _same(op.apply(tensor, (top, left, height, width, noise)), theirs)


def test_every_op_with_a_counterpart_is_compared_here():
    from pathlib import Path

    source = Path(__file__).read_text()
    containers = {"RandomApply", "RandomChoice"}  # chance only; what they apply is compared above
    left_out = {name for name in ops.__all__ if f"ops.{name}(" not in source} - containers
    assert not left_out


def test_angles_are_in_degrees_as_everywhere():
    assert math.isclose(ops.affine.AffineMap(angle=90).inverse((0, 0))[1], 1.0)
