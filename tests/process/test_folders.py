"""The user's cache folder: where the variables say, in the home, or nowhere."""

import pwd
from pathlib import Path

import pytest

from sophon.process.folders import user_folder


def test_an_absolute_variable_names_the_folder(monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", "/somewhere/else")
    assert user_folder() == Path("/somewhere/else/sophon")


@pytest.mark.parametrize("value", ["", "relative", "./here", None])
def test_a_variable_that_is_missing_or_relative_is_ignored(monkeypatch, tmp_path, value):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CACHE_HOME")
    if value is not None:
        monkeypatch.setenv("XDG_CACHE_HOME", value)
    assert user_folder() == tmp_path / ".cache" / "sophon"


def test_nobodys_home_is_no_folder(monkeypatch):
    def nobody(_):
        raise KeyError("uid not found")

    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.delenv("HOME")
    monkeypatch.setattr(pwd, "getpwuid", nobody)
    assert user_folder() is None


def test_asking_makes_no_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert user_folder() == tmp_path / "sophon"
    assert list(tmp_path.iterdir()) == []
