"""The promise of the codec: a window decodes to the same bits as the whole file, for every pixel of the box."""

import random
import shutil
import subprocess

import numpy as np
import pytest

from sophon.codec.window import NotWindowable, available, build_index, cut, parse
from tests.codec.window.jpeg_writer import JFIF, Picture, adobe
from tests.codec.window.support import (
    SAMPLINGS,
    assert_same,
    boxes,
    check,
    pixels,
    saved,
    scene,
    shared_data,
)
from tests.support.marks import slow
from tests.support.waiting import HANG_S

pytestmark = pytest.mark.skipif(not available(), reason="the extension was not built")

SIZES = [(1, 1), (2, 3), (5, 4), (8, 8), (9, 17), (16, 16), (17, 16), (33, 31), (49, 50), (63, 65), (65, 64), (65, 1)]


@pytest.mark.parametrize("sampling", SAMPLINGS.values(), ids=SAMPLINGS)
@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
@pytest.mark.matrix(every=4)
def test_every_sampling_at_odd_sizes(sampling, size):
    check(Picture(*size, sampling).write(), seed=1)


@pytest.mark.parametrize("side", range(1, 66))
def test_every_side_from_1_to_65_at_half_chroma(side):
    check(Picture(side, 66 - side, seed=side).write(), seed=side, count=3)
    check(Picture(20, side, ((2, 1), (1, 1), (1, 1)), seed=side).write(), seed=side, count=3)


@pytest.mark.parametrize("sampling", SAMPLINGS.values(), ids=SAMPLINGS)
@pytest.mark.matrix(every=4)
def test_every_column_and_every_row_alone(sampling):
    picture = Picture(67, 69, sampling, seed=2)
    data = picture.write()
    whole, index = pixels(data), build_index(data)
    for x in range(picture.width):
        assert_same(data, whole, (x, 30, x + 1, 31), index)
    for y in range(picture.height):
        assert_same(data, whole, (30, y, 31, y + 1), index)


@pytest.mark.parametrize("sampling", SAMPLINGS.values(), ids=SAMPLINGS)
@pytest.mark.parametrize("restart", [1, 2, 3, 7, 40])
@pytest.mark.matrix(every=4)
def test_restart_intervals(sampling, restart):
    check(Picture(70, 45, sampling, seed=restart, restart=restart).write(), seed=restart)


@pytest.mark.parametrize(
    "application",
    [(), ((0xE0, JFIF),), ((0xEE, adobe(0)),), ((0xEE, adobe(1)),), ((0xE0, JFIF), (0xEE, adobe(0)))],
    ids=["nothing", "JFIF", "Adobe RGB", "Adobe YCbCr", "JFIF and Adobe RGB"],
)
@pytest.mark.parametrize("identifiers", [(1, 2, 3), (82, 71, 66), (0, 1, 2), (7, 8, 9)])
def test_what_decides_the_colours_of_three_components(application, identifiers):
    check(Picture(40, 40, SAMPLINGS["4:4:4"], application=application, identifiers=identifiers).write())


@pytest.mark.parametrize("application", [(), ((0xEE, adobe(0)),), ((0xEE, adobe(2)),)], ids=["nothing", "CMYK", "YCCK"])
def test_what_decides_the_colours_of_four_components(application):
    check(Picture(40, 40, SAMPLINGS["CMYK 4:2:0"], application=application).write())


def test_sixteen_bit_quantisation_tables():
    check(Picture(50, 50, sof=0xC1, sixteen_bit=True).write())


def test_blocks_without_an_end_code():
    check(Picture(50, 50, busy=True).write())
    check(Picture(50, 50, end_of_block=False).write())


@pytest.mark.parametrize("dc_range", [0, 1, 20, 500, 1000])
def test_dc_tables_that_lack_categories(dc_range):
    check(Picture(60, 60, dc_range=dc_range, all_dc_categories=False, seed=dc_range).write())


def test_bytes_after_the_end_of_the_picture():
    data = Picture(50, 50).write()
    check(data + b"\x01\xff\xd8 and more")
    check(data + Picture(30, 30).write())


def test_padding_before_the_end_marker():
    check(Picture(50, 50).write()[:-2] + bytes(7) + b"\xff\xd9")


def test_scan_parameters_of_which_libjpeg_only_warns():
    data = Picture(50, 50).write()
    at = data.index(b"\xff\xda") + 4 + 7
    assert data[at : at + 3] == bytes((0, 63, 0))
    check(data[:at] + bytes(3) + data[at + 3 :])


def test_fill_bytes_before_markers_of_the_header():
    data = Picture(50, 50).write()
    at = data.index(b"\xff\xc0")
    check(data[:at] + b"\xff\xff" + data[at:])


@pytest.mark.parametrize("mode", ["RGB", "L", "CMYK"])
@pytest.mark.parametrize(
    "options",
    [
        {"quality": 95, "subsampling": "4:4:4"},
        {"quality": 75, "subsampling": "4:2:2"},
        {"quality": 85, "subsampling": "4:2:0", "optimize": True},
        {"quality": 30, "subsampling": "4:2:0", "restart_marker_blocks": 5},
        {"quality": 100, "subsampling": "4:2:0", "restart_marker_rows": 1, "optimize": True},
    ],
    ids=str,
)
def test_files_of_pillow(mode, options):
    if mode != "RGB":
        options = {name: value for name, value in options.items() if name != "subsampling"}
    check(saved(scene(213, 147, mode), **options), count=16)


@pytest.mark.parametrize("sample", ["1x1", "2x1", "1x2", "2x2", "4x1", "1x4", "4x2", "2x2,2x1,1x1", "1x1,2x1,1x2"])
def test_files_of_cjpeg(sample, tmp_path):
    if shutil.which("cjpeg") is None:
        pytest.skip("cjpeg is not installed")
    source = tmp_path / "scene.ppm"
    scene(213, 147).save(source)
    for options in (["-optimize"], ["-restart", "3B"], ["-quality", "100"]):
        done = subprocess.run(
            ["cjpeg", "-sample", sample, *options, str(source)], capture_output=True, check=True, timeout=HANG_S
        )
        check(done.stdout, count=12)


@pytest.mark.parametrize("sampling", ["4:4:4", "4:2:2", "4:2:0"])
def test_jpegtran_crops_to_the_same_pixels(sampling):
    if shutil.which("jpegtran") is None:
        pytest.skip("jpegtran is not installed")
    data = saved(scene(213, 147), quality=90, subsampling=sampling)
    for box in boxes(213, 147, random.Random(3), 10):
        window = cut(data, box)
        area = f"{window.width}x{window.height}+{window.left}+{window.top}"
        done = subprocess.run(
            ["jpegtran", "-crop", area, "-copy", "none"], input=data, capture_output=True, check=True, timeout=HANG_S
        )
        left, top = box[0] - window.left, box[1] - window.top
        inside = np.s_[top : top + box[3] - box[1], left : left + box[2] - box[0]]
        np.testing.assert_array_equal(pixels(done.stdout)[inside], pixels(window.jpeg)[inside])


@pytest.mark.parametrize(("step", "count"), [(5, 4), *slow((1, 20))])
@pytest.mark.parametrize("folder", ["imagenet", "openimages"])
@pytest.mark.matrix(every=2)
def test_real_photos_with_boxes_of_all_kinds(folder, step, count):
    files = shared_data(folder)[::step]
    if not files:
        pytest.skip(f"no folder shared/data/{folder} beside the checkout")
    for i, path in enumerate(files):
        data = path.read_bytes()
        whole, index = pixels(data), build_index(data)
        for box in boxes(whole.shape[1], whole.shape[0], random.Random(i), count):
            assert_same(data, whole, box, index)


@pytest.mark.parametrize("step", [3, *slow(1)])
def test_odd_files_are_refused_or_right(step):
    files = shared_data("odd-jpegs")[::step]
    if not files:
        pytest.skip("no folder shared/data/odd-jpegs beside the checkout")
    cuts = 0
    for i, path in enumerate(files):
        data = path.read_bytes()
        try:
            progressive = parse(data).scans
            if not progressive:
                build_index(data)
        except NotWindowable:
            with pytest.raises(NotWindowable):
                cut(data, (0, 0, 1, 1))
            continue
        # Decodes the whole, which must not fail.
        check(data, seed=i, count=11)
        cuts += 1
    assert cuts > len(files) // 2
