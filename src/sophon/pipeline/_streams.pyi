from typing import Any

import numpy as np
from numpy.typing import NDArray

def philox(
    count: int,
    position: int,
    samples: NDArray[np.uint64],
    seed: int,
    epochs: NDArray[np.uint64],
    out: NDArray[Any],
) -> None: ...
