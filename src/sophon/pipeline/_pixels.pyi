from typing import Any

import numpy as np

_Bytes = np.ndarray[Any, np.dtype[np.uint8]]
_Floats = np.ndarray[Any, np.dtype[np.float32]]

def resize(
    source: object,
    size: tuple[int, int],
    box: tuple[int, int, int, int],
    target: object,
    to_size: tuple[int, int],
    down_first: bool,
) -> None: ...
def separate(
    source: object,
    size: tuple[int, int],
    box: tuple[int, int, int, int],
    down_first: bool,
    flip_x: bool,
    flip_y: bool,
    out: _Bytes,
) -> None: ...
def look_up(
    source: object,
    size: tuple[int, int],
    box: tuple[int, int, int, int],
    down_first: bool,
    flip_x: bool,
    flip_y: bool,
    out: _Floats,
    table: _Floats,
) -> None: ...
