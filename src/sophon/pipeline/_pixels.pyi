from typing import Any

import numpy as np

_Floats = np.ndarray[Any, np.dtype[np.float32]]

def resize(
    source: object,
    size: tuple[int, int],
    box: tuple[int, int, int, int],
    target: object,
    to_size: tuple[int, int],
    down_first: bool,
) -> None: ...
def separate(source: object, out: np.ndarray[Any, np.dtype[np.uint8]]) -> None: ...
def look_up(source: object, table: _Floats, out: _Floats) -> None: ...
