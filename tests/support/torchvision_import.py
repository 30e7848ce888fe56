"""torchvision for tests: its Python part with the CPU build of torch."""

from __future__ import annotations

from typing import Any

import pytest


def import_torchvision() -> Any:
    """Return torchvision, or skip the test where it is not installed.

    The wheel's compiled operators do not load beside the CPU build of torch; its import then fails on two names that
    no transform uses, so they are declared by hand and the import is tried again.
    """
    torch = pytest.importorskip("torch")
    try:
        import torchvision
    except ModuleNotFoundError:
        pytest.skip("torchvision is not installed")
    except RuntimeError:
        library = torch.library.Library("torchvision", "DEF")
        library.define("nms(Tensor boxes, Tensor scores, float threshold) -> Tensor")
        library.define("qnms(Tensor boxes, Tensor scores, float threshold) -> Tensor")
        _KEPT.append(library)  # the declarations last as long as this object
        import torchvision
    return torchvision


_KEPT: list[Any] = []
