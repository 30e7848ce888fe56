"""Conditions on rows, against SQLite, which reads the same words."""

import sqlite3

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sophon.errors import ConfigError
from sophon.store.listing.where import matches

ROWS = [
    ("train", 64, 0.5, True, "a'b"),
    ("train", 128, None, False, "50%"),
    ("val", 32, 2.0, True, None),
    ("val", None, -1.5, None, "x_y"),
    (None, 64, 1e3, False, "Train"),
    ("test", -5, 0.0, True, ""),
]
NAMES = ("split", "width", "score", "good", "note")
TABLE = pa.table({name: [row[at] for row in ROWS] for at, name in enumerate(NAMES)})


@pytest.fixture(scope="module")
def sqlite():
    base = sqlite3.connect(":memory:")
    base.execute("pragma case_sensitive_like = true")
    base.execute("create table t (row integer, split text, width integer, score real, good boolean, note text)")
    base.executemany("insert into t values (?, ?, ?, ?, ?, ?)", [(at, *row) for at, row in enumerate(ROWS)])
    yield base
    base.close()


def _rows(condition: str) -> list[int]:
    return matches(condition, TABLE).nonzero()[0].tolist()


CONDITIONS = [
    "split = 'train'",
    "split == 'train' and width >= 64",
    "split <> 'train'",
    "split != 'train' or width < 0",
    "not split = 'train'",
    "not (split = 'train' or width > 50)",
    "split in ('train', 'test')",
    "split not in ('train')",
    "width in (64, -5)",
    "width is null",
    "width is not null and score is null",
    "score > -1.5 and score <= 2",
    "width > 63.5",
    "score = 1e3",
    "good = true",
    "good = false or note = ''",
    "note = 'a''b'",
    "note like '%0%'",
    "note not like 'x_y'",
    "SPLIT IS NOT NULL".replace("SPLIT", "split"),
    "split = 'val' or split = 'train' and width = 128",
    "((split = 'val'))",
]


@pytest.mark.parametrize("condition", CONDITIONS)
def test_a_condition_means_what_it_means_in_sql(condition, sqlite):
    wanted = [row for (row,) in sqlite.execute(f"select row from t where {condition} order by row")]
    assert _rows(condition) == wanted


_SIMPLE = st.one_of(
    st.builds("{} {} {}".format, st.sampled_from(["width", "score"]), st.sampled_from(["=", "<", ">=", "!="]),
              st.sampled_from(["64", "-5", "0.5", "2", "1e3"])),
    st.builds("split {} '{}'".format, st.sampled_from(["=", "!=", "<", ">="]), st.sampled_from(["train", "val", "zz"])),
    st.sampled_from(["width is null", "note is not null", "split in ('val', 'test')", "width not in (64, 32)"]),
)  # fmt: skip


@given(
    st.recursive(
        _SIMPLE,
        lambda inner: st.one_of(
            st.builds("({}) and ({})".format, inner, inner),
            st.builds("{} or {}".format, inner, inner),
            st.builds("not ({})".format, inner),
        ),
        max_leaves=6,
    )
)
@settings(max_examples=40, deadline=None)
def test_random_conditions_mean_what_they_mean_in_sql(condition):
    base = sqlite3.connect(":memory:")
    base.execute("create table t (row integer, split text, width integer, score real, good boolean, note text)")
    base.executemany("insert into t values (?, ?, ?, ?, ?, ?)", [(at, *row) for at, row in enumerate(ROWS)])
    wanted = [row for (row,) in base.execute(f"select row from t where {condition} order by row")]
    base.close()
    assert _rows(condition) == wanted


def test_odd_names_of_columns():
    table = pa.table({"my column": [1, 2], "a.b-c": ["x", "y"], "and": [True, False]})
    assert matches("`my column` = 2", table).tolist() == [False, True]
    assert matches("a.b-c = 'x'", table).tolist() == [True, False]
    assert matches("`and` = true", table).tolist() == [True, False]


def test_texts_in_a_dictionary_column_are_texts():
    table = pa.table({"split": pa.array(["a", "b", None]).dictionary_encode()})
    assert matches("split = 'b'", table).tolist() == [False, True, False]
    assert matches("split like 'a%'", table).tolist() == [True, False, False]


@pytest.mark.parametrize(
    ("condition", "message"),
    [
        ("", "expected a condition, got nothing"),
        ("split", "expected =, !=, .* got the end"),
        ("split = ", "expected a number, a quoted string, true or false, got the end"),
        ("split = train", "expected a number, a quoted string, true or false, got 'train'"),
        ("split = 'train' width", "expected 'and', 'or' or the end, got 'width'"),
        ("(split = 'a'", r"expected '\)', got the end"),
        ("splt = 'a'", "there is no column 'splt'; choose from split, width"),
        ("width = '64'", "column 'width' holds int64 and cannot be compared with '64'"),
        ("split > 3", "column 'split' holds string and cannot be compared with 3"),
        ("width like '6%'", "'like' compares strings"),
        ("__import__('os')", r"there is no column '__import__'"),
        ("split = 'a'; drop", "cannot read '; drop'"),
        ("split = 'a", "cannot read"),
        ("(" * 60 + "width = 1" + ")" * 60, "at most 50 nested conditions"),
        ("not " * 3000 + "width = 1", "at most"),
    ],
)
def test_what_cannot_be_read_says_what_was_expected(condition, message):
    with pytest.raises(ConfigError, match=message):
        matches(condition, TABLE)
