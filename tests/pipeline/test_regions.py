"""Regions pass through a resize and through steps on torch tensors: the crop has the bits of the whole picture's."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from sophon.codec import Cut, finish_payload, make_payload
from sophon.errors import ConfigError, OpError
from sophon.pipeline import Call, Key, Part, Pipeline, Rng, needed_box, op_from_spec, ops, spec_of
from sophon.pipeline.call import Form
from sophon.pipeline.part import Canvas, holds
from tests.support.pictures import encode, scene
from tests.support.torchvision_import import import_torchvision

import_torchvision()
import torch  # noqa: E402
from torchvision import transforms as T  # noqa: E402, N812
from torchvision import tv_tensors  # noqa: E402
from torchvision.transforms import v2  # noqa: E402

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
WINDOW = Cut(0, "window")
F32 = torch.float32
_side = st.integers(1, 70)


def _part(picture: Image.Image, box: tuple[int, int, int, int]) -> Part:
    top, left, height, width = box
    piece = picture.crop((left, top, left + width, top + height))
    return Part(piece, top, left, picture.height, picture.width)


# --- a resize before the crop, on pictures ----------------------------------------------------------------------------


@given(
    st.tuples(_side, _side),
    st.one_of(_side, st.tuples(_side, _side)),
    st.sampled_from(["nearest", "bilinear", "bicubic", "box", "hamming", "lanczos"]),
    st.data(),
)
@settings(max_examples=300, deadline=None)
def test_a_box_of_a_resized_picture_is_made_of_the_box_that_resize_names(size, to, interpolation, data):
    picture, op = scene(*size, seed=3), ops.Resize(to, interpolation)
    whole, spec = op.apply(picture), spec_of(picture)
    top = data.draw(st.integers(0, whole.height - 1))
    left = data.draw(st.integers(0, whole.width - 1))
    height = data.draw(st.integers(1, whole.height - top))
    width = data.draw(st.integers(1, whole.width - left))
    box = (top, left, height, width)
    before = op.box_before(box, spec, None)
    made = op.apply(_part(picture, before))  # black everywhere else
    assert isinstance(made, Part)
    assert made.holds(box)
    expected = whole.crop((made.left, made.top, made.left + made.picture.width, made.top + made.picture.height))
    assert made.picture.tobytes() == expected.tobytes()


def test_what_a_resize_cannot_make_of_a_part_is_an_error_and_not_a_black_pixel():
    picture = scene(60, 40)
    made = ops.Resize((20, 30)).apply(_part(picture, (0, 0, 40, 31)))
    with pytest.raises(OpError, match="not in the part that was decoded"):
        ops.CenterCrop((20, 30)).apply(made)


# --- recipes that make a tensor first ---------------------------------------------------------------------------------

_CONVERSIONS = [T.PILToTensor(), T.ToTensor(), v2.PILToTensor(), v2.ToImage()]
_CROPS = [
    ("RandomResizedCrop", {"size": (24, 17)}),
    ("RandomResizedCrop", {"size": 30, "interpolation": T.InterpolationMode.BICUBIC}),
    ("RandomResizedCrop", {"size": 24, "antialias": False}),
    ("RandomCrop", {"size": (20, 24)}),
    ("CenterCrop", {"size": 21}),
]
_RESIZES = [
    None,
    {"size": 33},
    {"size": (40, 31), "interpolation": T.InterpolationMode.BICUBIC},
    {"size": (90, 100), "antialias": False},
    {"size": 30, "max_size": 40, "interpolation": T.InterpolationMode.NEAREST},
]


def _recipe(conversion, resize, crop, *, flips):
    lib = v2 if type(conversion).__module__.startswith("torchvision.transforms.v2") else T
    steps = [conversion]
    if flips:
        steps += [lib.RandomHorizontalFlip(), lib.RandomVerticalFlip()]
    if resize is not None:
        steps.append(lib.Resize(**resize))
    name, arguments = crop
    return lib.Compose([*steps, getattr(lib, name)(**arguments)])


def _oracle(pipeline, recipe, picture, key):
    """Run torchvision's own objects, one by one, with the parameters that the pipeline draws."""
    value = picture
    for position, transform in enumerate(recipe.transforms, start=1):
        op = pipeline.ops[position]
        drawn = op.draw(Rng(key, position), spec_of(value)) if op.random else None
        name = type(transform).__name__
        f = v2.functional if isinstance(transform, v2.Transform) else T.functional  # not the same bits on uint8
        if name == "RandomResizedCrop":
            antialias = {"antialias": transform.antialias}
            value = f.resized_crop(value, *drawn, transform.size, transform.interpolation, **antialias)
        elif name == "RandomCrop":
            value = f.crop(value, *drawn, *transform.size)
        elif name == "RandomHorizontalFlip":
            value = f.hflip(value) if drawn else value
        elif name == "RandomVerticalFlip":
            value = f.vflip(value) if drawn else value
        else:
            value = transform(value)
    return value


@pytest.mark.parametrize("flips", [False, True], ids=["", "flips"])
@pytest.mark.parametrize(
    "conversion", _CONVERSIONS, ids=lambda t: f"{type(t).__module__.split('.')[2]}-{type(t).__name__}"
)
@pytest.mark.matrix(every=4)
def test_tensor_first_recipes_have_torchvisions_bits_whole_and_from_a_window(conversion, flips):
    data = encode(scene(131, 97, seed=5), "jpeg 4:2:0")
    picture = ops.Decode().apply(data)
    for resize, crop in itertools.product(_RESIZES, _CROPS):
        recipe = _recipe(conversion, resize, crop, flips=flips)
        pipeline = Pipeline.from_torchvision(recipe)
        assert not any(isinstance(op, Call) for op in pipeline.ops)
        node = Pipeline.from_json(pipeline.prefix(pipeline.reach).to_json())
        for epoch in range(3):
            key = Key(1, epoch, 7)
            expected = _oracle(pipeline, recipe, picture, key)
            whole = pipeline.run(data, key)
            assert type(whole) is type(expected)
            assert (whole.dtype, whole.stride()) == (expected.dtype, expected.stride())
            assert torch.equal(whole, expected), (resize, crop)
            assert needed_box(node, key, picture.height, picture.width) == needed_box(
                pipeline, key, picture.height, picture.width
            )
            try:
                payload = make_payload(node, data, key, WINDOW)
            except OpError:  # a crop that needs all of it
                continue
            from_window = finish_payload(pipeline, payload, key, WINDOW)
            assert from_window.stride() == expected.stride()
            assert torch.equal(from_window, expected), (resize, crop)


def test_the_steps_after_the_crop_get_torchvisions_own_tensor():
    met = []

    def look(value):
        met.append((type(value), value.dtype, value.stride()))
        return value

    data = encode(scene(80, 60), "jpeg 4:2:0")
    picture = ops.Decode().apply(data)
    for recipe in (
        v2.Compose([v2.ToImage(), v2.CenterCrop(32), look]),
        v2.Compose([v2.CenterCrop(32), v2.ToImage(), look]),
        v2.Compose([v2.CenterCrop(32), v2.ToImage(), v2.ToDtype(F32, scale=True), v2.Normalize(MEAN, STD), look]),
        v2.Compose([v2.CenterCrop(32), v2.ToImage(), v2.ToDtype(F32, scale=True), v2.ToPureTensor(), look]),
        T.Compose([T.CenterCrop(32), T.PILToTensor(), T.ConvertImageDtype(F32), look]),
        T.Compose([T.CenterCrop(32), T.ToTensor(), T.Normalize(MEAN, STD), look]),
        T.Compose([T.PILToTensor(), look]),
        T.Compose([T.ToTensor(), T.CenterCrop(32), look]),
    ):
        met.clear()
        expected = recipe(picture)
        given_value = Pipeline.from_torchvision(recipe).run(data, Key(0, 0, 0))
        assert met[0] == met[1], recipe
        assert type(given_value) is type(expected)
        assert torch.equal(given_value, expected)


def test_a_tensor_of_the_right_form_is_made_of_an_array():
    array = np.arange(24, dtype=np.uint8).reshape(3, 2, 4)
    array.setflags(write=False)
    plain = Form().tensor(array, torch)
    assert plain.stride() == (8, 4, 1)
    plain += 1  # it is the callable's own
    turned = Form(is_image=True, channels_last=True).tensor(array, torch)
    assert isinstance(turned, tv_tensors.Image)
    assert turned.stride() == (1, 12, 3)
    assert np.array_equal(turned.numpy(), array)


@pytest.mark.parametrize(
    "between",
    [v2.Lambda(lambda x: x), v2.ColorJitter(0.4), v2.Resize(50, interpolation=T.InterpolationMode.LANCZOS), v2.Pad(3)],
    ids=lambda t: type(t).__name__,
)
def test_a_step_of_which_nothing_is_proven_stops_a_region(between):
    pipeline = Pipeline.from_torchvision(v2.Compose([v2.ToImage(), between, v2.RandomCrop(20)]))
    assert pipeline.reach == pipeline.max_cut == 1
    assert isinstance(pipeline.ops[1], Call)


def test_a_storage_node_knows_the_geometry_and_cannot_run_the_step():
    pipeline = Pipeline.from_torchvision(v2.Compose([v2.ToImage(), v2.CenterCrop(20), v2.ToDtype(F32, scale=True)]))
    node = Pipeline.from_spec(pipeline.prefix(pipeline.reach).to_spec())
    assert node.max_cut == 1
    assert node.reach == 3
    with pytest.raises(OpError, match="torchvision's ToImage runs on the trainer only"):
        node.run(encode(scene(40, 30), "png"), Key(0, 0, 0))


@pytest.mark.parametrize(
    "spec",
    [
        {"geometry": {"op": "Decode", "version": 1}},
        {"geometry": {"op": "ColorJitter", "version": 1}},
        {"geometry": 3},
        {"dtype": "float64"},
        {"name_of": "x" * 1000},
        {"name_of": 3},
        {"transform": "os.system"},
    ],
    ids=str,
)
def test_a_spec_that_is_no_geometry_is_refused(spec):
    with pytest.raises(ConfigError):
        op_from_spec({"op": "OnTensor", "version": 1, **spec})


def test_a_canvas_gives_nothing_that_was_not_decoded():
    picture = scene(40, 30)
    canvas = _part(picture, (5, 5, 10, 10)).canvas()
    assert canvas == Canvas(canvas.value, (5, 5, 10, 10))
    assert holds((5, 5, 10, 10), (6, 6, 9, 9))
    crop = ops.OnTensor(ops.CenterCrop(20), transform=v2.CenterCrop(20))
    with pytest.raises(OpError, match="not in the part that was decoded"):
        crop.apply(canvas, None)
