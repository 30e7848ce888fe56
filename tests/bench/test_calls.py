"""A slow step of the user's own: what both loaders make of it, and whose CPU it takes."""

import pytest

from sophon.bench.calls import bench_calls
from sophon.bench.pictures.photo_folder import write_photos


@pytest.mark.slow
def test_the_cpu_of_a_node_is_counted_apart_from_that_of_loader_and_workers(tmp_path):
    write_photos(tmp_path / "photos", "imagenet", 48)
    result = bench_calls(tmp_path / "photos", 0.01, 2, 1)
    assert set(result["per_s"]) == set(result["cpu_s"]) == {"torch", "local", "node"}
    for spent in result["cpu_s"].values():
        assert spent["here"] > 0.009  # the step itself, within two ticks of the kernel's clock
    assert result["cpu_s"]["node"]["node"] > 0
    assert max(result["cpu_s"][name]["node"] for name in ("torch", "local")) < 1e-3  # it has nothing to do
