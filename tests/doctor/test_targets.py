"""The doctor looks at masks and boxes."""

import json
import warnings

import numpy as np
import pytest
from PIL import Image

from sophon.doctor.finding import ADVICE, FAULT, FINE
from sophon.doctor.targets import examine_fields
from sophon.loader.sources.local import open_path
from sophon.pipeline import Pipeline, ops

STEPS = Pipeline([ops.Decode()])


def _write(folder, masks, boxes=None):
    for name in ("pictures", "masks"):
        (folder / name).mkdir(parents=True)
    for number, size in enumerate(masks):
        Image.new("RGB", (40, 30)).save(folder / f"pictures/{number}.png")
        if size is not None:
            Image.fromarray(np.zeros((size[1], size[0]), np.uint8)).save(folder / f"masks/{number}.png")
    address = f"{folder}?images=pictures&masks=masks"
    if boxes is not None:
        said = {
            "images": [{"id": number, "file_name": f"{number}.png"} for number in range(len(masks))],
            "annotations": [
                {"image_id": number, "bbox": box, "category_id": 1} for number, box in enumerate(boxes) if box
            ],
        }
        (folder / "boxes.json").write_text(json.dumps(said))
        address += "&boxes=boxes.json"
    return address


def _findings(address):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that targets are missing
        transport = open_path(address)
    opened = transport.open(STEPS)
    try:
        return list(examine_fields("here", transport, opened, STEPS, range(opened.samples)))
    finally:
        transport.close()


def _found(address):
    return {(finding.level, finding.text.partition(":")[0]) for finding in _findings(address)}


def test_fields_that_fit_together_are_fine(tmp_path):
    address = _write(tmp_path / "data", [(40, 30)] * 3, [[1, 2, 30, 20], None, [0, 0, 40, 30]])
    assert _found(address) == {(FINE, "3 of 3 samples examined")}


def test_what_is_wrong_with_masks_and_boxes_is_said(tmp_path):
    masks = [(40, 30), None, (20, 30), (40, 30), (40, 30)]
    address = _write(tmp_path / "data", masks, [[1, 2, 30, 20], None, None, [30, 2, 30, 20], [3, 3, 0, 5]])
    assert _found(address) == {
        (FAULT, "1 of 5 samples lack a field"),
        (FAULT, "1 of 5 samples have a mask that differs in size from the picture"),
        (ADVICE, "1 of 5 samples have boxes that reach beyond the picture"),
        (ADVICE, "1 of 5 samples have boxes without an area"),
    }


def test_a_mask_that_cannot_be_decoded_is_named(tmp_path):
    address = _write(tmp_path / "data", [(40, 30)] * 2)
    path = tmp_path / "data/masks/1.png"
    path.write_bytes(path.read_bytes()[:40] + bytes(len(path.read_bytes()) - 40))
    assert (FAULT, "1 of 2 samples have a field that cannot be read") in _found(address)


def test_a_mask_that_the_loader_would_refuse_is_found(tmp_path):
    address = _write(tmp_path / "data", [(40, 30)] * 2)
    Image.new("RGB", (40, 30)).save(tmp_path / "data/masks/1.png")
    assert _found(address) == {(FAULT, "1 of 2 samples have a mask that training would refuse")}


@pytest.mark.parametrize(
    ("numbers", "shown"), [((0, 7, 200), "0 … 200"), ((0, 20, 255), "0 … 20 and 255"), ((0, 0, 255), "0 … 0 and 255")]
)
def test_the_numbers_in_masks_are_shown_so_that_one_knows_how_many_classes_there_are(tmp_path, numbers, shown):
    address = _write(tmp_path / "data", [(40, 30)] * len(numbers))
    for place, number in enumerate(numbers):
        Image.new("L", (40, 30), number).save(tmp_path / f"data/masks/{place}.png")
    (finding,) = _findings(address)
    assert finding.text.endswith(f"image, mask fit together; numbers in mask: {shown}")
