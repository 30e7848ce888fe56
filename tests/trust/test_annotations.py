"""Absurd numbers in annotations are the problem of one sample, or a typed error of the file; never a bare one."""

import json
import warnings

import pytest
from PIL import Image

from sophon.errors import StoreError
from sophon.store import open_store

HUGE = 10**400
LONG = "9" * 5000


def _open(folder, boxes):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that targets are damaged
        return open_store(f"{folder}?images=pictures&boxes={boxes}")


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "pictures").mkdir()
    for number in range(2):
        Image.new("RGB", (40, 30)).save(tmp_path / f"pictures/{number}.png")
    return tmp_path


def _only_the_first_is_bad(store):
    with store:
        with pytest.raises(StoreError, match="field"):
            store.read(0)
        assert store.read(1)


@pytest.mark.parametrize(
    "wrong",
    [
        {"bbox": [HUGE, 0, 1, 1]},
        {"bbox": [1e39, 0, 1, 1]},
        {"bbox": [0, 0, 1, 1], "category_id": HUGE},
        {"bbox": [0, 0, 1, 1], "area": -HUGE},
        {"bbox": [0, 0, 1, 1], "iscrowd": 2**63},
        {"bbox": {"x": HUGE}},
    ],
    ids=["huge", "no float32", "category", "area", "crowd", "no list"],
)
def test_coco(folder, wrong):
    said = {
        "images": [{"id": number, "file_name": f"{number}.png"} for number in range(2)],
        "annotations": [
            {"image_id": 0, "category_id": 1, **wrong},
            {"image_id": 1, "category_id": 1, "bbox": [0, 0, 1, 1]},
            {"image_id": [HUGE], "category_id": 1, "bbox": [0, 0, 1, 1]},
        ],
    }
    (folder / "boxes.json").write_text(json.dumps(said))
    _only_the_first_is_bad(_open(folder, "boxes.json"))


def test_an_id_of_coco_that_no_column_can_hold_is_an_error_of_the_file(folder):
    said = {"images": [{"id": HUGE, "file_name": "0.png"}], "annotations": []}
    (folder / "boxes.json").write_text(json.dumps(said))
    with pytest.raises(StoreError, match="more than 63 bits"):
        _open(folder, "boxes.json")


@pytest.mark.parametrize("line", [f"{LONG} 0 0 1 1", "0 1e999 0 1 1", f"0 {LONG} 0 1 1", "٣ 0 0 1 1", "0 ١ 0 1 1"])
def test_yolo(folder, line):
    (folder / "labels").mkdir()
    (folder / "labels/0.txt").write_text(f"{line}\n")
    (folder / "labels/1.txt").write_text("0 0.5 0.5 1 1\n")
    _only_the_first_is_bad(_open(folder, "labels"))


@pytest.mark.parametrize("number", ["1e999", "1e39", LONG])
def test_voc(folder, number):
    (folder / "labels").mkdir()
    box = "<xmin>{}</xmin><ymin>1</ymin><xmax>2</xmax><ymax>3</ymax>"
    for name, left in (("0", number), ("1", "0")):
        inside = f"<object><name>cat</name><bndbox>{box.format(left)}</bndbox></object>"
        (folder / f"labels/{name}.xml").write_text(f"<annotation>{inside}</annotation>")
    _only_the_first_is_bad(_open(folder, "labels"))
