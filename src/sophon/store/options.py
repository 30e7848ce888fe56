"""Options that may follow the path of a data set: ``labels.csv?where=split = 'train'&label=breed``.

========  =========================================================================================
option    meaning
========  =========================================================================================
where     a condition that selects rows (`listing/where`); for stores of every kind
path      listings: the column that holds the paths
label     listings: the column that holds the labels; "none" for no labels
listing   folders: name of the listing next to the pictures; "none" for none
files     folders and tars: which files are samples, as ``.wav,.flac``; "any" for all
manifest object stores: location of the manifest, if neither next to the data nor in the cache
index     object stores: location of the window index, if not next to the data
fields    the fields of a sample, as ``image,seg.png``: in tars the endings of its members; in listings and
          Parquet files the columns that name files or hold their bytes, the picture's first
images    folders with targets: the picture folder inside the data set
masks     folders with targets: the mask folder; masks have the names of the pictures
boxes     folders with targets: COCO's JSON file, or a folder of YOLO's text files or Pascal VOC's XML files
labels    folders with volumes: the folder of label volumes, which have the names of the images
foreground  folders with volumes: the folder of foreground indexes; by default "foreground", if it exists
========  =========================================================================================

Nothing is escaped: an option ends where ``&`` and the name of another option follow.
"""

from __future__ import annotations

import os
import re
from typing import Final

from sophon.errors import ConfigError

NAMES: Final = (
    "where",
    "path",
    "label",
    "listing",
    "files",
    "fields",
    "index",
    "manifest",
    "images",
    "masks",
    "boxes",
    "labels",
    "foreground",
)
_START: Final = re.compile(rf"\?(?=(?:{'|'.join(NAMES)})=)")
_BETWEEN: Final = re.compile(rf"&(?=(?:{'|'.join(NAMES)})=)")
_SUFFIX: Final = re.compile(r"\.[\w.-]+")
_UNKNOWN: Final = re.compile(r"\?(\w+)=")
_STRAY: Final = re.compile(r"&(\w+)=")
_FOLDERS: Final = ("images", "masks", "boxes", "labels", "foreground")  # whose values have no "&" of their own

ANY: Final = "any"
NONE: Final = "none"


def split_options(text: str) -> tuple[str, dict[str, str]]:
    """Return a path without its options, and the options by name.

    Raises:
        ConfigError: An option is unknown, given twice, or empty.
    """
    start = _START.search(text)
    if "?" in text and os.path.lexists(text):  # Path.exists raises where a name is too long
        return text, {}
    if start is None:
        unknown = _UNKNOWN.search(text)
        if unknown is not None:
            raise ConfigError(f"{text!r}: there is no option {unknown[1]!r}; choose from {', '.join(NAMES)}")
        return text, {}
    options: dict[str, str] = {}
    for part in _BETWEEN.split(text[start.end() :]):
        name, _, value = part.partition("=")
        if name in options:
            raise ConfigError(f"{text!r}: option {name!r} is given twice")
        if not value.strip():
            raise ConfigError(f"{text!r}: option {name!r} is empty; leave it out, or give it a value")
        stray = _STRAY.search(value) if name in _FOLDERS else None
        if stray is not None:
            raise ConfigError(f"{text!r}: there is no option {stray[1]!r}; choose from {', '.join(NAMES)}")
        options[name] = value.strip()
    return text[: start.start()], options


def suffixes(files: str) -> tuple[str, ...]:
    """Return the file name endings selected by the option `files`, in lower case; "" for all.

    Raises:
        ConfigError: The option is not a list of file name endings.
    """
    if files == ANY:
        return ("",)
    found = tuple(part.strip().lower() for part in files.split(","))
    for suffix in found:
        if not _SUFFIX.fullmatch(suffix):
            raise ConfigError(f"files: expected file name endings such as .wav,.flac or {ANY!r}, got {files!r}")
    return found
