"""What all tests share: nothing may be left behind."""

from __future__ import annotations

import threading
import time

import pytest


@pytest.fixture(autouse=True)
def _cache_of_its_own(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.getbasetemp() / "cache"))


@pytest.fixture(autouse=True)
def _no_thread_is_left_behind():
    yield
    end_s = time.monotonic() + 5
    while left := [t.name for t in threading.enumerate() if t.name.startswith("sophon-")]:
        assert time.monotonic() < end_s, f"threads left behind: {left}"
        time.sleep(0.01)
