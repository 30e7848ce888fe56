"""The `window` codec: a JPEG cut down to the MCUs that the next ops need, with the same pixels."""

from sophon.codec.window.blocks import Box, NeededBlocks, needed
from sophon.codec.window.header import Component, Header, parse
from sophon.codec.window.jpeg import Index, Window, available, build_index, cut
from sophon.codec.window.refusal import NotWindowable

__all__ = [
    "Box",
    "Component",
    "Header",
    "Index",
    "NeededBlocks",
    "NotWindowable",
    "Window",
    "available",
    "build_index",
    "cut",
    "needed",
    "parse",
]
