import io
import math
from collections import Counter
from functools import cache
from random import Random

import numpy as np
import pytest
from PIL import Image, JpegImagePlugin

from sophon.bench.pictures.canvas import Canvas, Material
from sophon.bench.pictures.photos import KINDS, PhotoSource
from sophon.errors import ConfigError

BOTH = pytest.mark.parametrize("like", ["imagenet", "openimages"])


@cache
def source(like):
    return PhotoSource(like, seed=7)


@cache
def photos(like):
    return [source(like).photo(index) for index in range(240)]


@cache
def images(like):
    return [Image.open(io.BytesIO(photo)) for photo in photos(like)]


@cache
def squares(like, count=60, side=256):
    """Middle squares of the first photos that are large enough, as (luma, blue, red) in floats."""
    found = []
    for image in [image for image in images(like) if min(image.size) >= side and image.mode == "RGB"][:count]:
        left, top = (image.width - side) // 2, (image.height - side) // 2
        middle = image.crop((left, top, left + side, top + side)).convert("YCbCr")
        found.append(np.asarray(middle, np.float64).transpose(2, 0, 1))
    return found


def random_resized_crop(image, rng):
    """The crop of the ImageNet recipe: 8 to 100 % of the area, sides 3:4 to 4:3, to 224×224."""
    while True:
        area = image.width * image.height * rng.uniform(0.08, 1.0)
        ratio = math.exp(rng.uniform(math.log(3 / 4), math.log(4 / 3)))
        width, height = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if width <= image.width and height <= image.height:
            break
    left, top = rng.integers(0, image.width - width + 1), rng.integers(0, image.height - height + 1)
    crop = image.convert("RGB").crop((left, top, left + width, top + height))
    return crop.resize((224, 224), Image.Resampling.BILINEAR)


def size_of(image, **options):
    out = io.BytesIO()
    image.save(out, **options)
    return out.tell()


@pytest.mark.parametrize(
    ("like", "mean", "median", "p90", "over_crop"),
    [("imagenet", 110_000, 107_000, 190_000, 0.22), ("openimages", 326_000, 275_000, 615_000, 0.80)],
)
@pytest.mark.matrix(every=2)
def test_files_are_as_large_as_those_of_the_real_set(like, mean, median, p90, over_crop):
    sizes = np.array([len(photo) for photo in photos(like)])
    assert sizes.mean() == pytest.approx(mean, rel=0.05)
    assert np.median(sizes) == pytest.approx(median, rel=0.06)
    assert np.percentile(sizes, 90) == pytest.approx(p90, rel=0.06)
    assert np.mean(sizes > 224 * 224 * 3) == pytest.approx(over_crop, abs=0.035)


@BOTH
@pytest.mark.matrix(every=2)
def test_a_crop_compresses_like_a_crop_of_a_real_photo(like):
    rng = np.random.default_rng(0)
    crops = [random_resized_crop(image, rng) for image in images(like)[:80]]
    lossless = np.mean([size_of(crop, format="WEBP", lossless=True, method=0) for crop in crops])
    lossy = np.mean([size_of(crop, format="JPEG", quality=95, subsampling="4:2:0") for crop in crops])
    assert lossless == pytest.approx(70_000, rel=0.08)
    assert lossy == pytest.approx(23_000, rel=0.10)


def test_imagenet_photos_are_mostly_500_by_375_and_openimages_photos_1024_by_768():
    for like, usual, side in [("imagenet", {500, 375}, 500), ("openimages", {1024, 768}, 1024)]:
        sizes = [image.size for image in images(like)]
        ((most_common, _),) = Counter(sizes).most_common(1)
        assert set(most_common) == usual
        assert np.mean([max(size) == side for size in sizes]) > 0.7
        assert np.mean([bool(width % 16 or height % 16) for width, height in sizes]) > 0.3, "odd sizes too"
        upright = np.mean([height > width for width, height in sizes])
        assert upright == pytest.approx(KINDS[like].portrait_share, abs=0.07)


def test_a_few_imagenet_photos_are_gray():
    gray = np.mean([image.mode == "L" for image in images("imagenet")])
    assert 0.005 < gray < 0.07
    assert {image.mode for image in images("openimages")} == {"RGB"}


@pytest.mark.parametrize(("like", "shares"), [("imagenet", (0.74, 0.01, 0.23)), ("openimages", (0.28, 0.29, 0.43))])
def test_chroma_is_sampled_as_in_the_real_set(like, shares):
    found = Counter(JpegImagePlugin.get_sampling(image) for image in images(like) if image.mode == "RGB")
    for code, share in enumerate(shares):
        assert found[code] / len(images(like)) == pytest.approx(share, abs=0.08)


@BOTH
def test_every_file_is_a_baseline_jpeg(like):
    for photo, image in zip(photos(like), images(like), strict=True):
        assert image.format == "JPEG"
        assert not image.info.get("progressive")
        assert b"\xff\xc0" in photo[:700]


@BOTH
def test_the_power_spectrum_falls_as_in_nature(like):
    window = np.hanning(256)
    power = 0.0
    for luma, _, _ in squares(like):
        centered = (luma - luma.mean()) * window[:, None] * window
        power = power + np.log(np.abs(np.fft.fftshift(np.fft.fft2(centered))) ** 2)
    radius = np.hypot(*(np.indices((256, 256)) - 128)).astype(int)
    rings = np.bincount(radius.ravel(), np.ravel(power)) / np.bincount(radius.ravel()) / len(squares(like))
    slope, _ = np.polyfit(np.log(np.arange(3, 64)), rings[3:64], 1)
    assert -2.9 < slope < -2.1


@BOTH
def test_chroma_is_smoother_than_luma(like):
    def roughness(plane):
        return np.abs(np.diff(plane)).mean()

    luma, blue, red = np.mean([[roughness(plane) for plane in square] for square in squares(like)], axis=0)
    assert blue < luma / 3
    assert red < luma / 3
    luma, blue, red = np.mean([[plane.std() for plane in square] for square in squares(like)], axis=0)
    assert 40 < luma < 65
    assert 6 < blue < 16
    assert 6 < red < 16


@BOTH
def test_photos_have_smooth_and_busy_places(like):
    spreads = []
    for luma, _, _ in squares(like):
        blocks = np.abs(np.diff(luma, axis=0))[:248].reshape(31, 8, 32, 8).mean((1, 3))
        low, high = np.percentile(blocks, [5, 95])
        spreads.append(high / (low + 0.1))
    assert np.median(spreads) > 4


def test_a_hundred_regions_of_one_brightness_get_numbers_of_their_own_that_are_close():
    canvas = Canvas(Random(0), source("imagenet")._bank, (80, 60))
    gray = Material(luma=(120, 135), blue=128, red=128, tint=0, detail=(0, 0))
    numbers = [canvas._region(gray) for _ in range(100)]
    assert len(set(numbers)) == 100
    assert min(numbers) > 128 - 100
    assert max(numbers) < 128 + 100


@BOTH
@pytest.mark.matrix(every=2)
def test_a_photo_depends_on_kind_seed_and_index_only(like):
    again = PhotoSource(like, seed=7)  # made anew, asked in another order
    for index in (5, 0, 239):
        assert again.photo(index) == photos(like)[index]


def test_another_seed_or_kind_or_index_gives_another_photo():
    files = {
        PhotoSource("imagenet", seed=8).photo(0),
        photos("imagenet")[0],
        photos("imagenet")[1],
        photos("openimages")[0],
    }
    assert len(files) == 4
    assert len(set(photos("openimages"))) == len(photos("openimages"))


def test_an_unknown_kind_is_refused_with_the_kinds_there_are():
    with pytest.raises(ConfigError, match=r"'cifar'; choose from imagenet, openimages"):
        PhotoSource("cifar")
