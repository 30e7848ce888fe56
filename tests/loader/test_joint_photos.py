"""Real photos with their masks and boxes: at every cut the samples that torchvision gives."""

import io
import json
from functools import cache

import pytest

from sophon.codec.cut import legal_cuts
from sophon.errors import OpError
from sophon.pipeline import Key
from tests.support.one_thread import one_thread_of_torch  # noqa: F401 - for all tests here
from tests.support.pictures import photo_folder
from tests.support.torchvision_import import import_torchvision

import_torchvision()
import numpy as np  # noqa: E402
import torch  # noqa: E402
from PIL import Image  # noqa: E402
from torchvision import tv_tensors  # noqa: E402
from torchvision.transforms import v2  # noqa: E402

from tests.support.joint_oracle import Ours, Raw, differences, theirs  # noqa: E402

FOLDER = photo_folder()
PHOTOS = None if FOLDER is None else FOLDER / "coco"
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(PHOTOS is None or not (PHOTOS / "samples.jsonl").is_file(), reason="no photos of COCO here"),
]

SAMPLE = ("image", {"boxes": "boxes", "masks": "mask", "labels": "labels"})
TO_FLOAT = [v2.ToImage(), v2.ToDtype(torch.float32, scale=True)]
ENDING = [*TO_FLOAT, v2.ConvertBoundingBoxFormat("XYXY"), v2.SanitizeBoundingBoxes(), v2.ToPureTensor()]
FILL = {tv_tensors.Mask: 255, "others": (123, 117, 104)}

# As in torchvision's references, with smaller sizes.
RECIPES = {
    "segmentation": [
        v2.RandomResize(130, 520), v2.RandomHorizontalFlip(), v2.RandomCrop(240, pad_if_needed=True, fill=FILL),
        v2.ToImage(),
        v2.ToDtype({tv_tensors.Image: torch.float32, tv_tensors.Mask: torch.int64, "others": None}, scale=True),
        v2.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    ],
    "hflip": [v2.RandomHorizontalFlip(), *ENDING],
    "lsj": [
        v2.ScaleJitter((320, 320)), v2.RandomCrop((320, 320), pad_if_needed=True, fill=FILL),
        v2.RandomHorizontalFlip(), *ENDING,
    ],
    "multiscale": [v2.RandomShortestSize((200, 240, 280), max_size=400), v2.RandomHorizontalFlip(), *ENDING],
    "ssd": [
        v2.RandomPhotometricDistort(), v2.RandomZoomOut(fill=FILL, side_range=(1.0, 2.0)), v2.RandomIoUCrop(),
        v2.RandomHorizontalFlip(), *ENDING,
    ],
    "ssdlite": [v2.RandomIoUCrop(), v2.RandomHorizontalFlip(), *ENDING],
    "tensors first": [v2.ToImage(), v2.RandomResizedCrop(160), v2.RandomVerticalFlip(), *ENDING[1:]],
}  # fmt: skip


@cache
def raws():
    """Return all samples; boxes in pixels are worked out here, from the listing."""
    found = []
    for line in (PHOTOS / "samples.jsonl").read_text().splitlines():
        row = json.loads(line)
        image, mask = ((PHOTOS / row[name]).read_bytes() for name in ("image", "mask"))
        width, height = Image.open(io.BytesIO(image)).size
        boxes = np.array(row["boxes_cxcywh"], np.float32).reshape(-1, 4).astype(np.float64)
        boxes = (boxes * (width, height, width, height)).astype(np.float32)
        labels, points = np.array(row["labels"], np.int64), np.zeros((len(boxes), 1, 2), np.float32)
        found.append(Raw(width, height, image, mask, boxes, "cxcywh", points, labels))
    assert len(found) >= 20
    return found


@pytest.mark.parametrize("name", RECIPES)
def test_samples_of_photos_are_torchvisions_at_every_cut(name):
    recipe, report, compared = v2.Compose(RECIPES[name]), [], 0
    for at, raw in enumerate(raws()):
        ours, key = Ours(recipe, raw, SAMPLE), Key(3, at % 4, at)
        expected = theirs(recipe, raw, key, SAMPLE)
        for cut in legal_cuts(ours.pipeline):
            try:
                found = ours.finished(raw, key, cut)
            except OpError as error:
                if "needs the whole picture" in str(error):
                    continue  # a node then sends the file
                raise
            compared += 1
            report += [f"photo {at}, {cut}: {text}" for text in differences(found, expected)]
    if report:
        pytest.fail("\n".join(report[:20]), pytrace=False)
    assert compared >= 2 * len(raws())
