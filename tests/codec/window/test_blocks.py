"""The arithmetic of MCUs and blocks."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sophon.codec.window import needed, parse
from sophon.errors import ConfigError
from tests.codec.window.jpeg_writer import Picture
from tests.codec.window.support import SAMPLINGS

HALVED = parse(Picture(100, 80).write())
HEADERS = {name: parse(Picture(100, 80, sampling).write()) for name, sampling in SAMPLINGS.items()}


@pytest.mark.parametrize(
    ("box", "mcus"),
    [
        ((0, 0, 1, 1), (0, 0, 1, 1)),
        ((0, 0, 15, 15), (0, 0, 1, 1)),
        ((0, 0, 16, 16), (0, 0, 2, 2)),  # pixel 15 takes the first chroma sample of the next MCU
        ((17, 17, 31, 31), (1, 1, 2, 2)),
        ((16, 16, 31, 31), (0, 0, 2, 2)),  # pixel 16 takes the last chroma sample of the MCU before
        ((97, 60, 100, 80), (5, 3, 7, 5)),  # the last MCU alone would be too narrow for libjpeg to interpolate
        ((0, 0, 100, 80), (0, 0, 7, 5)),
    ],
)
def test_half_chroma_takes_one_sample_more_on_either_side(box, mcus):
    assert needed(HALVED, box).mcus == mcus


def test_full_chroma_takes_nothing_more():
    assert needed(HEADERS["4:4:4"], (8, 16, 16, 24)).mcus == (1, 2, 2, 3)


def test_blocks_outside_of_the_box_are_not_kept():
    region = needed(HALVED, (16, 40, 31, 47))
    assert region.mcus == (0, 2, 2, 3)
    assert region.kept == ((2, 5, 4, 6), (0, 2, 2, 3), (0, 2, 2, 3))


@given(st.sampled_from(sorted(HEADERS)), st.data())
def test_a_region_holds_its_box_and_no_more_than_two_mcus_around(name, data):
    header = HEADERS[name]
    left, top = data.draw(st.integers(0, 99)), data.draw(st.integers(0, 79))
    right, bottom = data.draw(st.integers(left + 1, 100)), data.draw(st.integers(top + 1, 80))
    region = needed(header, (left, top, right, bottom))
    x0, y0, x1, y1 = region.pixels
    assert 0 <= x0 <= left < right <= x1 <= header.width
    assert 0 <= y0 <= top < bottom <= y1 <= header.height
    assert left - x0 <= 2 * header.mcu_width
    assert x1 - right <= header.mcu_width
    assert top - y0 <= header.mcu_height
    assert y1 - bottom <= header.mcu_height
    assert x0 % header.mcu_width == y0 % header.mcu_height == 0
    assert x1 == header.width or x1 % header.mcu_width == 0
    assert y1 == header.height or y1 % header.mcu_height == 0


@pytest.mark.parametrize(
    "box", [(0, 0, 0, 1), (0, 0, 1, 0), (-1, 0, 1, 1), (0, -1, 1, 1), (0, 0, 101, 1), (0, 0, 1, 81), (5, 5, 5, 5)]
)
def test_boxes_outside_of_the_picture_are_wrong_arguments(box):
    with pytest.raises(ConfigError, match="not inside the picture of 100 × 80"):
        needed(HALVED, box)
