"""`sophon bench kinds`: kinds of training over a slow link."""

import json

import pytest
from click.testing import CliRunner

import sophon
from sophon.bench.presets import recipe_named
from sophon.bench.recipes.kinds import KINDS, USUAL, bench_kinds
from sophon.cli.bench.kinds import bench_kinds_command
from sophon.errors import ConfigError
from sophon.loader.objects import as_pipeline
from tests.support.servers import make_images


@pytest.mark.parametrize("name", KINDS)
def test_every_kind_can_be_cut_before_and_after_its_crops(name):
    pipeline = as_pipeline(recipe_named(KINDS[name].recipe))
    if KINDS[name].options:
        pipeline = pipeline.along([("boxes", "boxes:xywh")])
    cuts = set(map(str, sophon.legal_cuts(pipeline)))
    codec = {"encoded": "webp", "audio": "flac", "volume": "zstd"}[_data_of(pipeline)]
    assert {"0:raw", "0:window", f"2:{codec}", f"3:{codec}"} <= cuts


def _data_of(pipeline):
    return next((kind for kind in ("audio", "volume") if pipeline.specs[1].kind.value == kind), "encoded")


def test_an_unknown_kind_is_refused_before_anything_is_started(tmp_path):
    with pytest.raises(ConfigError, match="no kind 'speech'; choose from simclr, dino, segmentation, detection"):
        bench_kinds(tmp_path, ["speech"])


@pytest.mark.slow
def test_sounds_are_made_up_where_there_are_none_and_a_second_of_five_is_sent(tmp_path):
    (tmp_path / "none").mkdir()
    rows = bench_kinds(tmp_path / "none", ["wav", "flac"], 250_000.0, 1)
    assert rows["wav"]["gain"] >= 4.5
    assert rows["flac"]["gain"] >= 4.0


@pytest.mark.slow
def test_the_table_has_a_row_for_each_kind(tmp_path):
    images = make_images(tmp_path / "photos", 24, classes=0)
    told = ["--data", str(images), "--link", "2mbit", "--repeats", "1", "--json", str(tmp_path / "out.json")]
    result = CliRunner().invoke(bench_kinds_command, told, catch_exceptions=False)
    assert result.exit_code == 0
    rows = json.loads((tmp_path / "out.json").read_text())
    assert list(rows) == list(USUAL)
    raw_bytes = sum(path.stat().st_size for path in images.iterdir())
    for name, row in rows.items():
        assert {"raw_bytes", "sent_bytes", "gain", "storage_cpu_ms", "trainer_cpu_ms"} <= set(row)
        assert row["raw_bytes"] > raw_bytes if KINDS[name].options else row["raw_bytes"] == raw_bytes
        assert row["gain"] == pytest.approx(row["raw_bytes"] / row["sent_bytes"], rel=1e-4)
        assert sum(row["cuts"].values()) == 24


def test_the_command_offers_what_there_is():
    (option,) = [one for one in bench_kinds_command.params if one.name == "names"]
    assert tuple(option.type.choices) == tuple(KINDS)
    assert option.default == USUAL
