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


# Files with many tests that take longer than twenty seconds.
LONGEST = (
    "faults/test_sources.py",
    "faults/test_way.py",
    "loader/epoch/test_workers.py",
    "loader/planning/test_planner.py",
    "loader/sources/test_relays.py",
    "pipeline/test_every_transform.py",
    "pipeline/test_torchvision_bits.py",
    "server/test_budget.py",
    "tests/test_docs.py",
)


@pytest.hookimpl(tryfirst=True)  # before `-m` is looked at
def pytest_collection_modifyitems(items):
    """Leave most cases of a matrix to `make test-slow`, and begin with files that take long.

    Of a matrix every N-th case runs by default. At the end of a parallel run a file that takes long would keep
    everybody waiting: first come those known for it, then those with few tests, each of which tends to be a long one.
    """
    of_file = Counter(item.path for item in items)
    items.sort(key=lambda item: (not item.path.as_posix().endswith(LONGEST), of_file[item.path]))
    seen = Counter()
    for item in items:
        mark = item.get_closest_marker("matrix")
        if mark is not None and not item.get_closest_marker("slow"):
            of = item.nodeid.partition("[")[0]
            if seen[of] % mark.kwargs["every"]:
                item.add_marker(pytest.mark.slow)
            seen[of] += 1


def pytest_collection_finish():
    """Leave what was imported out of every later garbage collection, which else takes a third of a second."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _cache_of_its_own(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.getbasetemp() / "cache"))


@pytest.fixture(autouse=True)
def _no_thread_is_left_behind():
    yield
    wait_until(lambda: not _threads(), "threads are left")


def _threads():
    """Return the names of our threads.

    The one that watches over a connection stays for two seconds after the last call, and ends at once with the
    loader, which errors that tests have caught keep in reference cycles.
    """
    names = {thread.name for thread in threading.enumerate() if thread.name.startswith("sophon-")}
    if names == {"sophon-watch"}:
        gc.collect()
    return names


@pytest.fixture(autouse=True, scope="module")
def _no_connection_is_left_behind():
    """Else processes that later tests fork, in other files, could not connect."""
    yield
    # Errors that tests have caught hold streams in reference cycles, some until the next test of another file begins.
    wait_until(lambda: not grpc_threads() or (gc.collect() >= 0 and not grpc_threads()), "gRPC is still in use")
