"""Windows of progressive files: coefficients of all scans, written as one baseline scan.

Pillow is the oracle of pixels. Files with scans of all kinds come from `jpegtran -scans` (Debian: libjpeg-turbo-progs),
and a few are written by hand.
"""

import io
import random
import re
import shutil
import struct
import subprocess
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from sophon.codec.window import NotWindowable, available, build_index, cut, parse, scans
from sophon.codec.window import jpeg as window_jpeg
from sophon.errors import ConfigError
from tests.codec.window.jpeg_writer import JFIF, segment
from tests.codec.window.support import (
    SAMPLINGS,
    boxes,
    check,
    pixels,
    progressive_files,
    saved,
    scene,
    shared_data,
)

pytestmark = pytest.mark.skipif(not available(), reason="the extension was not built")
needs_jpegtran = pytest.mark.skipif(
    shutil.which("jpegtran") is None, reason="no jpegtran; install libjpeg-turbo-progs to run this"
)

SCRIPTS = {
    "spectral selection alone": "0 1 2: 0-0, 0, 0; 0: 1-5, 0, 0; 0: 6-63, 0, 0; 1: 1-63, 0, 0; 2: 1-63, 0, 0;",
    "every component alone": "0: 0-0, 0, 0; 1: 0-0, 0, 0; 2: 0-0, 0, 0; 0: 1-63, 0, 0; 1: 1-63, 0, 0; 2: 1-63, 0, 0;",
    "two components together": "1 2: 0-0, 0, 1; 0: 0-0, 0, 0; 0: 1-63, 0, 0; 1: 1-63, 0, 0; 2: 1-63, 0, 0; "
    "1: 0-0, 1, 0; 2: 0-0, 1, 0;",
    "four steps of precision": "0 1 2: 0-0, 0, 3; 0 1 2: 0-0, 3, 2; 0 1: 0-0, 2, 1; 2: 0-0, 2, 1; 0 1 2: 0-0, 1, 0; "
    + "".join(f"{i}: 1-63, 0, 3; {i}: 1-63, 3, 2; {i}: 1-63, 2, 1; {i}: 1-63, 1, 0; " for i in range(3)),
    "bands that are joined for refinement": "0 1 2: 0-0, 0, 0; 0: 1-1, 0, 2; 0: 2-40, 0, 2; 0: 41-63, 0, 2; "
    "0: 1-63, 2, 1; 0: 1-9, 1, 0; 0: 10-63, 1, 0; 1: 1-63, 0, 0; 2: 1-62, 0, 1; 2: 63-63, 0, 1; 2: 1-63, 1, 0;",
}
INCOMPLETE = {
    "no AC": "0 1 2: 0-0, 0, 0;",
    "DC without its last bit": "0 1 2: 0-0, 0, 1; 0: 1-63, 0, 0; 1: 1-63, 0, 0; 2: 1-63, 0, 0;",
    "a band without its last bit": "0 1 2: 0-0, 0, 0; 0: 1-5, 0, 1; 0: 6-63, 0, 0; 1: 1-63, 0, 0; 2: 1-63, 0, 0;",
    "high frequencies missing": "0 1 2: 0-0, 0, 0; 0: 1-62, 0, 0; 1: 1-63, 0, 0; 2: 1-63, 0, 0;",
    "no AC of one component": "0 1 2: 0-0, 0, 0; 0: 1-63, 0, 0; 1: 1-63, 0, 0;",
    "a refinement of a part of the band": "0 1 2: 0-0, 0, 0; 0: 1-63, 0, 1; 0: 1-62, 1, 0; 1: 1-63, 0, 0; "
    "2: 1-63, 0, 0;",
}


def jpegtran(data: bytes, *options: str) -> bytes:
    return subprocess.run(["jpegtran", *options], input=data, capture_output=True, check=True).stdout


def by_script(data: bytes, script: str, folder: Path, *options: str) -> bytes:
    path = folder / "scans.txt"
    path.write_text(script)
    return jpegtran(data, "-scans", str(path), *options)


def refused(data: bytes, reason: str) -> None:
    with pytest.raises(NotWindowable, match=re.escape(reason)):
        cut(data, (0, 0, 1, 1))


def by_hand(parts: list[bytes], ac_symbols: bytes = b"\x00", shift: int = 0) -> bytes:
    """Return a gray picture of 16 × 8 pixels, black or gray: a DC scan of zeros, then the given parts.

    A DC difference of zero has the code 0; AC symbols have codes of 2 bits in their order.
    """
    quantisation = segment(0xDB, bytes((0,)) + bytes([1] * 64))
    frame = segment(0xC2, struct.pack(">BHHB", 8, 8, 16, 1) + bytes((1, 0x11, 0)))
    tables = segment(0xC4, bytes((0, 1)) + bytes(15) + bytes((0,)))
    tables += segment(0xC4, bytes((0x10, 0, len(ac_symbols))) + bytes(14) + ac_symbols)
    first = scan(0, 0, 0, shift, "00")
    return b"\xff\xd8" + segment(0xE0, JFIF) + quantisation + frame + tables + first + b"".join(parts) + b"\xff\xd9"


def scan(first: int, last: int, before: int, after: int, bits: str) -> bytes:
    padded = bits + "1" * (-len(bits) % 8)
    body = bytes(int(padded[i : i + 8], 2) for i in range(0, len(padded), 8)).replace(b"\xff", b"\xff\x00")
    return segment(0xDA, bytes((1, 1, 0, first, last, before << 4 | after))) + body


@pytest.mark.parametrize("subsampling", ["4:4:4", "4:2:2", "4:2:0"])
@pytest.mark.parametrize("size", [(1, 1), (8, 8), (17, 16), (97, 65), (64, 130)])
@pytest.mark.parametrize("restart", [{}, {"restart_marker_blocks": 1}, {"restart_marker_rows": 2}])
def test_pillows_files_at_odd_sizes(subsampling, size, restart):
    data = saved(scene(*size), quality=85, subsampling=subsampling, progressive=True, **restart)
    assert parse(data).scans
    check(data)


@pytest.mark.parametrize("quality", [1, 20, 100])
@pytest.mark.parametrize("mode", ["L", "RGB", "CMYK"])
def test_pillows_files_of_all_qualities_and_colours(quality, mode):
    check(saved(scene(75, 90, mode), quality=quality, progressive=True))


@pytest.mark.parametrize("form", ["noise", "flat"])
def test_extreme_pictures(form):
    noise = np.random.default_rng(1).integers(0, 2, (80, 72, 3), np.uint8) * 255
    picture = Image.fromarray(noise) if form == "noise" else Image.new("RGB", (300, 200), (250, 3, 90))
    check(saved(picture, quality=100, subsampling="4:2:0", progressive=True))


def test_every_column_and_every_row_alone():
    data = saved(scene(67, 69), quality=90, subsampling="4:2:0", progressive=True)
    whole = pixels(data)
    for x in range(67):
        window = cut(data, (x, 30, x + 1, 31))
        assert (pixels(window.jpeg)[30 - window.top, x - window.left] == whole[30, x]).all()
    for y in range(69):
        window = cut(data, (30, y, 31, y + 1))
        assert (pixels(window.jpeg)[y - window.top, 30 - window.left] == whole[y, 30]).all()


def test_a_window_is_a_baseline_file_that_can_be_cut_again():
    data = saved(scene(200, 150), quality=90, progressive=True)
    outer = cut(data, (20, 20, 180, 130))
    header = parse(outer.jpeg)
    assert not header.scans
    assert header.frame[1] == 0xC0
    check(outer.jpeg)


def test_sixteen_bit_quantisation_tables_make_an_extended_file():
    data = saved(scene(60, 40), qtables=[[300] * 64], progressive=True)
    assert parse(cut(data, (10, 10, 40, 30)).jpeg).frame[1] == 0xC1
    check(data)


def test_its_bytes_are_about_its_share_of_the_area():
    data = saved(scene(512, 384), quality=90, progressive=True)
    for box in ((0, 0, 256, 192), (100, 100, 356, 292), (5, 5, 500, 380)):
        share = (box[2] - box[0]) * (box[3] - box[1]) / (512 * 384)
        assert 0.5 * share * len(data) < len(cut(data, box).jpeg) < 700 + 1.3 * share * len(data)


@needs_jpegtran
@pytest.mark.parametrize("script", SCRIPTS.values(), ids=SCRIPTS)
@pytest.mark.parametrize("restart", [(), ("-restart", "3B")], ids=["", "restart"])
def test_scans_of_all_kinds(script, restart, tmp_path):
    for subsampling in ("4:4:4", "4:2:2", "4:2:0"):
        data = saved(scene(75, 61), quality=92, subsampling=subsampling)
        made = by_script(data, script, tmp_path, *restart)
        assert len(parse(made).scans) == script.count(";")
        check(made)


@needs_jpegtran
@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_every_sampling(sampling):
    from tests.codec.window.jpeg_writer import Picture, adobe

    application = ((0xEE, adobe(2)),) if "CMYK" in sampling else ((0xE0, JFIF),)
    data = Picture(70, 53, SAMPLINGS[sampling], seed=3, application=application).write()
    check(jpegtran(data, "-progressive"))


@needs_jpegtran
@pytest.mark.parametrize("script", INCOMPLETE.values(), ids=INCOMPLETE)
def test_scans_that_do_not_bring_everything_are_refused(script, tmp_path):
    data = by_script(saved(scene(75, 61), quality=92), script, tmp_path)
    pixels(data)  # libjpeg decodes them, and smooths what is missing
    refused(data, "the scans leave coefficients incomplete")


@needs_jpegtran
@pytest.mark.parametrize("kind", ["imagenet", "openimages"])
@pytest.mark.parametrize("count", [3, pytest.param(100, marks=pytest.mark.slow)])
def test_photos_made_progressive_with_twenty_boxes(kind, count):
    photos = [path.read_bytes() for path in shared_data(kind)[:count]]
    if not photos:
        pytest.skip("no real photos beside the checkout")
    for number, data in enumerate(photos):
        try:
            parse(data)
        except NotWindowable:
            continue
        check(jpegtran(data, "-progressive", *(["-restart", "7B"] if number % 3 == 2 else [])), number, 11)


def test_scans_that_are_cut_off_are_refused():
    data = progressive_files()[0]
    for found in parse(data).scans[1:]:
        # The file up to a scan, with an end marker: a valid file whose later scans are missing.
        header_at = data.rindex(b"\xff\xda", 0, found.start)
        short = data[
            : data.rindex(b"\xff\xc4", 0, header_at) if b"\xff\xc4" in data[header_at - 400 : header_at] else header_at
        ]
        refused(short + b"\xff\xd9", "no window")
        refused(data[: found.start + 3], "the scans end too early")
    refused(data[:-2], "the scans end too early")


def test_what_may_stand_between_scans():
    data = progressive_files()[0]
    at = parse(data).scans[0].end
    quantisation = data[data.index(b"\xff\xdb") :]
    quantisation = quantisation[: 2 + int.from_bytes(quantisation[2:4], "big")]
    for harmless in (segment(0xFE, b"a comment"), quantisation, b"\xff\xff", segment(0xDD, b"\0\0")):
        check(data[:at] + harmless + data[at:], count=2)
    changed = bytearray(quantisation)
    changed[20] += 1
    refused(data[:at] + bytes(changed) + data[at:], "quantisation tables change")
    refused(data[:at] + segment(0xE1, b"hello") + data[at:], "it has an unexpected marker 0xE1 between scans")
    refused(data[:at] + segment(0xC2, bytes(9)) + data[at:], "it has an unexpected marker 0xC2 between scans")
    refused(data[:at] + segment(0xDD, b"\0") + data[at:], "a restart interval is damaged")


def test_scans_out_of_order_are_refused():
    full = scan(1, 63, 0, 0, "0000")
    check(by_hand([full]))
    refused(by_hand([full, full]), "repeat coefficients or have them out of order")
    refused(by_hand([scan(1, 63, 2, 1, "0000")]), "repeat coefficients or have them out of order")
    refused(by_hand([scan(1, 63, 0, 1, "0000"), scan(1, 5, 1, 0, "0000")]), "leave coefficients incomplete")
    refused(
        by_hand([scan(1, 63, 0, 2, "0000"), scan(1, 63, 1, 0, "0000")]),
        "repeat coefficients or have them out of order",
    )
    refused(by_hand([scan(1, 63, 3, 1, "0000")]), "an impossible precision")
    refused(by_hand([scan(1, 63, 0, 13, "0000")]), "an impossible precision")
    refused(by_hand([scan(0, 63, 0, 0, "0000")]), "cannot be combined")
    refused(by_hand([scan(9, 5, 0, 0, "0000")]), "cannot be combined")
    refused(by_hand([scan(5, 64, 0, 0, "0000")]), "cannot be combined")
    data = by_hand([full])
    refused(
        data.replace(b"\xff\xda\x00\x08\x01\x01\x00\x00\x00\x00", b"\xff\xda\x00\x08\x01\x02\x00\x00\x00\x00"), "order"
    )
    refused(
        data.replace(b"\xff\xda\x00\x08\x01\x01\x00\x01", b"\xff\xda\x00\x08\x01\x01\x01\x01"),
        "a Huffman table is missing",
    )


ONE, ZRL, RUN_OF_FIFTEEN_AND_ONE = 0x01, 0xF0, 0xF1


def test_damaged_bands_are_refused():
    # Codes: 00 end of block, 01 coefficient of one bit, 10 sixteen zeros.
    symbols = bytes((0x00, ONE, ZRL))
    check(by_hand([scan(1, 63, 0, 0, "011" + "00" + "10" + "010" + "00")], symbols))
    refused(by_hand([scan(1, 63, 0, 0, "10" * 4 + "00")], symbols), "a run of zeros beyond the end")
    refused(
        by_hand([scan(1, 5, 0, 0, "10" + "00"), scan(6, 63, 0, 0, "0000")], symbols), "a run of zeros beyond the end"
    )
    refused(by_hand([scan(1, 63, 0, 0, "11" * 8)], symbols), "a Huffman code or symbol that has no meaning")
    refused(by_hand([scan(1, 63, 0, 0, "01101101")], symbols), "entropy-coded data that end too early")
    large = bytes((0x00, 0x0C))
    refused(by_hand([scan(1, 63, 0, 0, "01" + "1" * 12 + "0000")], large), "out of the range of 8-bit pictures")
    # Refinement: a new coefficient is ±1 unit, and a run must end at a zero.
    before = scan(1, 63, 0, 1, "0000")
    check(by_hand([before, scan(1, 63, 1, 0, "011" + "00" + "00")], symbols))
    refused(by_hand([before, scan(1, 63, 1, 0, "10" * 4 + "00")], symbols), "a run of zeros beyond the end")
    refused(by_hand([scan(1, 63, 0, 1, "00" * 2), scan(1, 63, 1, 0, "01" + "1" * 14)], large), "no meaning")


def test_markers_inside_of_a_scan_are_refused():
    data = progressive_files()[1]
    for found in parse(data).scans:
        middle = (found.start + found.end) // 2
        for marker in (b"\xff\xd3", b"\xff\xff", b"\xff\xc4", b"\xff\xe1\x00\x02"):
            refused(data[:middle] + marker + data[middle:], "no window")
    restart = data.index(b"\xff\xd1")
    refused(
        data[: restart + 1] + b"\xd2" + data[restart + 2 :], "restart markers that are missing, surplus or out of order"
    )


def test_sixty_four_scans_are_read_and_more_are_refused():
    alone = [scan(k, k, 0, 0, "0000") for k in range(1, 64)]
    data = by_hand(alone)
    assert len(parse(data).scans) == scans.MAX_SCANS == 64
    check(data)
    refused(by_hand([*alone, scan(0, 0, 1, 0, "11")], shift=1), "more than 64 scans")


def test_two_thousand_scans_are_refused_after_sixty_four(monkeypatch):
    parts = []
    for bits in range(scans.MAX_SHIFT, -1, -1):
        before = 0 if bits == scans.MAX_SHIFT else bits + 1
        parts += [scan(k, k, before, bits, "0000") for k in range(1, 64)]
    ends = []
    real = scans.kernel.scan_end
    monkeypatch.setattr(scans, "kernel", type("Kernel", (), {"scan_end": lambda *a: ends.append(a) or real(*a)}))
    refused(by_hand(parts), "more than 64 scans")
    assert len(ends) == 64


def test_coefficients_beyond_the_bound_are_refused(monkeypatch):
    data = saved(scene(400, 400), quality=80, subsampling="4:4:4", progressive=True)
    monkeypatch.setattr(window_jpeg.progressive, "MAX_BYTES", 500_000)  # whole: 7,500 blocks of 128 bytes
    cut(data, (100, 100, 200, 200))
    with pytest.raises(NotWindowable, match="coefficients take more than"):
        cut(data, (0, 0, 400, 400))


def test_damage_below_the_window_that_pillow_decodes_does_not_matter():
    data = bytearray(saved(scene(100, 400), quality=90, progressive=True))
    last = parse(bytes(data)).scans[-1]
    data[last.end - 40 : last.end] = bytes(40)
    box = (10, 10, 60, 90)
    window = cut(bytes(data), box)
    part = pixels(window.jpeg)[10 - window.top : 90 - window.top, 10 - window.left : 60 - window.left]
    assert (part == pixels(bytes(data))[10:90, 10:60]).all()


def test_a_header_of_another_file_is_no_danger():
    for data in progressive_files():
        for other in progressive_files():
            header = parse(other)
            for box in boxes(header.width, header.height, random.Random(1), 2):
                try:
                    cut(data, box, header=header)
                except NotWindowable:
                    continue


def test_there_is_no_index():
    with pytest.raises(NotWindowable, match="it is progressive and cannot be indexed"):
        build_index(progressive_files()[0])


def test_metadata_that_pillow_does_not_read_is_refused():
    data = saved(scene(50, 40), progressive=True)
    at = data.index(b"\xff\xdb")
    broken = data[:at] + segment(0xED, b"Photoshop 3.0\x008BIM\x04") + data[at:]
    try:
        pixels(broken)
    except Exception:  # noqa: BLE001 - whatever Pillow raises
        refused(broken, "Pillow cannot read its metadata")
    else:
        check(broken, count=1)


def test_without_the_extension_there_is_no_window(monkeypatch):
    data = progressive_files()[0]
    header = parse(data)
    monkeypatch.setattr(scans, "kernel", None)
    with pytest.raises(NotWindowable, match="it is progressive, and the extension was not built"):
        parse(data)
    monkeypatch.setattr(window_jpeg, "kernel", None)
    with pytest.raises(ConfigError, match="install a compiler"):
        cut(data, (0, 0, 1, 1), header=header)


def test_pillow_opens_a_window_as_what_it_is():
    window = cut(saved(scene(90, 70), progressive=True), (10, 10, 50, 50))
    with Image.open(io.BytesIO(window.jpeg)) as image:
        assert image.size == (window.width, window.height)
        assert "progressive" not in image.info
