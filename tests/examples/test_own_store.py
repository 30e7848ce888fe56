"""The example of a store of one's own is served by a real node, and gives the samples of the folder it is made of."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import sophon
from sophon.errors import StoreError
from sophon.loader.local_server import LocalServer
from sophon.store import STORES, open_store
from tests.support.servers import RECIPE, digest, make_images

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture
def made(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folder = make_images(tmp_path / "photos", 12)
    command = [sys.executable, str(EXAMPLES / "own_store.py"), str(folder), str(tmp_path / "photos.db")]
    assert "12 photos are in" in subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return folder, tmp_path / "photos.db"


def _batches(address):
    return digest(sophon.DataLoader(address, RECIPE, batch_size=4, seed=3))


def test_a_node_serves_it_with_the_same_bits_as_the_folder(made, monkeypatch):
    folder, file = made
    path = os.environ.get("PYTHONPATH")
    monkeypatch.setenv("PYTHONPATH", f"{EXAMPLES}{os.pathsep}{path}" if path else str(EXAMPLES))
    with LocalServer(file, options=("--import", "own_store")) as server:
        assert _batches(server.url) == _batches(folder)


def test_it_keeps_the_contract_of_a_store(made, monkeypatch):
    folder, file = made
    monkeypatch.syspath_prepend(str(EXAMPLES))
    import own_store

    monkeypatch.setitem(STORES, "sqlite", own_store.SqliteStore)
    with open_store(folder) as wanted, open_store(file) as store:
        assert store.kind == "sqlite"
        assert store.manifest.fingerprint == wanted.manifest.fingerprint
        assert [store.read(i) for i in range(12)] == [wanted.read(i) for i in range(12)]
        assert store.unchanged(file, store.manifest)
        with pytest.raises(StoreError, match="has samples 0 … 11"):
            store.read(12)
        file.unlink()
        assert not store.unchanged(file, store.manifest)
        with pytest.raises(StoreError, match=r"sample 0 .* it cannot be read"):
            store.read(0)
    monkeypatch.delitem(STORES, "sqlite")
