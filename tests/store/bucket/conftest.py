"""Real object stores, one of each kind for all tests; where one is not installed, its tests say so."""

import pytest

from sophon.bench.rig.object_server import object_server, program_of


def _server(kind, tmp_path_factory):
    pytest.importorskip("obstore")
    if program_of(kind) is None:
        pytest.skip(f"{kind} is not installed here")
    return object_server(kind, tmp_path_factory.mktemp(kind))


@pytest.fixture(scope="session")
def seaweedfs(tmp_path_factory):
    with _server("seaweedfs", tmp_path_factory) as server:
        yield server


@pytest.fixture(scope="session")
def rclone(tmp_path_factory):
    with _server("rclone", tmp_path_factory) as server:
        yield server


@pytest.fixture
def use(monkeypatch, tmp_path):
    """Make a server the one that addresses lead to."""
    monkeypatch.setenv("HOME", str(tmp_path))  # nobody's own profile

    def use(server):
        for name, value in server.environment.items():
            monkeypatch.setenv(name, value)
        return server

    return use
