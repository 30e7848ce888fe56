"""Damaged files: never a crash, and never a window with other pixels than the whole file has.

If Pillow decodes the damaged file, a window must show the same pixels; if Pillow raises, there must be no window, with
or without an index. The C code under test reads its input in few places; to have a sanitizer watch them, build with
CFLAGS="-fsanitize=address -g" and run this file with LD_PRELOAD set to libasan and ASAN_OPTIONS=detect_leaks=0.
"""

import contextlib
import random

import numpy as np
import pytest

from sophon.codec.window import NotWindowable, available, build_index, cut, parse
from tests.codec.window.support import boxes, pixels, progressive_files, small_files

pytestmark = pytest.mark.skipif(not available(), reason="the extension was not built")

TELLING = bytes((0x00, 0x01, 0x10, 0x7F, 0x80, 0xC0, 0xC4, 0xD0, 0xD1, 0xD7, 0xD8, 0xD9, 0xDA, 0xDB, 0xE0, 0xFE, 0xFF))
# Beyond this the whole picture takes too long to decode for a test; such sizes come of damaged frames.
MOST_PIXELS = 2_000_000


def mutated(data: bytes, rng: random.Random) -> bytes:
    """Return the file with one to three faults, half of the time in its header."""
    out = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        start = parse(data).scan_start
        low, high = (2, start) if rng.random() < 0.5 else (start, len(data))
        at = min(rng.randrange(low, high), len(out) - 1)
        kind = rng.randrange(9)
        if kind == 0:
            out[at] ^= 1 << rng.randrange(8)
        elif kind == 1:
            out[at] = rng.randrange(256)
        elif kind == 2:
            out[at] = rng.choice(TELLING)
        elif kind == 3:
            del out[at : at + rng.randrange(1, 9)]
        elif kind == 4:
            out[at:at] = rng.randbytes(rng.randrange(1, 5))
        elif kind == 5:
            out[at:at] = bytes((0xFF, rng.choice(TELLING)))
        elif kind == 6:
            out[at : at + 1] = out[at : at + rng.randrange(2, 40)] * 2
        elif kind == 7:
            out[at] = (out[at] + rng.choice((-1, 1))) % 256
        elif rng.random() < 0.3:
            del out[at:]
        else:
            out[at : at + 2] = rng.randbytes(2)
    return bytes(out)


def fuzz(files: tuple[bytes, ...], seed: int, count: int) -> dict[str, int]:
    rng = random.Random(seed)
    seen = dict.fromkeys(("refused", "same", "walked only", "large"), 0)
    for _ in range(count):
        data = mutated(rng.choice(files), rng)
        try:
            header = parse(data)
        except NotWindowable:
            seen["refused"] += 1
            continue
        box = rng.choice(boxes(header.width, header.height, rng, 3))
        windows = []
        with contextlib.suppress(NotWindowable):
            windows.append(cut(data, box))
        try:
            index = build_index(data)
        except NotWindowable:
            seen["walked only"] += len(windows)
        else:
            windows.append(cut(data, box, index))
            assert len(set(windows)) == 1, "a file whose whole walk succeeds can be cut, with the same result"
        if not windows:
            seen["refused"] += 1
        elif header.width * header.height > MOST_PIXELS:
            seen["large"] += 1
        else:
            left, top, right, bottom = box
            whole = pixels(data)  # must not raise where there is a window
            window = windows[0]
            part = pixels(window.jpeg)
            part = part[top - window.top : bottom - window.top, left - window.left : right - window.left]
            np.testing.assert_array_equal(part, whole[top:bottom, left:right])
            seen["same"] += 1
    return seen


@pytest.mark.filterwarnings("ignore")  # of Pillow about the metadata of damaged files
def test_2000_damaged_files_are_refused_or_right():
    seen = fuzz(small_files(), seed=1, count=2_000)
    # The faults must not all be so coarse that nothing is left to compare.
    assert seen["same"] > 200
    assert seen["refused"] > 200
    assert seen["walked only"] > 20


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_200000_damaged_files_are_refused_or_right():
    seen = fuzz(small_files(), seed=2, count=200_000)
    assert seen["same"] > 20_000


@pytest.mark.filterwarnings("ignore")
def test_2000_damaged_progressive_files_are_refused_or_right():
    seen = fuzz(progressive_files(), seed=3, count=2_000)
    assert seen["same"] > 200
    assert seen["refused"] > 200


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_200000_damaged_progressive_files_are_refused_or_right():
    seen = fuzz(progressive_files(), seed=4, count=200_000)
    assert seen["same"] > 20_000
