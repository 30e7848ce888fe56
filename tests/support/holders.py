"""Every way in which somebody may go on looking at a part of an array."""

import numpy as np
import torch

HOLDERS = {
    "a slice": lambda array: array[5:9],
    "one row of another shape": lambda array: array.reshape(16, -1)[3],
    "another dtype": lambda array: array.view(np.int32),
    "a memoryview": memoryview,
    "a subclass": lambda array: array.view(np.recarray),
    "a tensor": torch.from_numpy,
    "a part of a tensor": lambda array: torch.from_numpy(array).view(16, -1)[3, 1:],
    "an array of a tensor of it": lambda array: torch.from_numpy(array)[7:].numpy(),
    "a storage": lambda array: torch.from_numpy(array).untyped_storage(),
    "a tensor by DLPack": torch.from_dlpack,
}


def seen(held):
    """Return the bytes that are seen through a holder."""
    return bytes(held) if isinstance(held, torch.UntypedStorage) else np.asarray(held).tobytes()
