"""Checks further fields of samples: whether masks fit the pictures, boxes lie inside them, and nothing is missing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np

from sophon.bundle import unpack
from sophon.codec.cut import RAW
from sophon.codec.targets import read_mask
from sophon.doctor.finding import ADVICE, FAULT, FINE, Finding
from sophon.doctor.samples import request_for
from sophon.errors import Error, OpError, PayloadError
from sophon.link.transport import Opened, Transport
from sophon.pipeline import Pipeline
from sophon.pipeline.ops.decode import open_picture
from sophon.store.fields import BOXES, LABELS, MASK, PICTURE, Field

_PATIENCE_S: Final = 30.0
_NAMED: Final = 3  # number of samples to name
_REQUEST: Final = 8
_SLACK: Final = 1.0  # pixels by which a box may stick out, as many do because of rounding
_IGNORED: Final = 255  # marks pixels without a class in Pascal VOC's masks and many others

_REMEDIES: Final = {
    "missing": "Add the missing fields, or train with on_error='substitute' or 'skip'.",
    "damaged": "Replace those files, or train with on_error='substitute' or 'skip'.",
    "unfit": "A mask must hold class numbers in one channel: save it in mode L or P, not as colours.",
    "size": "A mask must have the same size as its picture: recreate it, or check that the names match.",
    "outside": "Clip them, or put ClampBoundingBoxes and SanitizeBoundingBoxes into the recipe.",
    "flat": "Remove them, or put SanitizeBoundingBoxes into the recipe.",
    "count": "Each box needs a label: fix the annotations.",
}
_WORDS: Final = {
    "missing": "lack a field",
    "damaged": "have a field that cannot be read",
    "unfit": "have a mask that training would refuse",
    "size": "have a mask that differs in size from the picture",
    "outside": "have boxes that reach beyond the picture",
    "flat": "have boxes without an area",
    "count": "have more or fewer labels than boxes",
}
_FAULTS: Final = ("missing", "damaged", "unfit", "size", "count")


@dataclass
class _Seen:
    """What was seen of samples.

    Attributes:
        looked: Number of samples examined.
        wrong: Problems of samples, by kind.
        numbers: For each mask field, the least number, the greatest, and the greatest that is not `_IGNORED`.
    """

    looked: int = 0
    wrong: dict[str, dict[int, str]] = field(default_factory=dict)
    numbers: dict[str, tuple[int, int, int]] = field(default_factory=dict)

    def note(self, what: str, sample: int, text: str) -> None:
        """Record the first problem of a kind in a sample."""
        self.wrong.setdefault(what, {}).setdefault(sample, text)

    def count(self, name: str, mask: np.ndarray) -> None:
        """Record the numbers in a mask."""
        classes = mask[mask != _IGNORED]
        found = int(mask.min()), int(mask.max()), int(classes.max(initial=0))
        least, most, most_classes = self.numbers.get(name, found)
        self.numbers[name] = min(least, found[0]), max(most, found[1]), max(most_classes, found[2])

    def in_words(self) -> str:
        """Return the range of numbers in masks; "" if there were none."""
        texts = []
        for name, (least, most, most_classes) in self.numbers.items():
            apart = most == _IGNORED and most_classes < _IGNORED - 1 and least < most
            shown = f"{least} … {most_classes} and {most}" if apart else f"{least} … {most}"
            texts.append(f"; numbers in {name}: {shown}")
        return "".join(texts)


def examine_fields(
    about: str, transport: Transport, opened: Opened, pipeline: Pipeline, chosen: Sequence[int]
) -> Iterator[Finding]:
    """Check all fields of some samples, if samples have several.

    Args:
        about: The place.
        transport: Transport to the place.
        opened: Description of the data set.
        pipeline: Needed only to form requests.
        chosen: Indexes of the samples.
    """
    if len(opened.fields) < 2:
        return
    seen = _Seen()
    others = tuple(one.name for one in opened.fields[1:])
    for start in range(0, len(chosen), _REQUEST):
        group = list(chosen[start : start + _REQUEST])
        request = replace(request_for(opened, pipeline, group, RAW), fields=others)
        try:
            for reply in transport.fetch(request, _PATIENCE_S):
                sample = group[reply.position]
                seen.looked += 1
                if reply.error is not None:
                    seen.note("missing", sample, str(reply.error))
                else:
                    _look(seen, sample, opened.fields, bytes(reply.payload))
        except Error as error:
            yield Finding(about, "fields", FAULT, f"samples cannot be read with their fields: {error}")
            return
    names = ", ".join(one.name for one in opened.fields)
    if not seen.wrong:
        text = f"{seen.looked} of {opened.samples:,} samples examined: {names} fit together{seen.in_words()}"
        yield Finding(about, "fields", FINE, text)
    for what, samples in seen.wrong.items():
        named = "; ".join(f"sample {sample}: {text}" for sample, text in sorted(samples.items())[:_NAMED])
        level = FAULT if what in _FAULTS else ADVICE
        text = f"{len(samples)} of {seen.looked} samples {_WORDS[what]}: {named}"
        yield Finding(about, "fields", level, text, _REMEDIES[what])


def _look(seen: _Seen, sample: int, fields: Sequence[Field], data: bytes) -> None:
    """Examine one sample."""
    try:
        parts = dict(zip(fields, map(bytes, unpack(data, len(fields))), strict=True))
    except PayloadError as error:
        seen.note("damaged", sample, str(error))
        return
    sizes: dict[str, tuple[int, int]] = {}
    for one, part in parts.items():
        if one.kind in (PICTURE, MASK):
            try:
                with open_picture(part) as picture:
                    sizes[one.name] = picture.size
            except OpError as error:
                seen.note("damaged", sample, f"{one.name}: {error.problem}")
    size = sizes.get(fields[0].name)
    if size is None:
        return  # the picture cannot be read, which is reported elsewhere
    for one, part in parts.items():
        if one.kind == MASK and one.name in sizes:
            _look_at_mask(seen, sample, one.name, part, sizes[one.name], size)
    _look_at_boxes(seen, sample, parts, size)


def _look_at_mask(
    seen: _Seen, sample: int, name: str, data: bytes, size: tuple[int, int], expected: tuple[int, int]
) -> None:
    """Decode a mask as the loader does."""
    if size != expected:
        there, here = ("{} x {}".format(*one) for one in (size, expected))
        seen.note("size", sample, f"{name} has {there} pixels, the picture has {here}")
        return
    try:
        seen.count(name, read_mask(data, (size[1], size[0])))
    except OpError as error:
        what = "damaged" if isinstance(error.__cause__, Exception) else "unfit"
        seen.note(what, sample, f"{name}: {error.problem}")


def _look_at_boxes(seen: _Seen, sample: int, parts: dict[Field, bytes], size: tuple[int, int]) -> None:
    count: int | None = None
    for one, part in parts.items():
        kind, _, form = one.kind.partition(":")
        if kind == BOXES and len(part) % 16 == 0:
            boxes = _corners(np.frombuffer(part, "<f4").reshape(-1, 4).astype(float), form, size)
            count = len(boxes)
            for number, (left, top, right, bottom) in enumerate(boxes.tolist()):
                if left < -_SLACK or top < -_SLACK or right > size[0] + _SLACK or bottom > size[1] + _SLACK:
                    text = f"{one.name} {number}: {left:g}, {top:g} to {right:g}, {bottom:g} in {size[0]} x {size[1]}"
                    seen.note("outside", sample, text)
                if right <= left or bottom <= top:
                    seen.note("flat", sample, f"{one.name} {number}: {left:g}, {top:g} to {right:g}, {bottom:g}")
        elif kind == LABELS and not form and one.name == "labels" and count is not None and len(part) // 8 != count:
            seen.note("count", sample, f"{len(part) // 8} labels and {count} boxes")


def _corners(boxes: np.ndarray, form: str, size: tuple[int, int]) -> np.ndarray:
    """Return boxes as left, top, right and bottom, in pixels."""
    if form == "relative":
        boxes = boxes * np.array([*size, *size], float)
    if form in ("relative", "cxcywh"):
        half = boxes[:, 2:] / 2
        return np.hstack([boxes[:, :2] - half, boxes[:, :2] + half])
    return np.hstack([boxes[:, :2], boxes[:, :2] + boxes[:, 2:]]) if form == "xywh" else boxes
