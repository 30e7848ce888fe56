"""What all tests share: nothing may be left behind."""

from __future__ import annotations

import gc
import os
import threading
from collections import Counter

import pytest
from hypothesis import HealthCheck, settings

from sophon.link.grpc_fork import grpc_threads
from sophon.loader import local_server
from tests.support.waiting import wait_until
from tests.support.warm import SUBPROCESS

os.environ["NO_ALBUMENTATIONS_UPDATE"] = "1"  # its import would ask the network for a newer release

local_server.subprocess = SUBPROCESS  # type: ignore[assignment]  # servers are forked; see `warm`

# How long an example takes says something of the machine, and nothing of the code.
settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")


@pytest.hookimpl(tryfirst=True)  # before `-m` is looked at
def pytest_collection_modifyitems(items):
    """Leave most cases of a matrix to `make test-slow`, and begin with files that have few tests.

    Of a matrix every N-th case runs by default. Files with few tests hold the long ones; at the end of a parallel run
    one of them would keep everybody waiting.
    """
    of_file = Counter(item.path for item in items)
    items.sort(key=lambda item: of_file[item.path])
    seen = Counter()
    for item in items:
        mark = item.get_closest_marker("matrix")
        if mark is not None and not item.get_closest_marker("slow"):
            of = item.nodeid.partition("[")[0]
            if seen[of] % mark.kwargs["every"]:
                item.add_marker(pytest.mark.slow)
            seen[of] += 1


@pytest.fixture(autouse=True)
def _cache_of_its_own(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.getbasetemp() / "cache"))


@pytest.fixture(autouse=True)
def _no_thread_is_left_behind():
    yield
    wait_until(lambda: not [t.name for t in threading.enumerate() if t.name.startswith("sophon-")], "threads are left")


@pytest.fixture(autouse=True, scope="module")
def _no_connection_is_left_behind():
    """Else processes that later tests fork, in other files, could not connect."""
    yield
    # Errors that tests have caught hold streams in reference cycles, some until the next test of another file begins.
    wait_until(lambda: not grpc_threads() or (gc.collect() >= 0 and not grpc_threads()), "gRPC is still in use")
