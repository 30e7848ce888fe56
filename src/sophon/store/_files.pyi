from typing import Any

import numpy as np
from numpy.typing import NDArray

def read_into(path: bytes, space: memoryview) -> bool: ...
def read_run(
    root: bytes,
    starts: NDArray[np.int64],
    ends: NDArray[np.int64],
    names: NDArray[np.uint8],
    sizes: NDArray[np.int64],
    space: Any,
) -> tuple[int, float]: ...
def read_bytes(path: bytes, size: int) -> bytes | None: ...
