"""Imports torchvision for comparisons, if it is installed."""

from __future__ import annotations

from typing import Any


def import_torchvision() -> Any:
    """Return torchvision, or None if it is not installed.

    A torchvision wheel built for another torch cannot load its compiled operators, and its import then fails on two
    operators that no transform uses; these are declared by hand, and the import is retried.
    """
    try:
        import torch
    except ModuleNotFoundError:
        return None
    try:
        import torchvision
    except ModuleNotFoundError:
        return None
    except RuntimeError:
        library = torch.library.Library("torchvision", "DEF")  # type: ignore[no-untyped-call]
        for name in ("nms", "qnms"):
            signature = f"{name}(Tensor boxes, Tensor scores, float threshold) -> Tensor"
            library.define(signature)  # type: ignore[no-untyped-call]
        _KEPT.append(library)
        import torchvision
    return torchvision


_KEPT: list[Any] = []  # the declarations last as long as their library object
