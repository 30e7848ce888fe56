"""Photos with masks and boxes, for segmentation and detection recipes.

A folder with ``images/``, ``masks/`` and ``samples.jsonl`` (one line per sample: image, labels, relative boxes) is used
as it is. For any other photos, targets are synthetic: a mask with regions of similar brightness, and a few boxes.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from PIL import Image

from sophon.store.folder import IMAGE_SUFFIXES

_CELL = 16  # pixels: about as fine as the regions of hand-made masks
_CLASSES = 6
_BOXES = 7  # as many as a COCO picture has on average


def with_targets(data: Path, into: Path) -> Path:
    """Make a folder with ``images/``, ``masks/`` and YOLO's ``labels/`` for photos, and return it.

    Args:
        data: The photos.
        into: Folder to make; photos are linked and not copied.
    """
    into.mkdir(parents=True)
    (into / "labels").mkdir()
    listing = data / "samples.jsonl"
    if (data / "images").is_dir() and (data / "masks").is_dir() and listing.is_file():
        for name in ("images", "masks"):
            (into / name).symlink_to((data / name).resolve())
        for line in listing.read_text().splitlines():
            said = json.loads(line)
            rows = zip(said["labels"], said["boxes_cxcywh"], strict=True)
            _write_boxes(into, Path(said["image"]).stem, [(label, *box) for label, box in rows])
        return into
    (into / "images").mkdir()
    (into / "masks").mkdir()
    photos = sorted(path for path in data.rglob("*") if path.suffix.lower() in IMAGE_SUFFIXES)
    for number, photo in enumerate(photos):
        name = f"{number:06d}"
        (into / "images" / f"{name}{photo.suffix.lower()}").symlink_to(photo.resolve())
        rng = np.random.default_rng(number)
        with Image.open(photo) as picture:
            cells = picture.convert("L").resize((-(-picture.width // _CELL), -(-picture.height // _CELL)))
            classes = np.asarray(cells) // (256 // _CLASSES + 1)
            mask = np.kron(classes, np.ones((_CELL, _CELL), np.uint8))[: picture.height, : picture.width]
        Image.fromarray(mask).save(into / "masks" / f"{name}.png")
        sizes = rng.uniform(0.05, 0.5, (_BOXES, 2))
        middles = rng.uniform(sizes / 2, 1 - sizes / 2)
        boxes = np.concatenate([middles, sizes], axis=1).tolist()
        _write_boxes(into, name, [(int(rng.integers(80)), *box) for box in boxes])
    return into


def _write_boxes(into: Path, name: str, rows: list[tuple[float, ...]]) -> None:
    lines = [" ".join(f"{number:g}" for number in row) for row in rows]
    (into / "labels" / f"{name}.txt").write_text("\n".join(lines))
