"""A visit to the doctor, as a person sees it."""

from pathlib import Path

from click.testing import CliRunner

import sophon
from sophon.cli.main import cli
from sophon.doctor.finding import LEVELS
from sophon.doctor.installation import EXTENSIONS
from sophon.doctor.samples import spread
from sophon.doctor.visit import Visit
from tests.support.servers import make_images


def test_it_knows_every_extension_of_the_package():
    source = Path(sophon.__file__).parent
    built = {".".join(("sophon", *path.relative_to(source).with_suffix("").parts)) for path in source.rglob("*.pyx")}
    assert set(EXTENSIONS) == built


def test_samples_are_spread_over_a_data_set():
    assert spread(5, 64) == [0, 1, 2, 3, 4]
    assert spread(1000, 4) == [0, 250, 500, 750]


def test_every_finding_has_a_level_and_every_problem_a_remedy(tmp_path):
    found = list(Visit([str(make_images(tmp_path / "images", 4)), str(tmp_path / "nowhere")]).examine())
    assert {finding.level for finding in found} <= set(LEVELS)
    assert [finding for finding in found if finding.level in ("advice", "fault") and not finding.remedy] == []


def test_a_person_reads_what_is_wrong_and_what_to_do(tmp_path):
    done = CliRunner().invoke(cli, ["doctor", str(tmp_path / "nowhere")])
    assert done.exit_code == 1
    assert f"✗ path: there is nothing at {tmp_path / 'nowhere'}" in done.output
    assert "→ Give the folder, listing, shards or address of a data set." in done.output
    assert done.output.rstrip().endswith("must be fixed.") or "could be better" in done.output


def test_strict_fails_on_advice_too(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert CliRunner().invoke(cli, ["doctor"]).exit_code == 0
    assert CliRunner().invoke(cli, ["doctor", "--strict"]).exit_code == 1


def test_a_recipe_that_is_none_is_refused(tmp_path):
    (tmp_path / "recipe.py").write_text("recipe = 1")
    for words in ("nowhere.json", f"{tmp_path / 'recipe.py'}:nothing", "no.such.module:recipe"):
        done = CliRunner().invoke(cli, ["doctor", "--pipeline", words])
        assert done.exit_code != 0
        assert words.rpartition(":")[0] in str(done.exception) or words in str(done.exception)
