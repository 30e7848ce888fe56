"""Which data sets the paths of `sophon serve` are."""

import re

import pytest

from sophon.cli.paths import named_paths
from sophon.errors import ConfigError
from tests.store.datasets import write_files


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = [f"train-0000{i}-of-00003.parquet" for i in range(3)] + ["val.tar", "test.tar", "s-1.tar", "s-2.tar"]
    write_files(tmp_path, dict.fromkeys(names, b"") | {"a=b/0.jpg": b""})
    return tmp_path


TRAIN = tuple(f"train-0000{i}-of-00003.parquet" for i in range(3))


def test_shards_that_the_shell_has_written_out_are_one_data_set(folder):
    assert named_paths(TRAIN, None, None) == [("train", "train-*-of-00003.parquet")]
    assert named_paths(TRAIN[::-1], "x", "a = 1") == [("x", "train-*-of-00003.parquet?where=a = 1")]
    absolute = tuple(str(folder / name) for name in TRAIN)
    assert named_paths(absolute, None, None) == [("train", f"{folder}/train-*-of-00003.parquet")]
    assert named_paths((*TRAIN, "s-1.tar", "s-2.tar"), None, None) == [
        ("train", "train-*-of-00003.parquet"),
        ("s", "s-*.tar"),
    ]


def test_a_quoted_pattern_has_the_same_name(folder):
    assert named_paths(("train-*-of-00003.parquet",), None, None) == [("train", "train-*-of-00003.parquet")]


def test_shards_with_names_of_their_own_are_data_sets_of_their_own(folder):
    assert named_paths(("val.tar", "test.tar"), None, None) == [("val", "val.tar"), ("test", "test.tar")]
    assert named_paths(("a=s-1.tar", "b=s-2.tar"), None, None) == [("a", "s-1.tar"), ("b", "s-2.tar")]


def test_some_of_the_shards_are_a_question(folder):
    with pytest.raises(
        ConfigError, match=r"2 of the 3 files that match train-\*-of-00003.parquet are given: are they one"
    ):
        named_paths(TRAIN[:2], None, None)


@pytest.mark.parametrize(
    ("texts", "named"),
    [
        (("photos",), [("photos", "photos")]),
        (("my=photos",), [("my", "photos")]),
        (("a=b",), [("a=b", "a=b")]),  # a folder of that very name
        (("l.csv?where=split = 'a'",), [("l", "l.csv?where=split = 'a'")]),
        (("my=l.csv?where=split = 'a'",), [("my", "l.csv?where=split = 'a'")]),
        (("d/l.csv?label=x",), [("l", "d/l.csv?label=x")]),
    ],
)
def test_names_and_options(folder, texts, named):
    assert named_paths(texts, None, None) == named


@pytest.mark.parametrize(
    ("texts", "name", "where", "message"),
    [
        (("a", "b"), "x", None, "--name is for a single PATH; write NAME=PATH"),
        (("a", "b"), None, "x = 1", "--where is for a single PATH; write PATH?where=CONDITION"),
        (("x/a", "y/a"), None, None, "'a' cannot be the name of y/a"),
        (("a?where=x = 1",), None, "y = 2", "already has a condition"),
    ],
)
def test_what_cannot_be_meant(folder, texts, name, where, message):
    with pytest.raises(ConfigError, match=re.escape(message)):
        named_paths(texts, name, where)
