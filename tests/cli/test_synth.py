import re
from functools import cache

import pytest
from click.testing import CliRunner
from PIL import Image

from sophon.bench.pictures import photo_folder
from sophon.bench.pictures.photos import PhotoSource
from sophon.cli.synth import synth
from sophon.errors import ConfigError

cached_source = cache(PhotoSource)


@pytest.fixture(autouse=True)
def _one_source_for_all_tests(monkeypatch):
    monkeypatch.setattr(photo_folder, "PhotoSource", cached_source)  # it takes a second to make and never changes


def run(*args):
    return CliRunner().invoke(synth, [str(arg) for arg in args], catch_exceptions=False)


def test_one_line_says_what_was_written(tmp_path):
    result = run(tmp_path / "photos", "--like", "openimages", "--count", 4, "--seed", 2, "--classes", 3)
    assert result.exit_code == 0
    sizes = [path.stat().st_size for path in (tmp_path / "photos").rglob("*.jpg")]
    assert len(sizes) == 4
    assert len(result.stdout.splitlines()) == 1
    pattern = (
        r"wrote 4 photos like openimages to (.+): ([\d,]+) bytes, mean ([\d,]+), median ([\d,]+); "
        r"[\d,]+ images/s after [\d.]+ s of preparation\n"
    )
    folder, total, mean, median = re.fullmatch(pattern, result.stdout).groups()
    assert folder == str(tmp_path / "photos")
    assert int(total.replace(",", "")) == sum(sizes)
    assert int(mean.replace(",", "")) == pytest.approx(sum(sizes) / 4, abs=1)
    assert int(median.replace(",", "")) == pytest.approx(sum(sorted(sizes)[1:3]) / 2, abs=1)


def test_the_folder_reads_as_an_image_folder(tmp_path):
    run(tmp_path, "--count", 5, "--classes", 2)
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_dir()) == ["class_000", "class_001"]
    for path in tmp_path.glob("class_*/*"):
        Image.open(path).convert("RGB")


def test_force_is_needed_to_write_beside_other_files(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(ConfigError, match="--force"):
        run(tmp_path, "--count", 1)
    assert run(tmp_path, "--count", 1, "--force").stdout.startswith("wrote 1 photos")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [(("--count", 0), "expected 1 or more"), (("--like", "mnist"), "imagenet, openimages")],
)
def test_arguments_that_cannot_work_are_config_errors(tmp_path, arguments, message):
    with pytest.raises(ConfigError, match=message):
        run(tmp_path / "photos", *arguments)


def test_help_shows_the_kinds_and_the_defaults():
    text = run("--help").output
    assert "imagenet|openimages" in text
    assert "256" in text
