"""`sophon demo`, as a newcomer runs it, with little data."""

import json
from pathlib import Path

from click.testing import CliRunner

from sophon.cli.main import cli
from sophon.cli.start.demo import _next


def test_it_trains_with_every_policy_and_ends_with_a_sentence_and_a_report(tmp_path):
    out = tmp_path / "out"
    result = CliRunner().invoke(
        cli, ["demo", "--count", "32", "--link", "60mbit", "--epochs", "1", "--out", str(out)], catch_exceptions=False
    )
    assert result.exit_code == 0, result.output
    assert "all policies fed the model identical bits" in result.stdout
    assert str(out / "report.html") in result.stdout.replace("\n", "")
    assert "sophon demo --data DIR" in result.stdout
    assert "sophon serve DIR --name train" in result.stdout
    found = json.loads((out / "result.json").read_text())
    assert list(found["policies"]) == ["none", "all", "resize", "sophon", "optimal"]
    assert found["identical"] is True
    assert len({row["sha256"] for row in found["policies"].values()}) == 1
    assert found["gains"]["resize"]["traffic"] > 1.5
    assert found["gains"]["optimal"]["traffic"] > 0.95  # on a busy machine it may be best to send files as they are
    assert (out / "report.html").stat().st_size > 10_000


def test_a_speed_that_is_none_is_refused():
    result = CliRunner().invoke(cli, ["demo", "--link", "fast"])
    assert result.exit_code == 2
    assert "fast" in result.output


def test_it_ends_with_what_to_do_with_ones_own_folder():
    text = _next(Path("/data/my photos"))
    assert "sophon demo" not in text
    assert "sophon doctor '/data/my photos'" in text
    assert "sophon serve '/data/my photos' --name train" in text
