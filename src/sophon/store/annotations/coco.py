"""COCO's JSON: one file for all pictures.

Labels are the category ids as written, as in torchvision. Pictures listed without annotations have no boxes; pictures
that are not listed are left out.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from sophon.errors import StoreError
from sophon.store.annotations.found import MOST_OBJECTS, Broken, Found, floats, integers, shown
from sophon.store.fields import BOXES, KEYPOINTS, LABELS, VALUES, Field
from sophon.store.store import describe, most_held
from sophon.units import counted, format_bytes

_MOST_CLASSES = 10_000
_OBJECT_BYTES = 36  # box, label, crowd and area
_POINT_BYTES = 16


def read_coco(path: Path, names: list[str]) -> tuple[list[int], Found]:
    """Return which of the given pictures a file lists, and their annotations.

    Args:
        path: The file.
        names: Names of the pictures, relative to their folder.

    Raises:
        StoreError: The file is not in COCO's format.
    """
    said = _load(path)
    images = _by_name(said, path)
    listed = [at for at, name in enumerate(names) if name in images]
    of_image: dict[int, list[Any]] = {}
    for one in said["annotations"]:
        if isinstance(one, dict) and isinstance(one.get("image_id"), int):  # any other entry belongs to no picture
            of_image.setdefault(one["image_id"], []).append(one)
    points = _points(said["annotations"])
    fields = [
        Field("boxes", f"{BOXES}:xywh"),
        Field("labels", LABELS),
        Field("iscrowd", LABELS),
        Field("area", VALUES),
    ]
    if points:
        fields += [Field("keypoints", f"{KEYPOINTS}:{points}"), Field("visibility", f"{LABELS}:{points}")]
    found = Found(tuple(fields), classes=_classes(said.get("categories")), columns={"image_id": []})
    _check_size(sum(len(of_image.get(images[names[at]], [])) for at in listed), points, path)
    for at in listed:
        image = images[names[at]]
        found.columns["image_id"].append(image)
        try:
            found.add(_values(of_image.get(image, []), points))
        except Broken as problem:
            found.add({}, str(problem))
    if len(listed) < len(names):
        missing = len(names) - len(listed)
        pictures, are = counted(missing, "picture", "pictures"), "is" if missing == 1 else "are"
        found.notes.append(f"{pictures} {are} not listed in {path} and {are} left out")
    if len(images) > len(listed):
        found.notes.append(f"{len(images) - len(listed):,} pictures listed in {path} do not exist")
    return listed, found


def _load(path: Path) -> dict[str, Any]:
    try:
        with path.open(encoding="utf-8") as file:
            said = json.load(file)
    except OSError as error:
        raise StoreError(f"cannot read {path}: {describe(error)}. Check its permissions.") from error
    except (ValueError, RecursionError) as error:
        raise StoreError(f"{path} is not JSON: {describe(error)}. Check that the file is complete.") from error
    if not isinstance(said, dict) or not all(isinstance(said.get(key), list) for key in ("images", "annotations")):
        raise StoreError(f'{path}: expected COCO\'s annotations, {{"images": […], "annotations": […]}}')
    return said


def _check_size(objects: int, points: int, path: Path) -> None:
    """Raise if the objects take more memory than the size of their file justifies.

    Objects without keypoints get as many as others, and pictures with the same id get the same objects.
    """
    most = most_held(path.stat().st_size)
    if objects * (_OBJECT_BYTES + _POINT_BYTES * points) > most:
        raise StoreError(
            f"{path}: {objects:,} objects with {points:,} keypoints each take more than {format_bytes(most)}, "
            "too much for a file of that size; check that every image has its own id, and remove keypoints "
            "that no class has"
        )


def _by_name(said: dict[str, Any], path: Path) -> dict[str, int]:
    found: dict[str, int] = {}
    for image in said["images"]:
        name, number = (image.get("file_name"), image.get("id")) if isinstance(image, dict) else (None, None)
        if not isinstance(name, str) or not isinstance(number, int) or number.bit_length() > 63:
            what = "an id of more than 63 bits" if isinstance(number, int) else f"{image!r:.80}"
            raise StoreError(f"{path}: expected images with file_name and id, got {what}")
        if found.setdefault(name, number) != number:
            raise StoreError(f"{path} lists {name!r:.80} twice; remove one of them")
    return found


def _several(value: object) -> str:
    return f"{len(value):,} values" if isinstance(value, list) else shown(value)


def _points(annotations: list[Any]) -> int:
    """Return how many keypoints an object has."""
    for one in annotations:
        if isinstance(one, dict) and isinstance(one.get("keypoints"), list):
            return len(one["keypoints"]) // 3
    return 0


def _classes(categories: Any) -> tuple[str, ...]:
    names = {}
    for one in categories if isinstance(categories, list) else ():
        number = one.get("id") if isinstance(one, dict) else None
        if isinstance(number, int) and 0 <= number < _MOST_CLASSES:
            names[number] = str(one.get("name", ""))
    return tuple(names.get(number, "") for number in range(max(names, default=-1) + 1))


def _values(annotations: list[dict[str, Any]], points: int) -> dict[str, bytes]:
    """Return the fields of one picture.

    Raises:
        Broken: An annotation is damaged.
    """
    if len(annotations) > MOST_OBJECTS:
        raise Broken(f"more than {MOST_OBJECTS:,} annotations")
    boxes: list[Any] = []
    for one in annotations:
        box = one.get("bbox")
        if not isinstance(box, list) or len(box) != 4:
            raise Broken(f"bbox: expected x, y, width and height, got {_several(box)}")
        boxes += box
    values = {
        "boxes": floats(boxes, "bbox"),
        "labels": integers([one.get("category_id") for one in annotations], "category_id"),
        "iscrowd": integers([one.get("iscrowd", 0) for one in annotations], "iscrowd"),
        "area": floats([one.get("area", 0.0) for one in annotations], "area"),
    }
    if points:
        places, visibility = [], []
        for one in annotations:
            said = one.get("keypoints")
            if "keypoints" not in one:
                places.append(bytes(8 * points))
                visibility.append(bytes(8 * points))
            elif not isinstance(said, list) or len(said) != 3 * points:
                raise Broken(f"keypoints: expected {points} times x, y and visibility, got {_several(said)}")
            else:
                xy = [number for at in range(0, len(said), 3) for number in said[at : at + 2]]
                places.append(floats(xy, "keypoints"))
                visibility.append(integers(said[2::3], "visibility"))
        values |= {"keypoints": b"".join(places), "visibility": b"".join(visibility)}
    return values
