"""Every kind of damage in the entropy-coded data, one by one, is refused under its name."""

import re

import pytest

from sophon.codec.window import NotWindowable, available, build_index, cut
from tests.codec.window.jpeg_writer import EOB, ZRL, Code, Gray
from tests.codec.window.support import check

pytestmark = pytest.mark.skipif(not available(), reason="the extension was not built")

BAD_SYMBOL = 0x50  # a run of 5 zeros and no coefficient: libjpeg takes it for an end of block
GRAY = Gray(
    Code(dict.fromkeys(range(13), 4)),
    Code({ZRL: 1, EOB: 3, 0x01: 4, 0x11: 4, 0xF1: 5, 0x0A: 5, BAD_SYMBOL: 12, 0x02: 16}),
)
PLAIN = GRAY.block(3, 0x01, EOB)
FULL = GRAY.block(-9, *[0x01] * 63)
RST = [bytes((0xFF, 0xD0 + i)) for i in range(8)]


def refused(data: bytes, reason: str) -> None:
    with pytest.raises(NotWindowable, match=re.escape(reason)):
        cut(data, (0, 0, 16, 1))
    with pytest.raises(NotWindowable, match=re.escape(reason)):
        build_index(data)


def test_without_damage_there_is_a_window():
    check(GRAY.write(16, 8, PLAIN + FULL))
    check(GRAY.write(16, 8, GRAY.block(2, ZRL, ZRL, ZRL, 0x01, EOB) + GRAY.block(0, ZRL, 0x02, 0x11, 0x0A, EOB)))
    check(GRAY.write(16, 16, PLAIN, RST[0], FULL, RST[1], PLAIN, RST[2], FULL, restart=1))
    check(GRAY.write(80, 16, *[part for i in range(10) for part in (RST[i - 1 & 7], PLAIN + FULL)][1:], restart=2))


@pytest.mark.parametrize(
    "symbols",
    [(ZRL, ZRL, ZRL, 0xF1), (ZRL, ZRL, ZRL, ZRL), (ZRL,) * 11, (*[0x01] * 62, 0x11), (*[0x01] * 50, ZRL)],
    ids=["a run beyond the end", "4 runs of zeros", "11 runs of zeros", "one too far", "zeros too far"],
)
def test_a_block_that_is_too_long(symbols):
    refused(GRAY.write(16, 8, PLAIN + GRAY.block(1, *symbols, EOB)), "more than 64 coefficients")


def test_a_symbol_without_meaning():
    refused(GRAY.write(16, 8, PLAIN + GRAY.block(1, BAD_SYMBOL)), "a Huffman code or symbol that has no meaning")


def test_a_code_that_is_in_no_table():
    refused(GRAY.write(16, 8, PLAIN + GRAY.dc.codes[0] + "1" * 16), "a Huffman code or symbol that has no meaning")
    refused(GRAY.write(16, 8, PLAIN + "1" * 16), "a Huffman code or symbol that has no meaning")


def test_a_dc_value_out_of_range():
    refused(GRAY.write(16, 8, GRAY.block(2000, EOB) + GRAY.block(48, EOB)), "a DC value out of the range")
    refused(GRAY.write(16, 8, GRAY.block(-2000, EOB) + GRAY.block(-48, EOB)), "a DC value out of the range")
    refused(GRAY.write(16, 8, GRAY.dc.codes[12] + "1" * 12 + GRAY.ac.codes[EOB] + PLAIN), "a DC value out of the range")
    check(GRAY.write(16, 8, GRAY.block(2000, EOB) + GRAY.block(47, EOB)))


def test_a_dc_table_without_room_for_what_a_window_needs():
    gray = Gray(Code({0: 15, 8: 16, 9: 16}), GRAY.ac)
    data = gray.write(16, 16, gray.block(300, EOB) + gray.block(300, EOB) + gray.block(0, EOB) + gray.block(0, EOB))
    cut(data, (0, 0, 8, 8))
    with pytest.raises(NotWindowable, match="a DC difference that the Huffman table cannot hold"):
        cut(data, (8, 0, 16, 8))  # begins with a difference of 600, which is of category 10


def test_data_that_end_too_early():
    refused(GRAY.write(16, 8, PLAIN + FULL[:-9]), "entropy-coded data that end too early")
    # What is found in place of the missing bits depends on the padding and on what comes next.
    refused(GRAY.write(16, 8, PLAIN), "no window")
    refused(GRAY.write(16, 8, FULL[:-9], RST[0], PLAIN, restart=1), "no window")


def test_data_without_an_end():
    data = GRAY.write(16, 8, PLAIN + FULL)
    for damaged in (data[:-2], data[:-1], data[:-2] + b"\xff\xda", data[:-2] + b"\xff\xff\xd9"):
        refused(damaged, "without an EOI marker")


@pytest.mark.parametrize(
    "parts",
    [
        (PLAIN + FULL,),
        (PLAIN, RST[0], FULL, RST[1]),
        (PLAIN, RST[1], FULL),
        (PLAIN, RST[0], RST[1], FULL),
        (PLAIN, b"\0", RST[0], FULL),
    ],
    ids=["missing", "surplus", "out of order", "empty interval", "bytes before it"],
)
def test_restart_markers_that_are_wrong(parts):
    refused(GRAY.write(16, 8, *parts, restart=1), "restart markers")


def test_a_restart_marker_where_there_is_no_interval():
    refused(GRAY.write(16, 8, PLAIN, RST[0], FULL), "restart markers")
