"""The user's cache folder: where the variables say, in the home, or nowhere."""

import os
import pwd
from pathlib import Path

import pytest

from sophon.process.folders import make_private, not_private, secret_key, user_folder


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


def test_a_folder_that_is_made_is_this_users_alone(tmp_path):
    before = os.umask(0)
    try:
        make_private(tmp_path / "a" / "b")
    finally:
        os.umask(before)
    for folder in (tmp_path / "a", tmp_path / "a" / "b"):
        assert not_private(folder) is None


@pytest.mark.parametrize("mode", [0o777, 0o1777, 0o770, 0o702])
def test_a_folder_that_others_may_write_to_is_told_of(tmp_path, mode):
    tmp_path.chmod(mode)
    assert f"chmod go-w {tmp_path}" in not_private(tmp_path)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_a_folder_of_another_user_is_told_of(tmp_path):
    os.chown(tmp_path, 12345, 12345)
    assert "belongs to another user (uid 12345)" in not_private(tmp_path)


def test_a_key_is_made_once_and_is_nobody_elses(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    key = secret_key()
    assert len(key) == 32
    assert secret_key() == key
    file = tmp_path / "sophon" / "key"
    assert file.read_bytes() == key
    assert file.stat().st_mode & 0o077 == 0
    assert [path.name for path in file.parent.iterdir()] == ["key"]
    monkeypatch.setenv("SOPHON_KEY_FILE", str(tmp_path / "named" / "key"))
    assert secret_key() not in (None, key)


@pytest.mark.parametrize("spoil", [lambda file: file.chmod(0o666), lambda file: file.parent.chmod(0o777)])
def test_a_key_that_others_may_have_put_there_is_none(tmp_path, monkeypatch, spoil):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert secret_key() is not None
    spoil(tmp_path / "sophon" / "key")
    assert secret_key() is None
