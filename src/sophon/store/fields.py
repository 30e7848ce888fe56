"""Fields: the parts of a sample. Each has a name and a kind; the kind determines what may be done to it.

The pipeline works on the first field. The others accompany it: those that a trainer asks for come with every sample,
whatever its cut.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from sophon.bundle import MOST_PARTS
from sophon.errors import ConfigError

PICTURE: Final = "picture"
"""An encoded picture."""
AUDIO: Final = "audio"
"""Encoded sound."""
VOLUME: Final = "volume"
"""An encoded volume."""
FOREGROUND: Final = "foreground"
"""Foreground of a label volume: boxes by class, as written by `sophon index`."""
BYTES: Final = "bytes"
"""Anything else; only the user's code looks inside."""
MASK: Final = "mask"
"""An encoded one-channel picture that holds the class or object of every pixel."""
BOXES: Final = "boxes"
"""float32, four numbers per box; their meaning follows a colon: ``boxes:xyxy``, or "relative" for YOLO's fractions."""
BOX_FORMATS: Final = ("xyxy", "xywh", "cxcywh", "relative")
KEYPOINTS: Final = "keypoints"
"""float32, x and y of each point; the number of points per object follows a colon: ``keypoints:17``."""
LABELS: Final = "labels"
"""int64, one per object; if each object has several, their number follows a colon."""
VALUES: Final = "values"
"""float32, one per object."""
TEXT: Final = "text"
"""UTF-8."""

SUFFIXES: Final = {
    # torchvision.datasets.folder.IMG_EXTENSIONS
    PICTURE: (".jpg", ".jpeg", ".png", ".ppm", ".bmp", ".pgm", ".tif", ".tiff", ".webp"),
    AUDIO: (".wav", ".flac"),
    VOLUME: (".nii", ".nii.gz", ".zarr.zip"),
}
"""File suffixes of each kind. By default pictures are looked for, and other kinds if there are none."""

_LONGEST_NAME = 80


def kind_by_ending(name: str) -> str | None:
    """Return a file's kind of data, judged by its extension; `name` must be lower case."""
    return next((kind for kind, endings in SUFFIXES.items() if name.endswith(endings)), None)


@dataclass(frozen=True)
class Field:
    """One named value of every sample of a data set.

    Args:
        name: Name of the field; in tar shards, the ending of its members' names.
        kind: "picture", "mask", "boxes:xywh" … A release that does not know a kind passes it on as bytes.
    """

    name: str
    kind: str = BYTES

    def __post_init__(self) -> None:
        if not 0 < len(self.name) <= _LONGEST_NAME or not self.name.isprintable():
            raise ConfigError(f"expected the name of a field, got {self.name[:80]!r}")

    def to_json(self) -> list[str]:
        """Return the field as JSON values."""
        return [self.name, self.kind]


def fields_from_json(said: Any) -> tuple[Field, ...]:
    """Return fields from their JSON form, which may come from a file or the network.

    Raises:
        ConfigError: They are not valid fields.
    """
    if not isinstance(said, list) or len(said) > MOST_PARTS:
        raise ConfigError(f"expected a list of at most {MOST_PARTS} fields")
    found = []
    for one in said:
        if not isinstance(one, list) or len(one) != 2 or not all(isinstance(text, str) for text in one):
            raise ConfigError(f"expected the name and kind of a field, got {one!r:.80}")
        found.append(Field(*one))
    if len({field.name for field in found}) < len(found):
        raise ConfigError("expected fields with distinct names")
    return tuple(found)


def named_columns(said: str) -> list[str]:
    """Return the columns named in a table's option `fields`; none if it is not given.

    Raises:
        ConfigError: The option is not a list of distinct names.
    """
    names = [part.strip() for part in said.split(",")] if said else []
    if said and (not all(names) or len(set(names)) < len(names) or not 2 <= len(names) <= MOST_PARTS):
        raise ConfigError(f"fields: expected distinct column names, the picture's first, got {said!r:.200}")
    return names


def chosen(fields: tuple[Field, ...], names: Iterable[str]) -> tuple[Field, ...]:
    """Return some of a data set's fields, always including the first, which the pipeline needs.

    Raises:
        ConfigError: There is no such field.
    """
    wanted = list(dict.fromkeys(names))
    known = {field.name: field for field in fields}
    for name in wanted:
        if name not in known:
            there_is = f"choose from {', '.join(known)}" if known else "its samples are single files"
            raise ConfigError(f"the data set has no field {name[:80]!r}; {there_is}")
    return fields[:1] + tuple(known[name] for name in wanted if name != fields[0].name)
