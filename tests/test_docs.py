"""The Python of every page of docs/ runs as written, in one go from top to bottom."""

import re
from pathlib import Path

import pytest

from tests.support.torchvision_import import import_torchvision

PAGES = sorted((Path(__file__).parents[1] / "docs").glob("*.md"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_python_of_a_page_runs(page):
    import_torchvision()
    text = page.read_text()
    if "import albumentations" in text:
        pytest.importorskip("albumentations")
    names: dict[str, object] = {}
    for code in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
        exec(compile(code, page.name, "exec"), names)
