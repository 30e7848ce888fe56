"""How an optional extra is installed depends on where the package came from."""

import json
from importlib import metadata

import pytest

from sophon.version import PACKAGE, install_command


class _Installed:
    def __init__(self, record: str | None) -> None:
        self.record = record

    def read_text(self, name: str) -> str | None:
        assert name == "direct_url.json"
        return self.record


def _installed_from(monkeypatch, record: str | None) -> None:
    monkeypatch.setattr(metadata, "distribution", lambda _: _Installed(record))


def test_an_installation_from_a_clone_names_the_clone(monkeypatch, tmp_path):
    clone = tmp_path / "my clone"
    clone.mkdir()
    _installed_from(monkeypatch, json.dumps({"url": clone.as_uri(), "dir_info": {"editable": True}}))
    assert install_command("torch") == f'pip install "{clone}[torch]"'


@pytest.mark.parametrize(
    "record", [None, "", "no JSON", "[]", '{"url": "file:///gone/away"}', '{"url": "https://a/b.whl"}']
)
def test_any_other_installation_names_the_package(monkeypatch, record):
    _installed_from(monkeypatch, record)
    assert install_command("s3") == f'pip install "{PACKAGE}[s3]"'


def test_a_package_that_pip_does_not_know_names_the_package(monkeypatch):
    def unknown(name: str):
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "distribution", unknown)
    assert install_command("jxl") == f'pip install "{PACKAGE}[jxl]"'
