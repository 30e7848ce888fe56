import json

import numpy as np
import pytest
from click.testing import CliRunner

from sophon.cli.bench.planning.plan import bench_plan
from sophon.cli.plan import plan
from sophon.errors import ArtifactError, ConfigError
from sophon.plan.plan import Plan
from sophon.plan.policies import POLICIES
from sophon.plan.resources import KINDS
from tests.support.instances import profile_of, random_profile

GIVEN = ["--link", "500mbit", "--storage-cores", "2", "--trainer-cores", "8", "--consumer", "1200/s"]


@pytest.fixture
def path(tmp_path):
    random_profile(np.random.default_rng(0), 400).save(tmp_path / "profile.parquet")
    return str(tmp_path / "profile.parquet")


def run(*arguments, command=plan):
    return CliRunner().invoke(command, list(map(str, arguments)), catch_exceptions=True)


def test_compare_as_json_has_every_policy_and_the_frontier(path):
    data = json.loads(run(path, *GIVEN, "--compare", "--json").stdout)
    assert list(data["policies"]) == list(POLICIES)
    for row in data["policies"].values():
        assert {"link_bytes", "epoch_s", "bottleneck", "storage_cpu_s", "trainer_cpu_s"} <= set(row)
        assert row["bottleneck"] in ("link", "storage", "trainer", "consumer")
    assert [point["storage_cores"] for point in data["frontier"]] == [0, 1, 2, 3, 4, 5]
    assert {"storage_cores", "epoch_s", "link_bytes"} <= set(data["frontier"][0])
    best = min(row["epoch_s"] for row in data["policies"].values())
    assert data["policies"]["optimal"]["epoch_s"] == best


def test_json_goes_to_a_file_and_the_tables_stay(path, tmp_path):
    result = run(path, *GIVEN, "--json", tmp_path / "out.json")
    assert result.exit_code == 0
    assert list(json.loads((tmp_path / "out.json").read_text())["policies"]) == ["optimal"]
    assert "optimal" in result.stdout


def test_tables_say_what_was_decided(path):
    result = run(path, *GIVEN, "--compare", "--frontier", "0,2,8")
    assert result.exit_code == 0
    for word in (*POLICIES, "bottleneck", "An epoch takes", "What if storage had"):
        assert word in result.stdout


def test_what_never_ends_is_null(path):
    arguments = [path, "--link", "500mbit", "--storage-cores", "0", "--trainer-cores", "8", "--compare", "--json"]
    data = json.loads(run(*arguments).stdout)
    assert data["policies"]["all"]["epoch_s"] is None
    assert data["policies"]["optimal"]["epoch_s"] > 0


def test_every_resource_has_an_option(path):
    data = json.loads(run(path, *GIVEN, "--store-reads", "1/s", "--json").stdout)
    assert data["policies"]["optimal"]["bottleneck"] == "reads"
    said = run("--help").stdout
    assert all(kind.option in said for kind in KINDS)


def test_a_plan_is_saved(path, tmp_path):
    assert run(path, *GIVEN, "--policy", "sophon", "--save", tmp_path / "plan.parquet").exit_code == 0
    saved = Plan.load(tmp_path / "plan.parquet")
    assert (saved.policy, len(saved)) == ("sophon", 400)


def test_resize_is_left_out_where_its_cut_was_not_profiled(tmp_path):
    profile_of([[9, 1]] * 4, [[0, 1]] * 4, [[0, 0]] * 4).save(tmp_path / "p.parquet")
    data = json.loads(run(tmp_path / "p.parquet", *GIVEN, "--compare", "--json").stdout)
    assert "resize" not in data["policies"]
    data = json.loads(run(tmp_path / "p.parquet", *GIVEN, "--compare", "--resize-k", "1", "--json").stdout)
    assert "resize" in data["policies"]


def test_lossy_codecs_need_permission(path):
    tight = ["--link", "1mbit", "--storage-cores", "64", "--trainer-cores", "8", "--json"]
    exact = json.loads(run(path, *tight).stdout)["policies"]["optimal"]["epoch_s"]
    lossy = json.loads(run(path, *tight, "--allow-lossy").stdout)["policies"]["optimal"]["epoch_s"]
    assert lossy < exact


@pytest.mark.parametrize(
    ("option", "value", "words"),
    [
        ("--link", "500mbps", "500mbit, 1gbit or 40MB/s"),
        ("--link", "0mbit", "not a bandwidth above zero"),
        ("--consumer", "fast", "1200/s"),
        ("--frontier", "1;2", "0,1,2,4"),
        ("--policy", "best", "optimal"),
    ],
)
def test_nonsense_is_refused_with_an_example(path, option, value, words):
    result = run(path, *GIVEN, option, value)
    assert result.exit_code == 2
    assert words in " ".join(result.output.replace("│", " ").split())


def test_our_errors_are_left_to_the_main_command(path, tmp_path):
    assert isinstance(run(path, *GIVEN, "--trainer-cores", "0").exception, ConfigError)
    assert isinstance(run(path, *GIVEN, "--policy", "resize", "--resize-k", "4").exception, ConfigError)
    (tmp_path / "broken").write_bytes(b"PAR1")
    assert isinstance(run(tmp_path / "broken", *GIVEN).exception, ArtifactError)


def test_bench_plan_writes_the_issues_json(tmp_path):
    result = run("--samples", 500, "--samples", 2000, "--json", tmp_path / "b.json", command=bench_plan)
    assert result.exit_code == 0, result.output
    data = json.loads((tmp_path / "b.json").read_text())
    assert list(data) == ["optimal", "sophon"]
    for rows in data.values():
        assert [row["samples"] for row in rows] == [500, 2000]
        assert {"samples", "seconds", "peak_bytes"} <= set(rows[0])
    assert "Planning on one core" in result.output


def test_bench_plan_prints_json_alone(tmp_path):
    result = run("--samples", 500, "--policy", "sophon", "--json", command=bench_plan)
    assert list(json.loads(result.stdout)) == ["sophon"]
