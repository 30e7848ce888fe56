import pytest

from sophon.bench.isolation import CUTS, RECIPE, bench_isolation
from sophon.codec import legal_cuts
from sophon.errors import ConfigError
from tests.support.servers import make_images


@pytest.mark.slow
def test_threads_and_processes_are_measured_on_the_same_cuts(tmp_path):
    result = bench_isolation(make_images(tmp_path / "train", 12), 0.1)
    assert list(result) == [cut for cut in CUTS if cut in map(str, legal_cuts(RECIPE))]
    for row in result.values():
        assert set(row) == {"thread_ms", "process_ms", "thread_per_s", "process_per_s"}


def test_files_that_cannot_be_cut_are_refused_instead_of_timed(tmp_path):
    (tmp_path / "0.jpg").write_bytes(b"no picture")
    with pytest.raises(ConfigError, match=r"no sample of .* can be cut"):
        bench_isolation(tmp_path, 0.1)
