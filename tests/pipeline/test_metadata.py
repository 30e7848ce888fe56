"""What a file says beside its pixels is there for somebody's own code to look at, or the file itself is sent."""

import io

import pytest
from PIL import Image, ImageCms, ImageOps

from sophon.codec import RAW, finish_payload, legal_cuts, make_payload
from sophon.errors import OpError
from sophon.pipeline import Call, Key, Pipeline, ops
from tests.support.pictures import encode, scene
from tests.support.torchvision_import import import_torchvision

import_torchvision()
from torchvision import transforms as T  # noqa: E402, N812
from torchvision.transforms import v2 as V2  # noqa: E402, N812

TURNED = encode(scene(60, 40), "jpeg rotated")
UPRIGHT = encode(scene(60, 40), "jpeg 4:2:0")
KEY = Key(0, 0, 0)


def _with_profile() -> bytes:
    out = io.BytesIO()
    profile = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    scene(60, 40).save(out, "JPEG", icc_profile=profile)
    return out.getvalue()


def _with_xmp() -> bytes:
    out = io.BytesIO()
    scene(60, 40).save(out, "JPEG", xmp=b'<x:xmpmeta><rdf:Description tiff:Orientation="6"/></x:xmpmeta>')
    return out.getvalue()


def _with_transparency() -> bytes:
    out = io.BytesIO()
    scene(60, 40).quantize(16).save(out, "PNG", transparency=3)
    return out.getvalue()


def _of_folder(data: bytes) -> Image.Image:
    """Return what torchvision's ImageFolder loads."""
    return Image.open(io.BytesIO(data)).convert("RGB")


def _outcomes(pipeline: Pipeline, data: bytes) -> tuple[list[bytes], int]:
    """Return the bits of a run at every legal cut, and how many cuts were refused."""
    found, refused = [], 0
    for cut in legal_cuts(pipeline):
        try:
            payload, made = make_payload(pipeline.prefix(pipeline.reach), data, KEY, cut), cut
        except OpError:
            payload, made, refused = data, RAW, refused + 1  # what a storage node answers then
        found.append(finish_payload(pipeline, payload, KEY, made).tobytes())
    return found, refused


@pytest.mark.parametrize(
    "data", [TURNED, UPRIGHT, _with_profile(), _with_xmp()], ids=["turned", "upright", "profile", "xmp"]
)
@pytest.mark.parametrize(
    "before", [[], [T.CenterCrop(30)], [T.Resize(33), T.CenterCrop((20, 30))]], ids=["first", "crop", "resize"]
)
def test_a_callable_that_turns_pictures_upright_gives_the_same_at_every_cut(before, data):
    recipe = T.Compose([*before, T.Lambda(ImageOps.exif_transpose)])
    pipeline = Pipeline.from_torchvision(recipe)
    found, refused = _outcomes(pipeline, data)
    assert set(found) == {recipe(_of_folder(data)).tobytes()}
    assert (refused > 0) == (data is not UPRIGHT)


@pytest.mark.parametrize("before", [T.CenterCrop(30), T.Resize(33), T.Pad(2)], ids=["crop", "resize", "pad"])
def test_a_colour_that_stands_for_transparency_is_there_at_every_cut(before):
    recipe = T.Compose([before, T.Lambda(lambda picture: picture.convert("RGBA"))])
    data = _with_transparency()
    found, _ = _outcomes(Pipeline.from_torchvision(recipe), data)
    assert set(found) == {recipe(_of_folder(data)).tobytes()}


_AFTER_WHICH = [
    *(T.Resize(33), T.CenterCrop(30), T.CenterCrop(70), T.RandomResizedCrop(30), T.RandomCrop(30, padding=2)),
    *(T.Pad(2), T.Pad(0), T.Pad(2, padding_mode="reflect"), T.RandomHorizontalFlip(1.0), T.RandomRotation((90, 90))),
    *(T.ColorJitter(brightness=(0.5, 0.5)), T.ColorJitter(saturation=(0.5, 0.5)), T.ColorJitter(hue=(0.2, 0.2))),
    *(T.Grayscale(1), T.Grayscale(3), T.RandomGrayscale(1.0), T.GaussianBlur(3, (1.0, 1.0)), T.RandomEqualize(1.0)),
    *(T.RandomAdjustSharpness(2.0, 1.0), V2.RandomChannelPermutation(), V2.RandomResize(30, 31)),
]


@pytest.mark.parametrize("step", _AFTER_WHICH, ids=lambda step: str(step)[:60])
@pytest.mark.parametrize("data", [TURNED, _with_transparency()], ids=["turned", "transparency"])
def test_what_torchvision_forgets_or_hands_on_an_op_forgets_or_hands_on(step, data):
    """A picture that has lost its orientation on the way is not turned by a step that comes later."""
    seen = []
    recipe = T.Compose([step, lambda picture: seen.append(picture.info) or picture])
    pipeline = Pipeline.from_torchvision(recipe)
    assert pipeline.max_cut == 2
    pipeline.run(data, KEY)
    recipe(_of_folder(data))
    ours, theirs = seen
    for name in ("exif", "transparency"):
        assert ours.get(name) == theirs.get(name)


def test_a_callable_that_takes_the_orientation_away_has_taken_it_away():
    recipe = T.Compose([ImageOps.exif_transpose, T.Lambda(lambda picture: picture.copy()), ImageOps.exif_transpose])
    found, _ = _outcomes(Pipeline.from_torchvision(recipe), TURNED)
    assert set(found) == {recipe(_of_folder(TURNED)).tobytes()}


def test_a_callable_sees_what_torchvisions_folder_gives_it():
    seen = []
    recipe = T.Compose([T.CenterCrop(30), lambda picture: seen.append((type(picture), picture.info)) or picture])
    for data in (TURNED, UPRIGHT, encode(scene(60, 40), "png gray")):
        seen.clear()
        Pipeline.from_torchvision(recipe).run(data, KEY)
        recipe(_of_folder(data))
        (ours, ours_info), (theirs, theirs_info) = seen
        assert ours is theirs is Image.Image
        assert ours_info.get("exif") == theirs_info.get("exif")


def test_what_only_libraries_look_at_is_sent_without_metadata():
    of_library = Pipeline.from_torchvision(T.Compose([T.CenterCrop(30), T.RandomPerspective(1.0), T.ToTensor()]))
    assert isinstance(of_library.ops[2], Call)
    assert not of_library.ops[0].metadata
    assert _outcomes(Pipeline(of_library.ops[:2]), TURNED)[1] == 0
    with_own = T.RandomApply([T.Lambda(ImageOps.exif_transpose)], p=1.0)
    assert Pipeline.from_torchvision(T.Compose([T.CenterCrop(30), with_own])).ops[0].metadata
    behind_tensor = Pipeline.from_torchvision(T.Compose([T.CenterCrop(30), T.ToTensor(), lambda x: x]))
    assert not behind_tensor.ops[0].metadata


def test_what_is_behind_albumentations_is_sent_without_metadata():
    """It takes an array, so that nobody can look at a picture any more."""
    albumentations = pytest.importorskip("albumentations")
    flip = albumentations.HorizontalFlip(p=1.0)
    recipe = T.Compose([T.CenterCrop(30), albumentations.Compose([flip]), lambda array: array.copy()])
    pipeline = Pipeline.from_torchvision(recipe)
    assert not pipeline.ops[0].metadata
    found, refused = _outcomes(pipeline, TURNED)
    assert (len(set(found)), refused) == (1, 0)
    before = T.Compose([T.CenterCrop(30), T.Lambda(ImageOps.exif_transpose), flip])
    assert Pipeline.from_torchvision(before).ops[0].metadata


def test_a_damaged_orientation_is_left_to_whoever_reads_it():
    out = io.BytesIO()
    scene(60, 40).save(out, "JPEG", exif=b"Exif\x00\x00MM\x00*\x00\x00")
    pipeline = Pipeline([ops.Decode(), ops.CenterCrop(20), lambda picture: picture])
    found, _ = _outcomes(pipeline, out.getvalue())
    assert len(set(found)) == 1
