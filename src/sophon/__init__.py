"""sophon: PyTorch data loading that moves preprocessing next to the data, sample by sample, bit for bit the same."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from sophon.version import __version__

if TYPE_CHECKING:
    from sophon.codec import CODECS, Cut, finish_payload, legal_cuts, make_payload
    from sophon.errors import (
        ArtifactError,
        ConfigError,
        Error,
        OpError,
        PayloadError,
        ProtocolError,
        RetryableError,
        TransportError,
    )
    from sophon.pipeline import OPS, Key, Op, Pipeline, ops, register

__all__ = [
    "CODECS",
    "OPS",
    "ArtifactError",
    "ConfigError",
    "Cut",
    "Error",
    "Key",
    "Op",
    "OpError",
    "PayloadError",
    "Pipeline",
    "ProtocolError",
    "RetryableError",
    "TransportError",
    "__version__",
    "finish_payload",
    "legal_cuts",
    "make_payload",
    "ops",
    "register",
]

_ROOMS = ("sophon.errors", "sophon.pipeline", "sophon.codec")


def __getattr__(name: str) -> object:
    # Rooms are entered when something of theirs is first used: `import sophon` costs next to nothing.
    if name in __all__:
        for room in _ROOMS:
            module = importlib.import_module(room)
            if hasattr(module, name):
                return getattr(module, name)
    raise AttributeError(f"module 'sophon' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
