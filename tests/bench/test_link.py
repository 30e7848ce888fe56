from sophon.bench.link import bench_link
from tests.support.servers import make_images

KEYS = {"flight_gb_per_s", "flight_cpu_s_per_gb", "socket_gb_per_s", "socket_cpu_s_per_gb"}


def test_the_link_is_measured_on_ones_own_files(tmp_path):
    seen = []
    result = bench_link(0.1, make_images(tmp_path / "train", 12), lambda name, *_: seen.append(name))
    assert set(result) == KEYS
    assert all(value > 0 for value in result.values())
    assert seen[:2] == ["preparing", "round 0"]
