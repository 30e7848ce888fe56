"""Given the same parameters our ops give the same bits as torchvision on PIL images."""

import io
import math

import numpy as np
import pytest
from PIL import Image

from sophon.pipeline import Call, Pipeline, bell, ops
from sophon.pipeline.ops.augment import ADJUSTMENTS
from tests.support.bits import drawn, pictures, same
from tests.support.pictures import FORMS, encode, photos, scene
from tests.support.torchvision_import import import_torchvision

tv = import_torchvision()
import torch  # noqa: E402
from torchvision.transforms import InterpolationMode, v2  # noqa: E402
from torchvision.transforms import functional as F  # noqa: E402, N812
from torchvision.transforms._functional_tensor import _get_gaussian_kernel1d  # noqa: E402
from torchvision.transforms.v2.functional._misc import (  # noqa: E402
    _get_gaussian_kernel1d as _get_gaussian_kernel1d_v2,
)


@pytest.mark.parametrize("form", FORMS)
def test_decode(form):
    data = encode(scene(67, 41), form)
    same(ops.Decode().apply(data), Image.open(io.BytesIO(data)).convert("RGB"))


def test_decode_of_photos():
    for data in photos():
        same(ops.Decode().apply(data), Image.open(io.BytesIO(data)).convert("RGB"))


@pytest.mark.parametrize("interpolation", ["nearest", "bilinear", "bicubic", "box", "hamming", "lanczos"])
@pytest.mark.parametrize("size", [7, 32, (20, 45), (224, 224)])
@pytest.mark.matrix(every=4)
def test_resize(size, interpolation):
    mode = InterpolationMode(interpolation)
    for picture in pictures()[2:] + pictures("L")[2:5]:
        theirs = F.resize(picture, [size] if isinstance(size, int) else list(size), mode)
        same(ops.Resize(size, interpolation).apply(picture), theirs)


def test_resize_with_a_bound_on_the_longer_edge():
    for picture in pictures()[2:]:
        same(ops.Resize(40, max_size=50).apply(picture), F.resize(picture, [40], max_size=50))


@pytest.mark.parametrize("size", [1, 24, (30, 50), (300, 7), 600])
def test_center_crop(size):
    for picture in pictures() + pictures("L"):
        same(ops.CenterCrop(size).apply(picture), F.center_crop(picture, size if isinstance(size, int) else list(size)))


@pytest.mark.parametrize("padding_mode", ["constant", "edge", "reflect", "symmetric"])
@pytest.mark.parametrize("padding", [0, 2, (1, 0), (3, 1, 0, 2)])
@pytest.mark.matrix(every=4)
def test_pad(padding, padding_mode):
    theirs_padding = list(padding) if isinstance(padding, tuple) else padding
    for picture in pictures()[2:] + pictures("L")[2:4]:
        for fill in (0, 7) if picture.mode == "L" else (0, 7, (1, 2, 255)):
            theirs = F.pad(picture, theirs_padding, fill, padding_mode)
            same(ops.Pad(padding, fill, padding_mode).apply(picture), theirs)


@pytest.mark.parametrize("padding_mode", ["constant", "edge", "reflect", "symmetric"])
@pytest.mark.parametrize(
    ("size", "padding", "pad_if_needed"), [(32, None, True), ((30, 40), 4, True), (16, (1, 2), False)]
)
def test_random_crop(size, padding, pad_if_needed, padding_mode, monkeypatch):
    theirs = tv.transforms.RandomCrop(size, padding, pad_if_needed, 9, padding_mode)
    ours = ops.RandomCrop(size, padding, pad_if_needed, 9, padding_mode)
    for picture in pictures()[2:] + pictures("L")[3:5]:
        for top, left in drawn(ours, picture):
            monkeypatch.setattr(theirs, "get_params", lambda *_, at=(top, left): (*at, *theirs.size))
            same(ours.apply(picture, (top, left)), theirs(picture))


@pytest.mark.parametrize("interpolation", ["nearest", "bilinear", "bicubic", "box", "hamming", "lanczos"])
def test_random_resized_crop(interpolation):
    for size in ((224, 224), (31, 64)):
        op = ops.RandomResizedCrop(size, interpolation=interpolation)
        for picture in pictures()[1:] + pictures("L")[3:5]:
            for box in drawn(op, picture, 3):
                same(
                    op.apply(picture, box), F.resized_crop(picture, *box, list(size), InterpolationMode(interpolation))
                )


@pytest.mark.parametrize(("op", "theirs"), [(ops.RandomHorizontalFlip(), F.hflip), (ops.RandomVerticalFlip(), F.vflip)])
def test_flips(op, theirs):
    for picture in pictures() + pictures("L"):
        same(op.apply(picture, True), theirs(picture))
        same(op.apply(picture, False), picture)


@pytest.mark.parametrize("mode", ["RGB", "L"])
def test_grayscale(mode):
    for picture in pictures(mode):
        same(ops.Grayscale(1).apply(picture), F.rgb_to_grayscale(picture, 1))
        same(ops.Grayscale(3).apply(picture), F.rgb_to_grayscale(picture, 3))
        same(ops.RandomGrayscale().apply(picture, True), F.rgb_to_grayscale(picture, len(mode)))


@pytest.mark.parametrize("mode", ["RGB", "L"])
def test_color_jitter(mode):
    adjust = (F.adjust_brightness, F.adjust_contrast, F.adjust_saturation, F.adjust_hue)
    op = ops.ColorJitter(0.8, 0.8, 0.8, 0.5)
    for picture in pictures(mode):
        for steps in drawn(op, picture, 8):
            theirs = picture
            for which, factor in steps:
                theirs = adjust[which](theirs, factor)
            same(op.apply(picture, steps), theirs)


@pytest.mark.parametrize("turn", [-0.5, -0.25, -0.001, 0.0, 0.004, 0.1, 0.49, 0.5])
def test_hue(turn):
    for picture in pictures():
        same(ops.ColorJitter(hue=0.5).apply(picture, ((3, turn),)), F.adjust_hue(picture, turn))


KERNELS = [1, 3, 5, (5, 9), 7, 15, 23, (31, 33)]


@pytest.mark.parametrize("kernel_size", KERNELS)
@pytest.mark.parametrize("lib", [tv.transforms, v2], ids=["v1", "v2"])
@pytest.mark.matrix(every=4)
def test_gaussian_blur(kernel_size, lib):
    pipeline = Pipeline.from_torchvision(lib.GaussianBlur(kernel_size, (0.1, 3.0)))
    op = pipeline.ops[1]
    assert isinstance(op, ops.GaussianBlur), "torch computes otherwise here; then the user's own object runs"
    for picture in [p for p in pictures() + pictures("L") if 32 < min(p.size) <= 225]:
        for sigma in drawn(op, picture, 3 if max(picture.size) <= 64 else 1):
            theirs = lib.functional.gaussian_blur(picture, list(op.kernel_size), [sigma, sigma])
            same(op.apply(picture, sigma), theirs)


@pytest.mark.parametrize("api", ["v1", "v2"])
@pytest.mark.matrix(every=2)
def test_blur_weights_are_torchvisions_for_every_width_that_is_drawn(api):
    theirs_of = {"v1": _get_gaussian_kernel1d, "v2": _get_gaussian_kernel1d_v2}[api]
    for count in (1, 3, 5, 7, 9, 15, 17, 23, 33):
        op = Pipeline.from_torchvision((tv.transforms if api == "v1" else v2).GaussianBlur(count)).ops[1]
        for sigma in drawn(op, scene(5, 4), 60):
            theirs = theirs_of(count, sigma, torch.float32, torch.device("cpu")).numpy()
            same(bell.weights(count, sigma, api, op.lanes), theirs)


def test_a_blur_whose_weights_torch_may_round_either_way_runs_as_it_is():
    unsure = next(s for s in np.linspace(0.5, 2.0, 1000) if not bell.is_sure(5, float(s)))
    assert isinstance(Pipeline.from_torchvision(tv.transforms.GaussianBlur(5, float(unsure))).ops[1], Call)


@pytest.mark.parametrize("interpolation", ["nearest", "bilinear", "bicubic"])
@pytest.mark.matrix(every=3)
def test_random_rotation(interpolation):
    for settings in ({}, {"expand": True, "fill": 200.0}, {"center": (5.0, 9.0)}):
        op = ops.RandomRotation(180, interpolation, **settings)
        for picture in pictures()[2:] + pictures("L")[3:4]:
            for angle in drawn(op, picture, 3):
                theirs = F.rotate(picture, angle, InterpolationMode(interpolation), op.expand, op.center, op.fill)
                same(op.apply(picture, angle), theirs)


@pytest.mark.parametrize("interpolation", ["nearest", "bilinear", "bicubic"])
def test_random_affine(interpolation):
    op = ops.RandomAffine(30, (0.2, 0.3), (0.7, 1.4), (-20, 20, -10, 10), interpolation, fill=30)
    for picture in pictures()[2:] + pictures("L")[3:4]:
        for m in drawn(op, picture, 4):
            theirs = F.affine(
                picture, m.angle, list(m.translate), m.scale, list(m.shear), InterpolationMode(interpolation), fill=30
            )
            same(op.apply(picture, m), theirs)


@pytest.mark.parametrize("mode", ["RGB", "L"])
def test_tones(mode):
    for picture in pictures(mode):
        same(ops.RandomInvert().apply(picture, True), F.invert(picture))
        same(ops.RandomAutocontrast().apply(picture, True), F.autocontrast(picture))
        same(ops.RandomEqualize().apply(picture, True), F.equalize(picture))
        for bits in range(1, 9):
            same(ops.RandomPosterize(bits=bits).apply(picture, True), F.posterize(picture, bits))
        for threshold in (0, 17, 127.5, 255):
            same(ops.RandomSolarize(threshold=threshold).apply(picture, True), F.solarize(picture, threshold))
        for factor in (0.0, 0.6, 2.5):
            op = ops.RandomAdjustSharpness(sharpness_factor=factor)
            same(op.apply(picture, True), F.adjust_sharpness(picture, factor))


@pytest.mark.parametrize("interpolation", ["nearest", "bilinear"])
@pytest.mark.parametrize("name", ADJUSTMENTS)
@pytest.mark.matrix(every=4)
def test_rand_augment_adjustments(name, interpolation):
    from torchvision.transforms.autoaugment import _apply_op

    op = ops.RandAugment(interpolation=interpolation, fill=(10, 20, 30))
    for picture in pictures()[2:7]:
        size = op.magnitude_of(name, picture.height, picture.width)
        signs = (1, -1) if name not in ("Posterize", "Solarize") else (1,)
        for sign in signs:
            theirs = _apply_op(picture, name, sign * size, InterpolationMode(interpolation), [10, 20, 30])
            same(op.apply(picture, ((name, sign * size),)), theirs)


@pytest.mark.parametrize("mode", ["RGB", "L"])
def test_to_tensor_and_normalize(mode):
    mean, std = [0.485, 0.456, 0.406][: len(mode)], [0.229, 0.224, 0.225][: len(mode)]
    for picture in pictures(mode):
        tensor = F.to_tensor(picture)
        same(ops.ToTensor().apply(picture), tensor)
        same(ops.PILToTensor().apply(picture), F.pil_to_tensor(picture))
        same(ops.Normalize(mean, std).apply(tensor.numpy()), F.normalize(tensor, mean, std))


def test_to_float_as_v1_divides_and_v2_multiplies():
    from torchvision.transforms.v2 import functional as F2  # noqa: N812

    every = torch.arange(256, dtype=torch.uint8).reshape(1, 16, 16)
    same(ops.ToFloat("divide").apply(every.numpy()), F.convert_image_dtype(every, torch.float32))
    same(ops.ToFloat("multiply").apply(every.numpy()), F2.to_dtype(every, torch.float32, scale=True))


def test_random_erasing():
    for value in (0.0, 0.5, (0.1, 0.2, 0.3)):
        op = ops.RandomErasing(1.0, value=value)
        for picture in pictures()[3:]:
            tensor = ops.ToTensor().apply(picture)
            for top, left, height, width, _ in [p for p in drawn(op, tensor) if p is not None]:
                v = torch.tensor([value] if isinstance(value, float) else value)[:, None, None]
                theirs = F.erase(torch.from_numpy(tensor), top, left, height, width, v)
                same(op.apply(tensor, (top, left, height, width, None)), theirs)


def test_random_erasing_with_noise():
    op = ops.RandomErasing(1.0, value="random")
    tensor = ops.ToTensor().apply(scene(64, 48))
    (top, left, height, width, noise), *_ = [p for p in drawn(op, tensor) if p is not None]
    theirs = F.erase(torch.from_numpy(tensor), top, left, height, width, torch.from_numpy(noise))
    same(op.apply(tensor, (top, left, height, width, noise)), theirs)


_OF_OTHER_KINDS = ("sophon.pipeline.ops.audio", "sophon.pipeline.ops.volumes")  # other oracles: tests/pipeline


def test_every_op_with_a_counterpart_is_compared():
    from pathlib import Path

    source = "".join(path.read_text() for path in Path(__file__).parent.glob("test_*_bits*.py"))
    containers = {"RandomApply", "RandomChoice", "RandomOrder", "Views"}  # what they apply is compared above
    elsewhere = {"OnTensor", "GaussianBlur"}  # runs torchvision's own code: test_regions.py; translated above
    boxes = {"RandomIoUCrop", "RandomZoomOut"}  # with what they look at: test_joint_transforms.py
    others = {name for name in ops.__all__ if getattr(ops, name).__module__.startswith(_OF_OTHER_KINDS)}
    left_out = {name for name in ops.__all__ if f"ops.{name}(" not in source} - containers - elsewhere - boxes - others
    assert not left_out


def test_angles_are_in_degrees_as_everywhere():
    assert math.isclose(ops.affine.AffineMap(angle=90).inverse((0, 0))[1], 1.0)
