"""The Python of every page of docs/ runs as written, in one go from top to bottom."""

import re
from pathlib import Path

import pytest

from sophon.bench.rig.object_server import environment_of, program_of
from tests.support.torchvision_import import import_torchvision

PAGES = sorted((Path(__file__).parents[1] / "docs").glob("*.md"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_python_of_a_page_runs(page, monkeypatch):
    import_torchvision()
    text = page.read_text()
    if "import albumentations" in text:
        pytest.importorskip("albumentations")
    if "object_server" in text:
        pytest.importorskip("obstore")
        if program_of("seaweedfs") is None:
            pytest.skip("seaweedfs is not installed here")
        for name in environment_of(""):
            monkeypatch.setenv(name, "")  # set back after the page has changed it
    names: dict[str, object] = {}
    for code in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
        exec(compile(code, page.name, "exec"), names)
