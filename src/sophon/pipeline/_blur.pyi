from typing import Any

import numpy as np

_Bytes = np.ndarray[Any, np.dtype[np.uint8]]
_Floats = np.ndarray[Any, np.dtype[np.float32]]

def convolve(source: _Bytes, kernel: _Floats, target: _Bytes) -> None: ...
