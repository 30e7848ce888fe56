"""One annotation file per picture: YOLO's text files and Pascal VOC's XML.

YOLO: one line ``class x y width height`` per object, with centre and size as fractions of the picture; a picture
without a file has no objects. VOC: an ``annotation`` with ``object`` elements. Its classes are sorted by name, and
number 0 is the background, as in torchvision.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final
from xml.parsers import expat

from sophon.store.annotations.found import MOST_OBJECTS, Broken, Found, floats, integers
from sophon.store.fields import BOXES, LABELS, Field
from sophon.store.store import describe

YOLO_SUFFIX: Final = ".txt"
VOC_SUFFIX: Final = ".xml"
_MOST_BYTES = 1 << 24  # bytes of one file
_BACKGROUND: Final = "__background__"
_DEEPEST: Final = 64  # elements inside of each other; a corner of a box is the fourth
_CORNERS: Final = ("xmin", "ymin", "xmax", "ymax")
_CLASS: Final = re.compile(r"[0-9]{1,18}")
_NUMBER: Final = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?")


def read_yolo(stems: list[str], files: Mapping[str, Path]) -> Found:
    """Return the annotations of pictures from text files.

    Args:
        stems: Stems of the pictures' names.
        files: The text files by stem.
    """
    found = Found((Field("boxes", f"{BOXES}:relative"), Field("labels", LABELS)))
    for stem in stems:
        try:
            found.add(_yolo_values(_text(files[stem]) if stem in files else ""))
        except Broken as problem:
            found.add({}, f"{files[stem].name}, {problem}")
    return found


def _yolo_values(text: str) -> dict[str, bytes]:
    boxes: list[float] = []
    labels: list[int] = []
    for number, line in enumerate(text.splitlines(), 1):
        parts = line.split()
        if not parts:
            continue
        if len(parts) != 5 or not _CLASS.fullmatch(parts[0]) or not all(map(_NUMBER.fullmatch, parts[1:])):
            raise Broken(f"line {number}: expected class, x, y, width and height, got {line!r:.80}")
        labels.append(int(parts[0]))
        boxes += map(float, parts[1:])
    if len(labels) > MOST_OBJECTS:
        raise Broken(f"more than {MOST_OBJECTS:,} lines")
    return {"boxes": floats(boxes, "boxes"), "labels": integers(labels, "class")}


def read_voc(stems: list[str], files: Mapping[str, Path]) -> Found:
    """Return the annotations of pictures from XML files; like `read_yolo`, but each picture needs a file."""
    found = Found((Field("boxes", f"{BOXES}:xyxy"), Field("labels", LABELS), Field("difficult", LABELS)))
    said: list[tuple[list[dict[str, str]], str]] = []
    for stem in stems:
        try:
            if stem not in files:
                raise Broken(f"there is no file {stem}{VOC_SUFFIX}")
            said.append((_objects(_text(files[stem])), ""))
        except Broken as error:
            said.append(([], str(error) if stem not in files else f"{files[stem].name}, {error}"))
    names = sorted({one["name"] for objects, _ in said for one in objects if "name" in one})
    found.classes = (_BACKGROUND, *names)
    numbers = {name: number for number, name in enumerate(found.classes)}
    for stem, (objects, problem) in zip(stems, said, strict=True):
        try:
            found.add({} if problem else _voc_values(objects, numbers), problem)
        except Broken as error:
            found.add({}, f"{files[stem].name}, {error}")
    return found


def _voc_values(objects: list[dict[str, str]], numbers: dict[str, int]) -> dict[str, bytes]:
    boxes: list[float] = []
    for number, one in enumerate(objects, 1):
        for corner in _CORNERS:
            text = one.get(corner, "")
            if not _NUMBER.fullmatch(text) or not math.isfinite(float(text)):
                raise Broken(f"object {number}: expected a number as {corner}, got {text!r:.40}")
            boxes.append(float(text))
        if "name" not in one:
            raise Broken(f"object {number} has no name")
    return {
        "boxes": floats(boxes, "bndbox"),
        "labels": integers([numbers[one["name"]] for one in objects], "name"),
        "difficult": integers([int(one.get("difficult", "0") == "1") for one in objects], "difficult"),
    }


class _Objects:
    """Collects the contents of ``annotation/object/name``, ``difficult`` and ``bndbox/*``; object parts are skipped."""

    def __init__(self) -> None:
        self.found: list[dict[str, str]] = []
        self._path: list[str] = []
        self._text: list[str] = []

    def start(self, name: str, _: Any) -> None:
        self._path.append(name)
        if len(self._path) > _DEEPEST:
            raise Broken(f"its elements are nested more than {_DEEPEST} deep")
        self._text.clear()
        if self._path == ["annotation", "object"]:
            self.found.append({})
            if len(self.found) > MOST_OBJECTS:
                raise Broken(f"more than {MOST_OBJECTS:,} objects")

    def text(self, text: str) -> None:
        self._text.append(text)

    def end(self, name: str) -> None:
        inside = self._path[:-1]
        is_wanted = inside in (["annotation", "object"], ["annotation", "object", "bndbox"])
        if is_wanted and name in ("name", "difficult", *_CORNERS):
            self.found[-1][name] = "".join(self._text).strip()
        self._path.pop()
        self._text.clear()


def _objects(text: str) -> list[dict[str, str]]:
    """Return the objects in an XML file, which may not declare entities, since they can expand without bound."""
    objects, parser = _Objects(), expat.ParserCreate()
    parser.StartElementHandler = objects.start
    parser.CharacterDataHandler = objects.text
    parser.EndElementHandler = objects.end
    parser.EntityDeclHandler = _refuse
    try:
        parser.Parse(text, True)
    except expat.ExpatError as error:
        raise Broken(f"its file is not XML: {error}") from error
    if not objects.found and "<annotation" not in text:
        raise Broken("expected a Pascal VOC annotation")
    return objects.found


def _refuse(*_: Any) -> None:
    raise Broken("its file declares entities")


def _text(path: Path) -> str:
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise Broken(f"its file has more than {_MOST_BYTES:,} bytes")
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise Broken("its file is not UTF-8 text") from error
    except OSError as error:
        raise Broken(f"its file cannot be read: {describe(error)}") from error
