"""Turns matplotlib's SVG into part of an HTML page.

Colours become CSS variables, so one drawing serves light and dark pages and print; text takes the page's font; unused
ids are removed, and the salt with which the others were made keeps them distinct between figures.
"""

from __future__ import annotations

import re
from xml.etree import ElementTree

from sophon.report.palette import TINTS

_SVG = "http://www.w3.org/2000/svg"
_LINK = "{http://www.w3.org/1999/xlink}href"
_NAMES = {colours[0]: name for name, colours in TINTS.items()}
_COLOUR = re.compile(r"#[0-9a-f]{6}\b")
_FONT = re.compile(r"font-family: [^;]*;?\s*")
_SPACE = re.compile(r"\s+")


def inline(source: str, shape: str) -> str:
    """Return an ``<svg>`` element for a page.

    Args:
        source: The SVG from matplotlib.
        shape: CSS class of the element.
    """
    root = ElementTree.fromstring(source.split("?>", 1)[1].split(">", 1)[1])  # matplotlib's own prolog and doctype
    used = {link.removeprefix("#") for link in _links(root)}
    parents = {child: parent for parent in root.iter() for child in parent}
    for element in list(root.iter()):
        tag = element.tag.removeprefix(f"{{{_SVG}}}")
        if (tag == "metadata" or _is_style(element)) and element in parents:
            parents[element].remove(element)
            continue
        element.tag = tag
        if element.get("id") not in used:
            element.attrib.pop("id", None)
        if (look := element.get("style")) is not None:
            element.set("style", _COLOUR.sub(_variable, _FONT.sub("", look)).strip())
        if (link := element.attrib.pop(_LINK, None)) is not None:
            element.set("href", link)
        if (path := element.get("d")) is not None:
            element.set("d", _SPACE.sub(" ", path).strip())
        if tag != "text":
            element.text = None
        element.tail = None
    for name in ("width", "height", "version"):
        root.attrib.pop(name, None)
    root.set("class", shape)
    root.set("aria-hidden", "true")  # the surrounding figure says what it shows
    return ElementTree.tostring(root, encoding="unicode", short_empty_elements=True)


def _links(root: ElementTree.Element) -> list[str]:
    found = []
    for element in root.iter():
        found += [element.get(_LINK, "")]
        found += re.findall(r"url\((#[^)]+)\)", " ".join(element.attrib.values()))
    return found


def _is_style(element: ElementTree.Element) -> bool:
    # `<defs><style>*{…}</style></defs>` would reach every SVG of the page; the page has the same rule for its figures.
    return element.tag == f"{{{_SVG}}}style"


def _variable(found: re.Match[str]) -> str:
    name = _NAMES.get(found[0])
    return found[0] if name is None else f"var(--{name})"
