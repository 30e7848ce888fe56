"""Pictures for tests: generated in every shape and format that a data set may hold, and real ones if there are any."""

from __future__ import annotations

import io
import os
from functools import cache
from pathlib import Path

import numpy as np
from PIL import Image


def scene(width: int, height: int, seed: int = 0) -> Image.Image:
    """Return an RGB picture with gradients, edges and noise, so that every filter and codec has something to do."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[0:height, 0:width].astype(np.float64)
    channels = []
    for _ in range(3):
        a, b, c = rng.uniform(0.01, 0.2, 3)
        wave = 90 * np.sin(a * x + b * y) + 60 * ((x * c + y * a) % 2 > 1)
        channels.append(128 + wave + rng.normal(0, 12, (height, width)))
    return Image.fromarray(np.clip(np.stack(channels, -1), 0, 255).astype(np.uint8))


def encode(picture: Image.Image, form: str) -> bytes:
    """Return a file of one of FORMS."""
    out = io.BytesIO()
    mode, file_format, options = FORMS[form]
    picture.convert(mode).save(out, file_format, **options)
    return out.getvalue()


def _exif(orientation: int) -> bytes:
    exif = Image.Exif()
    exif[0x0112] = orientation
    return exif.tobytes()


FORMS: dict[str, tuple[str, str, dict[str, object]]] = {
    "jpeg 4:2:0": ("RGB", "JPEG", {"quality": 88, "subsampling": "4:2:0"}),
    "jpeg 4:2:2": ("RGB", "JPEG", {"quality": 93, "subsampling": "4:2:2"}),
    "jpeg 4:4:4": ("RGB", "JPEG", {"quality": 80, "subsampling": "4:4:4", "optimize": True}),
    "jpeg gray": ("L", "JPEG", {"quality": 85}),
    "jpeg cmyk": ("CMYK", "JPEG", {"quality": 85}),
    "jpeg progressive": ("RGB", "JPEG", {"quality": 85, "progressive": True}),
    "jpeg rotated": ("RGB", "JPEG", {"quality": 85, "exif": _exif(6)}),
    "png": ("RGB", "PNG", {}),
    "png gray": ("L", "PNG", {}),
    "png alpha": ("RGBA", "PNG", {}),
    "png palette": ("P", "PNG", {}),
    "png bilevel": ("1", "PNG", {}),
    "gif": ("P", "GIF", {}),
    "bmp": ("RGB", "BMP", {}),
    "tiff": ("RGB", "TIFF", {}),
    "webp": ("RGB", "WEBP", {"quality": 80}),
}


def photo_folder() -> Path | None:
    """Return the folder of real photos, where SOPHON_DATA names it or it lies beside the checkout; else None."""
    named = os.environ.get("SOPHON_DATA")
    beside = Path(__file__).resolve().parents[3] / "shared" / "data"
    folder = Path(named) if named else beside
    return folder if folder.is_dir() else None


@cache
def photos(count: int = 12) -> tuple[bytes, ...]:
    """Return a few photos: real ones of both data sets where they are at hand, generated ones otherwise."""
    folder = photo_folder()
    files: list[Path] = []
    if folder is not None:
        for name in ("imagenet", "openimages"):
            found = sorted((folder / name).glob("*.[jJ]*"))
            files += found[:: max(1, len(found) // (count // 2))][: count // 2]
    if files:
        return tuple(path.read_bytes() for path in files)
    sizes = [(500, 375), (375, 500), (640, 480), (333, 500), (1024, 683), (768, 1024)]
    forms = ["jpeg 4:2:0", "jpeg 4:4:4", "jpeg 4:2:2", "jpeg gray"]
    return tuple(encode(scene(*sizes[i % 6], seed=i), forms[i % 4]) for i in range(count))
