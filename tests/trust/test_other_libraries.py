"""A node that comes back with other libraries is asked for nothing that they decide: never other tensors."""

from pathlib import Path

import pytest

import sophon
from tests.support.servers import RECIPE, digest, make_images, serve

REPOSITORY = str(Path(__file__).parents[2])


def test_a_node_that_comes_back_with_other_libraries_changes_no_bit(tmp_path, monkeypatch):
    monkeypatch.chdir(REPOSITORY)
    images = make_images(tmp_path / "train", 24)
    local = sophon.DataLoader(images, RECIPE, batch_size=4, shuffle=True, seed=3)
    expected = [digest(local) for _ in range(3)]
    with serve(images) as server:
        loader = sophon.DataLoader(
            server.url, RECIPE, batch_size=4, shuffle=True, seed=3, policy="3:raw", faults=sophon.Faults(deadline_s=30)
        )
        found = [digest(loader)]
    assert loader.stats.to_dict()["cuts"]["3:raw"] > 0
    assert found == expected[:1]
    with serve(images, port=server.port, options=("--import", "tests.support.other_libraries")):
        with pytest.raises(sophon.ConfigError, match=r"other libraries .*99\.0\.0.* start the run again"):
            digest(loader)
        raw = sophon.DataLoader(server.url, RECIPE, batch_size=4, shuffle=True, seed=3, policy="none")
        assert digest(raw) == expected[0]
