import json

import pytest
from click.testing import CliRunner

from sophon.bench.planning.replan import CUTS, kept_profile, run
from sophon.cli.bench.planning.replan import bench_replan_command
from sophon.codec.cut import RAW
from sophon.errors import ConfigError


def test_the_made_up_profile_looks_like_imagenet():
    profile = kept_profile(20_000)
    raw = profile.payload_bytes[:, profile.column(RAW)]
    assert raw.mean() == pytest.approx(110_000, rel=0.1)  # DESIGN 5: 109,576
    assert profile.sizes.mean(axis=0) == pytest.approx((382, 510), rel=0.03)
    assert {f"op {position}" for position in range(5)} < set(profile.provenance["rules"])


def test_every_size_is_one_row_whose_parts_add_up():
    done = CliRunner().invoke(bench_replan_command, ["--samples", "300", "--samples", "3000", "--json"])
    assert done.exit_code == 0, done.output
    rows = json.loads(done.stdout)["replan"]
    assert [row["samples"] for row in rows] == [300, 3000]
    for row in rows:
        parts = [row[name] for name in ("load_s", "recall_s", "estimate_s", "plan_s")]
        assert sum(parts) == pytest.approx(row["cpu_s"])
        assert row["cuts"] == len(CUTS)
        assert row["wall_s"] > 0
        assert row["epoch_s"] > 0


def test_the_table_has_the_same_rows():
    done = CliRunner().invoke(bench_replan_command, ["--samples", "300"], env={"COLUMNS": "200"})
    assert "in mid-epoch" in done.stdout
    assert "300" in done.stdout


def test_no_samples_are_refused():
    with pytest.raises(ConfigError, match="expected one or more samples"):
        run((0,))


@pytest.mark.slow
def test_imagenet_is_planned_within_three_seconds_of_cpu():
    (row,) = run()
    assert row["cpu_s"] <= 3
    assert row["again_s"] <= 3
