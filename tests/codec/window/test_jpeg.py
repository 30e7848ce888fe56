"""What a window is made of, and how the functions behave apart from pixels."""

import contextlib
import io
import random
import struct
import threading

import pytest
from PIL import Image

import sophon.codec.window as package
from sophon.codec.window import available, build_index, cut, jpeg, parse
from sophon.errors import ArtifactError, ConfigError
from tests.codec.window.jpeg_writer import JFIF, Picture, adobe, segment
from tests.codec.window.support import boxes, check, needs_kernel, pixels, saved, scene, small_files


def segments(data: bytes) -> list[tuple[int, bytes]]:
    found, at = [], 2
    while True:
        size = struct.unpack_from(">H", data, at + 2)[0]
        found.append((data[at + 1], data[at + 4 : at + 2 + size]))
        at += 2 + size
        if found[-1][0] == 0xDA:
            return found


@needs_kernel
def test_a_window_says_where_it_lies():
    window = cut(saved(scene(100, 80), subsampling="4:4:4"), (11, 20, 30, 70))
    assert (window.left, window.top, window.width, window.height) == (8, 16, 24, 56)
    assert (window.full_width, window.full_height) == (100, 80)
    with Image.open(io.BytesIO(window.jpeg)) as image:
        assert image.size == (24, 56)


@needs_kernel
def test_it_keeps_what_decides_colours_and_drops_the_rest():
    exif = Image.Exif()
    exif[0x0112] = 6
    data = saved(scene(100, 80), exif=exif.tobytes(), icc_profile=bytes(300), comment=b"a comment")
    assert {0xE0, 0xE1, 0xE2, 0xFE} <= {marker for marker, _ in segments(data)}
    assert [marker for marker, _ in segments(cut(data, (0, 0, 9, 9)).jpeg)] == [0xE0, 0xDB, 0xC0, 0xC4, 0xDA]
    data = Picture(50, 50, application=((0xE0, JFIF), (0xEE, adobe(1) + b"more"))).write()
    assert segments(cut(data, (0, 0, 9, 9)).jpeg)[:2] == [(0xE0, JFIF), (0xEE, adobe(1))]


@needs_kernel
def test_it_has_no_restart_markers_and_ends_with_one_end_marker():
    data = Picture(90, 90, restart=1).write()
    window = cut(data, (20, 20, 80, 80)).jpeg
    assert 0xDD not in {marker for marker, _ in segments(window)}
    scan = window[parse(window).scan_start : -2]
    assert scan.count(b"\xff") == scan.count(b"\xff\x00")
    assert window.endswith(b"\xff\xd9")


@needs_kernel
def test_a_window_can_be_cut_again():
    data = saved(scene(200, 150))
    whole = pixels(data)
    outer = cut(data, (20, 20, 180, 130))
    inner = cut(outer.jpeg, (50 - outer.left, 50 - outer.top, 90 - outer.left, 90 - outer.top))
    check(outer.jpeg)
    left, top = outer.left + inner.left, outer.top + inner.top
    part = pixels(inner.jpeg)[50 - top : 90 - top, 50 - left : 90 - left]
    assert (part == whole[50:90, 50:90]).all()


@needs_kernel
def test_its_bytes_are_about_its_share_of_the_area():
    data = saved(scene(512, 384), quality=90)
    start = parse(data).scan_start
    for box in ((0, 0, 256, 192), (100, 100, 356, 292), (5, 5, 500, 380)):
        window = cut(data, box)
        share = (box[2] - box[0]) * (box[3] - box[1]) / (512 * 384)
        assert len(window.jpeg) < 700 + 1.3 * share * (len(data) - start)


@needs_kernel
def test_blocks_outside_of_the_box_cost_next_to_nothing():
    # One pixel in the corner of an MCU: of its four luma blocks one is kept, of chroma all.
    data = Picture(64, 64, busy=True).write()
    one, four = cut(data, (17, 17, 18, 18)).jpeg, cut(data, (17, 17, 31, 31)).jpeg
    head = parse(one).scan_start
    assert len(one) - head < 0.65 * (len(four) - head)


@needs_kernel
def test_missing_dc_categories_get_codes_behind_all_others():
    table = bytes((0, 1, 2)) + bytes(13) + bytes((4, 2, 7))
    completed = jpeg._completed(table)
    assert completed[:16] == bytes((0, 1, 2, 0, 0, 0, 9)) + bytes(9)
    assert completed[16:] == bytes((4, 2, 7, 0, 1, 3, 5, 6, 8, 9, 10, 11))
    full = bytes((0, 1, 5, 1, 1, 1, 1, 1, 1)) + bytes(7) + bytes(range(12))
    assert jpeg._completed(full) == full
    no_room = bytes(15) + bytes((3,)) + bytes((0, 1, 2))
    assert jpeg._completed(no_room) == no_room


@needs_kernel
@pytest.mark.parametrize("wrap", [bytes, bytearray, memoryview])
def test_any_buffer_will_do(wrap):
    data = saved(scene(100, 80), quality=90)
    index = build_index(wrap(data))
    assert index == build_index(data)
    assert cut(wrap(data), (10, 10, 60, 60), index) == cut(wrap(data), (10, 10, 60, 60)) == cut(data, (10, 10, 60, 60))


@needs_kernel
def test_a_header_that_is_given_is_not_parsed_again(monkeypatch):
    data = saved(scene(100, 80), quality=90)
    header, index, window = parse(data), build_index(data), cut(data, (10, 10, 60, 60))
    monkeypatch.setattr(jpeg, "parse", None)
    assert build_index(data, header) == index
    assert cut(data, (10, 10, 60, 60), header=header) == window
    assert cut(data, (10, 10, 60, 60), index, header) == window


@needs_kernel
def test_a_header_of_another_file_is_no_danger():
    files = small_files()
    for data in files:
        for other in files:
            header = parse(other)
            with contextlib.suppress(package.NotWindowable):
                cut(data, (0, 0, header.width, header.height), header=header)
            with contextlib.suppress(package.NotWindowable, ArtifactError):
                cut(data, (0, 0, header.width, header.height), build_index(data), header)


@needs_kernel
def test_boxes_outside_of_the_picture_are_wrong_arguments():
    with pytest.raises(ConfigError, match="not inside"):
        cut(saved(scene(100, 80)), (0, 0, 101, 80))


@needs_kernel
def test_markers_that_pillow_rejects_below_the_window_are_refused_without_walking_there():
    data = saved(scene(100, 400), quality=90)
    end = len(data) - 2
    surplus = segment(0xC0, bytes(10))
    for damaged in (
        data[:end],
        data[: end - 9] + b"\xff",
        data[:end] + surplus,
        data[: end - 40] + b"\xff\xc0" + data[end - 38 :],
    ):
        with pytest.raises(package.NotWindowable, match="EOI marker"):
            cut(damaged, (0, 0, 20, 20))


@needs_kernel
def test_damage_below_the_window_that_pillow_decodes_does_not_matter():
    data = saved(scene(100, 400), quality=90)
    end = len(data) - 2
    damaged = data[: end - 900] + bytes(900) + data[end:]
    box = (10, 10, 60, 90)
    window = cut(damaged, box)
    part = pixels(window.jpeg)[10 - window.top : 90 - window.top, 10 - window.left : 60 - window.left]
    assert (part == pixels(damaged)[10:90, 10:60]).all()


@needs_kernel
def test_threads_share_nothing():
    files = [saved(scene(200 + 10 * i, 150, seed=i), quality=90) for i in range(4)]
    jobs = [(data, box) for data in files for box in boxes(200, 150, random.Random(1), 10)]
    expected = [cut(data, box) for data, box in jobs]
    indices = {data: build_index(data) for data in files}
    wrong = []

    def work() -> None:
        for (data, box), window in zip(jobs, expected, strict=True):
            if cut(data, box, indices[data]) != window or cut(data, box) != window:
                wrong.append(box)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@needs_kernel
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b"", 0xEF46DB3751D8E999),
        (b"a", 0xD24EC4F1A98C6E5B),
        (b"abc", 0x44BC2CF5AD770999),
        (b"Nobody inspects the spammish repetition", 0xFBCEA83C8A378BF1),
    ],
)
def test_the_fingerprint_is_xxh64(text, expected):
    assert jpeg.kernel.fingerprint(text) == expected


def test_without_the_extension_windows_are_not_offered(monkeypatch):
    monkeypatch.setattr(jpeg, "kernel", None)
    assert not available()
    with pytest.raises(ConfigError, match="install a compiler"):
        cut(small_files()[0], (0, 0, 1, 1))
    with pytest.raises(ConfigError, match="install a compiler"):
        build_index(small_files()[0])


def test_the_exported_names():
    assert package.__all__ == sorted(package.__all__)
    assert all(hasattr(package, name) for name in package.__all__)
