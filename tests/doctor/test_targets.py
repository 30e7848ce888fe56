"""The doctor looks at masks and boxes."""

import json
import warnings

import numpy as np
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


def _found(address):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that targets are missing
        transport = open_path(address)
    opened = transport.open(STEPS)
    try:
        findings = list(examine_fields("here", transport, opened, STEPS, range(opened.samples)))
    finally:
        transport.close()
    return {(finding.level, finding.text.partition(":")[0]) for finding in findings}


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
