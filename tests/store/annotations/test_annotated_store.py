"""Pictures with masks and boxes beside them: against the files themselves, read by Python's own json and XML."""

import dataclasses
import functools
import json
import os
import pickle
import warnings
from xml.etree import ElementTree

import numpy as np
import pyarrow as pa
import pytest

from sophon.bundle import unpack
from sophon.errors import ConfigError, StoreError
from sophon.link.listing import Listing, piece_of, received
from sophon.loader.sources.union import Told, unite
from sophon.store import open_store
from sophon.store.fields import Field
from tests.store.datasets import picture, settle, write_files

NAMES = [f"{number:03d}" for number in range(5)]


def parts_of(store, index):
    fields = store.manifest.fields
    found = unpack(store.read(index), len(fields))
    assert len(store.read(index)) == store.manifest.sizes[index]
    return {field.name: bytes(part) for field, part in zip(fields, found, strict=True)}


def with_pictures(root, **more):
    files = {f"img/{name}.jpg": picture(number) for number, name in enumerate(NAMES)}
    return write_files(root, files | more)


def quiet(path):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return open_store(path)


def test_a_mask_of_the_same_name_belongs_to_a_picture(tmp_path):
    root = with_pictures(tmp_path, **{f"masks/{name}.png": picture(20 + n) for n, name in enumerate(NAMES)})
    with open_store(f"{root}?images=img&masks=masks") as store:
        assert store.manifest.fields == (Field("image", "picture"), Field("mask", "mask"))
        assert store.manifest.ids.to_pylist() == [f"img/{name}.jpg" for name in NAMES]
        for index in range(5):
            assert parts_of(store, index) == {"image": picture(index), "mask": picture(20 + index)}
        alone = store.narrowed([])
        assert alone.read(3) == picture(3)
        again = pickle.loads(pickle.dumps(store))
        assert again.read(2) == store.read(2)


def test_a_missing_mask_is_an_error_that_names_sample_and_field_and_only_for_whoever_wants_masks(tmp_path):
    root = with_pictures(tmp_path, **{f"masks/{name}.png": b"mask" for name in NAMES if name != "002"})
    with pytest.warns(UserWarning, match="1 sample in .* missing or damaged"):
        store = open_store(f"{root}?images=img&masks=masks")
    with pytest.raises(StoreError, match=r"sample 2 \('img/002.jpg'\): field 'mask': there is no mask named 002"):
        store.read(2)
    assert parts_of(store, 1)["mask"] == b"mask"
    assert store.narrowed([]).read(2) == picture(2)


def coco(images=None, annotations=None, **more):
    images = (
        images if images is not None else [{"id": 7 + n, "file_name": f"{name}.jpg"} for n, name in enumerate(NAMES)]
    )
    return json.dumps({"images": images, "annotations": annotations or [], **more}).encode()


def test_boxes_of_coco(tmp_path):
    rng = np.random.default_rng(1)
    annotations = [
        {
            "id": n,
            "image_id": int(rng.integers(7, 11)),  # the last picture has none
            "category_id": int(rng.integers(1, 90)),
            "bbox": rng.uniform(0, 90, 4).tolist(),
            "area": float(n),
            "iscrowd": n % 2,
            "keypoints": rng.integers(0, 3, 9).tolist(),
        }
        for n in range(17)
    ]
    categories = [{"id": 3, "name": "car"}, {"id": 1, "name": "person"}]
    root = with_pictures(tmp_path, **{"boxes.json": coco(None, annotations, categories=categories)})
    with open_store(f"{root}?images=img&boxes=boxes.json") as store:
        kinds = {field.name: field.kind for field in store.manifest.fields}
        assert kinds == {
            "image": "picture",
            "boxes": "boxes:xywh",
            "labels": "labels",
            "iscrowd": "labels",
            "area": "values",
            "keypoints": "keypoints:3",
            "visibility": "labels:3",
        }
        assert store.manifest.classes == ("", "person", "", "car")
        for index in range(5):
            own = [a for a in annotations if a["image_id"] == 7 + index]
            found = parts_of(store, index)
            assert found["image"] == picture(index)
            expected = np.array([a["bbox"] for a in own], np.float32).reshape(-1, 4)
            np.testing.assert_array_equal(np.frombuffer(found["boxes"], np.float32).reshape(-1, 4), expected)
            assert np.frombuffer(found["labels"], np.int64).tolist() == [a["category_id"] for a in own]
            assert np.frombuffer(found["iscrowd"], np.int64).tolist() == [a["iscrowd"] for a in own]
            points = [a["keypoints"][at] for a in own for at in (0, 1, 3, 4, 6, 7)]
            assert np.frombuffer(found["keypoints"], np.float32).tolist() == points
            assert store.manifest.values(index, ["image_id"]) == {"image_id": 7 + index}


def test_pictures_that_coco_does_not_list_are_left_out_and_said_so(tmp_path):
    listed = [{"id": 1, "file_name": "004.jpg"}, {"id": 2, "file_name": "gone.jpg"}]
    root = with_pictures(tmp_path, **{"boxes.json": coco(listed)})
    with pytest.warns(UserWarning, match="pictures") as said:
        store = open_store(f"{root}?images=img&boxes=boxes.json")
    assert store.manifest.ids.to_pylist() == ["img/004.jpg"]
    assert any("4 pictures are not listed" in str(w.message) for w in said)
    assert any("1 pictures listed in" in str(w.message) for w in said)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (b'{"images": [', "is not JSON"),
        (b"[1]", "expected COCO's annotations"),
        (b'{"images": [{"id": "x"}], "annotations": []}', "expected images with file_name and id"),
        (coco([{"id": 1, "file_name": "other.jpg"}]), "annotates none of the pictures"),
        (b"[" * 100_000, "is not JSON"),
    ],
)
def test_a_broken_json_file_is_refused_when_it_is_opened(tmp_path, text, words):
    root = with_pictures(tmp_path, **{"boxes.json": text})
    with pytest.raises(StoreError, match=words):
        quiet(f"{root}?images=img&boxes=boxes.json")


@pytest.mark.parametrize(
    ("broken", "words"),
    [
        ({"bbox": [1, 2, 3]}, "expected x, y, width and height"),
        ({"bbox": [1, 2, 3, "4"]}, "expected finite numbers"),
        ({"bbox": [1, 2, 3, float("nan")]}, "expected finite numbers"),
        ({"category_id": "cat"}, "category_id: expected integers"),
        ({"area": None}, "area: expected finite numbers"),
    ],
)
def test_a_broken_annotation_is_the_problem_of_its_sample_alone(tmp_path, broken, words):
    fine = {"image_id": 8, "category_id": 1, "bbox": [1, 2, 3, 4]}
    root = with_pictures(tmp_path, **{"boxes.json": coco(None, [fine, fine | {"image_id": 9} | broken])})
    store = quiet(f"{root}?images=img&boxes=boxes.json")
    assert len(parts_of(store, 1)["boxes"]) == 16
    with pytest.raises(StoreError, match=rf"sample 2 \('img/002.jpg'\): field 'boxes': .*{words}"):
        store.read(2)


def test_boxes_of_yolo(tmp_path):
    lines = {"000": "3 0.5 0.25 0.125 1\n\n11 .5 5e-1 +0.1 0.2\n", "001": "", "003": "0 0 0 0 0"}
    root = with_pictures(tmp_path, **{f"labels/{name}.txt": text.encode() for name, text in lines.items()})
    with pytest.warns(UserWarning, match="2 pictures have no file"):
        store = open_store(f"{root}?images=img&boxes=labels")
    assert store.manifest.fields[1:] == (Field("boxes", "boxes:relative"), Field("labels", "labels"))
    for index, name in enumerate(NAMES):
        rows = [line.split() for line in lines.get(name, "").splitlines() if line]
        found = parts_of(store, index)
        assert found["boxes"] == np.array([list(map(float, row[1:])) for row in rows], np.float32).tobytes()
        assert np.frombuffer(found["labels"], np.int64).tolist() == [int(row[0]) for row in rows]


@pytest.mark.parametrize(
    "line", ["1 2 3 4", "x 0.1 0.1 0.1 0.1", "1 0.1 0.1 0.1 nan", "-1 0 0 0 0", "1 0 0 0 0 0", "1 1e999 0 0 0"]
)
def test_a_broken_line_of_yolo_is_named(tmp_path, line):
    root = with_pictures(tmp_path, **{"labels/002.txt": f"1 0 0 0 0\n{line}\n".encode()})
    store = quiet(f"{root}?images=img&boxes=labels")
    with pytest.raises(StoreError, match=r"sample 2 .*field 'boxes': 002.txt, "):
        store.read(2)
    assert parts_of(store, 0)["boxes"] == b""


VOC = """<annotation><filename>x.jpg</filename><size><width>9</width></size>
<object><name>{0}</name><pose>Left</pose><difficult>1</difficult>
  <bndbox><xmin>1</xmin><ymin>2.5</ymin><xmax>30</xmax><ymax>40</ymax></bndbox>
  <part><name>head</name><bndbox><xmin>5</xmin><ymin>5</ymin><xmax>6</xmax><ymax>6</ymax></bndbox></part></object>
<object><bndbox><ymax>4</ymax><xmax>3</xmax><ymin>2</ymin><xmin>1</xmin></bndbox><name>dog</name></object>
</annotation>"""


def test_boxes_of_pascal_voc(tmp_path):
    animals = ["cat", "bird", "dog", "emu", "ant"]
    texts = {name: VOC.format(animal) for name, animal in zip(NAMES, animals, strict=True)}
    root = with_pictures(tmp_path, **{f"xml/{name}.xml": text.encode() for name, text in texts.items()})
    with open_store(f"{root}?images=img&boxes=xml") as store:
        assert store.manifest.classes == ("__background__", "ant", "bird", "cat", "dog", "emu")
        for index, name in enumerate(NAMES):
            objects = ElementTree.fromstring(texts[name]).findall("object")
            boxes = [[float(o.find(f"bndbox/{c}").text) for c in ("xmin", "ymin", "xmax", "ymax")] for o in objects]
            found = parts_of(store, index)
            assert found["boxes"] == np.array(boxes, np.float32).tobytes()
            labels = [store.manifest.classes.index(o.find("name").text) for o in objects]
            assert np.frombuffer(found["labels"], np.int64).tolist() == labels
            assert np.frombuffer(found["difficult"], np.int64).tolist() == [1, 0]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("<annotation><object>", "not XML"),
        ("<annotation><object><name>a</name></object></annotation>", "expected a number as xmin"),
        ("<html></html>", "expected a Pascal VOC annotation"),
        ('<!DOCTYPE a [<!ENTITY b "c">]><annotation>&b;</annotation>', "declares entities"),
        ("<annotation>" + "<a>" * 100 + "</a>" * 100 + "</annotation>", "nested more than 64 deep"),
        (None, "there is no file 002.xml"),
    ],
)
def test_broken_xml_is_the_problem_of_its_sample_alone(tmp_path, text, words):
    files = {f"xml/{name}.xml": VOC.format("cat").encode() for name in NAMES}
    del files["xml/002.xml"]
    if text is not None:
        files["xml/002.xml"] = text.encode()
    store = quiet(f"{with_pictures(tmp_path, **files)}?images=img&boxes=xml")
    with pytest.raises(StoreError, match=rf"sample 2 \('img/002.jpg'\): field 'boxes': .*{words}"):
        store.read(2)
    assert parts_of(store, 3)["labels"]


def test_a_changed_annotation_file_is_read_again(tmp_path):
    root = with_pictures(tmp_path, **{"labels/000.txt": b"1 0 0 0 0"})
    path = f"{settle(root)}?images=img&boxes=labels"
    before = quiet(path)
    assert np.frombuffer(parts_of(before, 0)["labels"], np.int64).tolist() == [1]
    (root / "labels" / "000.txt").write_bytes(b"2 0 0 0 0")  # of the same size; its folder's time stays
    os.utime(root / "labels", ns=(root.stat().st_mtime_ns,) * 2)
    after = quiet(path)
    assert np.frombuffer(parts_of(after, 0)["labels"], np.int64).tolist() == [2]
    assert after.manifest.fingerprint != before.manifest.fingerprint, "else caches would give the old boxes"


def test_parts_of_an_annotated_data_set_are_put_together_and_different_boxes_are_noticed(tmp_path):
    labels = {f"labels/{name}.txt": b"%d 0 0 0 0" % n for n, name in enumerate(NAMES)}
    whole = quiet(f"{with_pictures(tmp_path, **labels)}?images=img&boxes=labels").manifest
    rows = (np.array([0, 3]), np.array([1, 2, 4]))
    told = []
    for part in map(whole.select, rows):
        listing = received(functools.partial(piece_of, part), len(part), part.fingerprint)
        told.append(Told("a node", listing, part.classes))
    assert unite(told).fingerprint == whole.fingerprint
    other = quiet(
        f"{with_pictures(tmp_path / 'x', **labels | {'labels/003.txt': b'7 0 0 0 0'})}?images=img&boxes=labels"
    ).manifest
    with pytest.raises(ConfigError, match=r"'img/003.jpg' is not the same everywhere \(targets"):
        unite([*told, Told("another", Listing.of(other), other.classes)])


def test_masks_and_boxes_at_once_and_what_is_refused(tmp_path):
    root = with_pictures(
        tmp_path / "data",
        **{f"masks/{name}.png": b"mask" for name in NAMES},
        **{f"labels/{name}.txt": b"1 0 0 0 0" for name in NAMES},
    )
    with open_store(f"{root}?images=img&masks=masks&boxes=labels") as store:
        assert [field.name for field in store.manifest.fields] == ["image", "mask", "boxes", "labels"]
        assert parts_of(store.narrowed(["labels"]), 0).keys() == {"image", "labels"}
    for options, words in (
        ("images=img", "expected .images=FOLDER with"),
        ("masks=masks", "expected .images=FOLDER with"),
        ("images=img&masks=../x", "expected a (name|path) inside"),
        ("images=img&masks=/etc", "expected a (name|path) inside"),
        ("images=img&boxes=nothing.json", "there is nothing at"),
    ):
        with pytest.raises(ConfigError, match=words):
            open_store(f"{root}?{options}")
    with pytest.raises(StoreError, match=r"expected YOLO's .txt files or Pascal VOC's .xml files, found none"):
        open_store(f"{root}?images=img&boxes=masks")


def test_a_manifest_that_names_a_mask_outside_of_the_data_set_is_refused(tmp_path):
    root = with_pictures(tmp_path, **{f"masks/{name}.png": b"mask" for name in NAMES})
    with open_store(f"{root}?images=img&masks=masks") as store:
        table = store.manifest.locations
        outside = pa.array([b"../secret.png", *table["file/mask"].to_pylist()[1:]], pa.large_binary())
        at = table.column_names.index("file/mask")
        forged = dataclasses.replace(store.manifest, locations=table.set_column(at, "file/mask", outside))
        with pytest.raises(StoreError, match="outside the data set"):
            type(store)(store.path, store.name, forged)


def test_pictures_and_masks_that_are_opened_as_classes_are_hinted_at(tmp_path):
    write_files(tmp_path, {"images/0.jpg": picture(0), "Masks/0.png": picture(1)})
    with pytest.warns(UserWarning, match=r"taken for classes; .* open '.*\?images=images&masks=Masks' instead"):
        open_store(tmp_path)


def test_masks_with_other_names_than_their_pictures_are_refused_with_one_of_these_names(tmp_path):
    root = with_pictures(tmp_path, **{f"masks/{name}_mask.png": b"mask" for name in NAMES})
    with pytest.raises(
        StoreError, match=r"no mask is named after a picture: expected names such as '000\.png', found '000_mask"
    ):
        open_store(f"{root}?images=img&masks=masks")


def test_a_misspelt_option_after_a_known_one_is_named(tmp_path):
    root = with_pictures(tmp_path, **{f"masks/{name}.png": b"mask" for name in NAMES})
    with pytest.raises(ConfigError, match=r"there is no option 'mask'; choose from .*, masks, "):
        open_store(f"{root}?images=img&mask=masks")
