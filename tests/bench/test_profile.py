"""`sophon bench profile` on a handful of files."""

from sophon.bench.profile import bench_profile
from tests.support.servers import make_images


def test_first_epochs_with_and_without_profiling_are_compared(tmp_path):
    result = bench_profile(make_images(tmp_path / "images", 24), 0.1)
    assert result["samples"] == 24
    for name in ("plain", "timing", "profiling"):
        assert result[f"{name}_s"] > 0
        assert result[f"{name}_cpu_s"] > 0
    assert result["profiling_overhead"] > -1
    assert result["timing_overhead"] > -1
