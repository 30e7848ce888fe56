"""timm's transforms for tests, which are skipped where timm is not installed."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from tests.support.torchvision_import import import_torchvision


def import_timm_transforms() -> ModuleType:
    """Return the module ``timm.data.transforms`` alone, without the models that ``import timm`` loads; or skip."""
    import_torchvision()
    package = importlib.util.find_spec("timm")
    if package is None or package.origin is None:
        pytest.skip("timm is not installed", allow_module_level=True)
    file = Path(package.origin).parent / "data" / "transforms.py"
    spec = importlib.util.spec_from_file_location("timm_data_transforms", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
