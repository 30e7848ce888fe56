"""Decoding by Pillow, which is the oracle, and the files that tests cut windows from."""

from __future__ import annotations

import io
import os
import random
import warnings
from functools import cache
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image

from sophon.codec.window import Box, Index, Window, available, build_index, cut, parse
from tests.codec.window.jpeg_writer import JFIF, JFIF_WITH_DENSITY, Picture, adobe
from tests.support import pictures

needs_kernel = pytest.mark.skipif(not available(), reason="the extension was not built")

SAMPLINGS = {
    "gray": ((1, 1),),
    "gray with factors 2×2": ((2, 2),),
    "gray with factors 1×3": ((1, 3),),
    "4:4:4": ((1, 1), (1, 1), (1, 1)),
    "4:4:4 with factors 2×1": ((2, 1), (2, 1), (2, 1)),
    "4:4:4 with factors 1×3": ((1, 3), (1, 3), (1, 3)),
    "4:2:2": ((2, 1), (1, 1), (1, 1)),
    "4:4:0": ((1, 2), (1, 1), (1, 1)),
    "4:2:0": ((2, 2), (1, 1), (1, 1)),
    "4:1:1": ((4, 1), (1, 1), (1, 1)),
    "4:1:0": ((4, 2), (1, 1), (1, 1)),
    "1:1 by 4": ((1, 4), (1, 1), (1, 1)),
    "thirds": ((3, 1), (1, 1), (1, 1)),
    "mixed 2×1 and 1×2": ((2, 1), (1, 2), (1, 1)),
    "mixed 2×2, 2×1 and 1×2": ((2, 2), (2, 1), (1, 2)),
    "chroma above luma": ((1, 1), (2, 2), (1, 1)),
    "4×1 with 2×1": ((4, 1), (2, 1), (1, 1)),
    "1×4 with 1×2": ((1, 4), (1, 2), (1, 1)),
    "CMYK": ((1, 1), (1, 1), (1, 1), (1, 1)),
    "CMYK 4:2:0": ((2, 2), (1, 1), (1, 1), (2, 2)),
}


def pixels(data: bytes) -> npt.NDArray[np.uint8]:
    """Return what Decode makes of a file, and the components before it for CMYK, side by side."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about metadata
        with Image.open(io.BytesIO(data)) as image:
            image.load()
            rgb = np.asarray(image.convert("RGB"))
            own = np.asarray(image).reshape(*rgb.shape[:2], -1)
    return np.concatenate([rgb, own], axis=2)


def assert_same(data: bytes, whole: npt.NDArray[np.uint8], box: Box, index: Index | None = None) -> Window:
    """Check that windows with and without an index are the same file, and decode to the pixels of the whole."""
    window = cut(data, box)
    if index is not None:
        assert cut(data, box, index) == window, box
    left, top, right, bottom = box
    assert window.left <= left < right <= window.left + window.width, box
    assert window.top <= top < bottom <= window.top + window.height, box
    part = pixels(window.jpeg)
    assert part.shape[:2] == (window.height, window.width), box
    part = part[top - window.top : bottom - window.top, left - window.left : right - window.left]
    np.testing.assert_array_equal(part, whole[top:bottom, left:right], err_msg=str(box))
    return window


def boxes(width: int, height: int, rng: random.Random, count: int = 8) -> list[Box]:
    """Return the whole, the corners, one pixel at each border, and random boxes."""
    w, h = width, height
    found = [
        (0, 0, w, h),
        (0, 0, 1, 1),
        (w - 1, 0, w, 1),
        (0, h - 1, 1, h),
        (w - 1, h - 1, w, h),
        (w // 2, h // 2, w, h),
        (0, 0, (w + 1) // 2, (h + 1) // 2),
        (0, h // 2, w, h // 2 + 1),
        (w // 2, 0, w // 2 + 1, h),
    ]
    for _ in range(count):
        x, y = sorted(rng.sample(range(w + 1), 2)), sorted(rng.sample(range(h + 1), 2))
        found.append((x[0], y[0], x[1], y[1]))
    return found


def check(data: bytes, seed: int = 0, count: int = 8) -> None:
    """Check many boxes of a file with and without its index, which progressive files do not have."""
    whole = pixels(data)
    index = None
    if not parse(data).scans:
        index = build_index(data)
        assert Index.from_bytes(index.to_bytes()) == index
    for box in boxes(whole.shape[1], whole.shape[0], random.Random(seed), count):
        assert_same(data, whole, box, index)


def scene(width: int, height: int, mode: str = "RGB", seed: int = 0) -> Image.Image:
    """Return a picture with gradients, edges and noise."""
    return pictures.scene(width, height, seed).convert(mode)


def saved(picture: Image.Image, **options: object) -> bytes:
    out = io.BytesIO()
    picture.save(out, "JPEG", **options)
    return out.getvalue()


def shared_data(name: str) -> list[Path]:
    """Return the files of a folder of real photos, where it is named or lies beside the checkout; else none."""
    named = os.environ.get("SOPHON_SHARED_DATA") or os.environ.get("SOPHON_DATA")
    folder = Path(named) if named else Path(__file__).resolve().parents[4] / "shared" / "data"
    return sorted(path for path in (folder / name).glob("*") if path.is_file())


@cache
def small_files() -> tuple[bytes, ...]:
    """Return small files of many kinds, all of which can be cut."""
    exif = Image.Exif()
    exif[0x0112] = 6
    files = [
        Picture(45, 37, seed=1).write(),
        Picture(45, 37, seed=2, restart=2).write(),
        Picture(30, 41, SAMPLINGS["4:4:4"], seed=3, restart=5, application=((0xE0, JFIF_WITH_DENSITY),)).write(),
        Picture(37, 37, SAMPLINGS["4:4:0"], seed=4, all_dc_categories=False).write(),
        Picture(50, 26, SAMPLINGS["gray"], seed=5, application=()).write(),
        Picture(33, 33, SAMPLINGS["CMYK"], seed=6, application=((0xEE, adobe(2)),)).write(),
        Picture(33, 33, SAMPLINGS["4:4:4"], seed=7, application=((0xEE, adobe(0)),), busy=True).write(),
        Picture(40, 40, SAMPLINGS["4:1:1"], seed=8, sof=0xC1, sixteen_bit=True).write(),
        Picture(40, 40, SAMPLINGS["mixed 2×1 and 1×2"], seed=9, application=((0xE0, JFIF), (0xFE, b"hi"))).write(),
        saved(scene(60, 44), quality=90, subsampling="4:2:0", optimize=True),
        saved(scene(60, 44), quality=70, subsampling="4:2:2", restart_marker_blocks=3),
        saved(scene(61, 45), quality=85, subsampling="4:4:4", exif=exif.tobytes(), comment=b"a comment"),
        saved(scene(60, 44, "L"), quality=80, icc_profile=bytes(200)),
    ]
    return tuple(files)


@cache
def progressive_files() -> tuple[bytes, ...]:
    """Return small progressive files of many kinds, all of which can be cut."""
    return (
        saved(scene(60, 44), quality=90, subsampling="4:2:0", progressive=True),
        saved(scene(61, 45, seed=1), quality=70, subsampling="4:2:2", progressive=True, restart_marker_blocks=3),
        saved(scene(45, 61, seed=2), quality=97, subsampling="4:4:4", progressive=True),
        saved(scene(50, 37, "L", seed=3), quality=85, progressive=True, restart_marker_rows=1),
        saved(scene(41, 33, "CMYK", seed=4), quality=80, progressive=True),
    )
