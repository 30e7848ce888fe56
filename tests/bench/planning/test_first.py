"""`sophon bench first`: all of it, on few photos."""

import pytest

from sophon.bench.pictures.photo_folder import write_photos
from sophon.bench.planning.first import bench_first


@pytest.mark.slow
def test_first_and_second_epoch_of_a_new_job_beside_one_without_cuts(tmp_path):
    write_photos(tmp_path / "photos", "imagenet", 240)
    row = bench_first({"photos": tmp_path / "photos"}, 5e6, repeats=1)["photos"]
    assert row["samples"] == sum(row["cuts"].values()) == 240
    assert row["second_bytes"] < row["first_bytes"] < row["none_bytes"], "it gains in its first epoch"
    assert row["first_of_second"] == pytest.approx(row["first_s"] / row["second_s"])
