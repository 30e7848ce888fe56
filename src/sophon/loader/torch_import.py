"""Imports torch if it is installed; NumPy batches (`output="numpy"`) do not need it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, TypeVar

from sophon.errors import ConfigError
from sophon.version import install_command

if TYPE_CHECKING:
    import torch
    from torch.utils.data import Dataset, Sampler
else:
    try:
        import torch
        from torch.utils.data import Dataset, Sampler
    except ModuleNotFoundError as missing:
        if missing.name != "torch":
            raise
        torch = None
        _Item = TypeVar("_Item")

        class Dataset(Generic[_Item]):
            """Stands in for torch's class, which has no behaviour of its own."""

        class Sampler(Generic[_Item]):
            """Stands in for torch's class, which has no behaviour of its own."""


__all__ = ["Dataset", "Sampler", "in_worker", "need_torch", "torch"]


def in_worker() -> bool:
    """Return whether this is a worker process of torch's loader."""
    return torch is not None and torch.utils.data.get_worker_info() is not None


def need_torch(what: str) -> Any:
    """Return torch, or raise an error that says what needs it."""
    if torch is None:
        raise ConfigError(f'{what} needs torch; run {install_command("torch")}, or use output="numpy"')
    return torch
