"""Several ranks behind one link, as processes: what they predict, and what they take together."""

import pytest

from sophon.bench.pictures.photo_folder import write_photos
from sophon.bench.planning.ranks import bench_ranks
from sophon.bench.rig.namespaces import can_shape


@pytest.mark.slow
def test_every_rank_of_every_size_predicts_its_planned_epochs(tmp_path):
    write_photos(tmp_path / "photos", "imagenet", 40)
    result = bench_ranks(tmp_path / "photos", (1, 2), 20e6, 1)
    assert list(result["ranks"]) == ["1", "2"]
    assert result["ranks"]["1"]["of_first"] == 1.0
    for size, row in result["ranks"].items():
        measured, planned = row["epochs"]
        assert measured["predicted_s"] == [None] * int(size)
        assert len(planned["predicted_s"]) == len(planned["took_s"]) == int(size)
        assert sum(sum(cuts.values()) for cuts in planned["cuts"]) == row["samples"] == 40
        assert planned["epoch_s"] == max(planned["took_s"])
        assert [plan["epoch_s"] for plan in planned["planned"]] == planned["predicted_s"]


@pytest.mark.slow
@pytest.mark.skipif(not can_shape(), reason="needs root and iproute2")
def test_ranks_predict_their_epochs_and_are_together_as_fast_as_one(tmp_path):
    write_photos(tmp_path / "photos", "imagenet", 1000)
    rows = bench_ranks(tmp_path / "photos")["ranks"]
    for size in ("2", "4"):
        assert rows[size]["worst_error"] <= 0.12
        assert rows[size]["of_first"] <= 1.05
