"""The benchmarks of object stores run, and say what they promise to."""

import pytest

from sophon.bench.bucket.manifest import bench_manifest
from sophon.bench.rig.object_server import program_of
from tests.support.pictures import encode, scene


@pytest.mark.slow
def test_a_large_data_set_is_opened_again():
    result = bench_manifest(5_000)
    assert {"rows", "reopen_s", "peak_bytes", "order_s", "state_bytes"} <= set(result)
    assert result["rows"] == 5_000
    assert result["state_bytes"] < 1_000


@pytest.mark.slow
def test_requests_and_bytes_are_compared(tmp_path):
    pytest.importorskip("obstore")
    if program_of("seaweedfs") is None:
        pytest.skip("seaweedfs is not installed here")
    from sophon.bench.bucket.store import bench_store

    (tmp_path / "photos").mkdir()
    for number in range(12):  # of a kind that windows can be cut from
        file = tmp_path / "photos" / f"{number:02}.jpg"
        file.write_bytes(encode(scene(300, 400, seed=number), "jpeg 4:2:0"))
    result = bench_store(tmp_path / "photos", objects=40, rounds=1, with_plan=True)
    wanted = {
        "sophon_per_s",
        "obstore_per_s",
        "boto3_per_s",
        "fsspec_per_s",
        "sophon_cpu_ms",
        "obstore_cpu_ms",
        "bucket_bytes",
    }
    assert wanted <= set(result)
    assert set(result["bucket_bytes"]) == {"whole", "band", "window"}
    assert result["bucket_bytes"]["whole"] == result["file_bytes"]
    assert result["link_gain"]["bucket"] == pytest.approx(result["link_gain"]["folder"], rel=0.01)


@pytest.mark.slow
def test_a_listing_finds_every_object():
    pytest.importorskip("obstore")
    if program_of("seaweedfs") is None:
        pytest.skip("seaweedfs is not installed here")
    assert bench_manifest(1_000, objects=2_500)["objects"] == 2_500
