"""torchvision for tests, which are skipped where it is not installed."""

from __future__ import annotations

from typing import Any

import pytest

from sophon.bench import torchvision_import


def import_torchvision() -> Any:
    """Return torchvision or skip the module."""
    torchvision = torchvision_import.import_torchvision()
    if torchvision is None:
        pytest.skip("torchvision is not installed", allow_module_level=True)
    return torchvision
