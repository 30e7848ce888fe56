"""A folder of pictures with masks and COCO's boxes, and what torchvision makes of a recipe over its samples."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from sophon.pipeline import Key
from tests.support.joint_oracle import Raw, raw_sample, theirs

COUNT = 12
OPTIONS = "images=images&masks=masks&boxes=boxes.json"
SAMPLE = ("image", {"boxes": "boxes", "masks": "mask", "keypoints": "keypoints", "labels": "labels", "n": "image_id"})


def make_data(folder: Path, count: int = COUNT) -> list[Raw]:
    """Write pictures of several sizes with their targets, and return them."""
    raws = [raw_sample(90 + 9 * at, 130 - 6 * at, at % 4 + 1, "xywh", seed=at) for at in range(count)]
    annotations = []
    for name in ("images", "masks"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    for at, raw in enumerate(raws):
        (folder / "images" / f"{at:03d}.jpg").write_bytes(raw.image)
        (folder / "masks" / f"{at:03d}.png").write_bytes(raw.mask)
        for box, points, label in zip(raw.boxes.tolist(), raw.keypoints.tolist(), raw.labels.tolist(), strict=True):
            flat = [number for point in points for number in (*point, 2)]
            annotations.append({"image_id": at, "bbox": box, "category_id": label, "keypoints": flat})
    images = [{"id": at, "file_name": f"{at:03d}.jpg"} for at in range(count)]
    (folder / "boxes.json").write_text(json.dumps({"images": images, "annotations": annotations}))
    return raws


def expected(recipe: Any, raws: list[Raw], seed: int, epoch: int) -> list[Any]:
    """Return torchvision's samples of an epoch, in the order of the data set."""
    found = []
    for at, raw in enumerate(raws):
        picture, target = theirs(recipe, raw, Key(seed, epoch, at))
        found.append((picture, target | {"n": at}))
    return found


def by_number(batches: Any) -> dict[int, Any]:
    """Return samples of batches by their numbers, and check that batches are as in torchvision's references."""
    found = {}
    for batch in batches:
        assert isinstance(batch, tuple)
        assert all(isinstance(part, tuple) for part in batch)
        for picture, target in zip(*batch, strict=True):
            assert isinstance(picture, torch.Tensor)
            found[target["n"]] = (picture, target)
    return found
