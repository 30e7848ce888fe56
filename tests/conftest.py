"""What all tests share: nothing may be left behind."""

from __future__ import annotations

import gc
import os
import threading

import pytest
from hypothesis import HealthCheck, settings

from sophon.link.grpc_fork import grpc_threads
from tests.support.waiting import wait_until

os.environ["NO_ALBUMENTATIONS_UPDATE"] = "1"  # its import would ask the network for a newer release

# How long an example takes says something of the machine, and nothing of the code.
settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")


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
