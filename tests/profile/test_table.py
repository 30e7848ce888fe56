import numpy as np
import pytest

from sophon.codec.cut import Cut
from sophon.errors import ArtifactError, ConfigError
from sophon.profile.table import Profile, Quality
from tests.support.instances import CUTS, profile_of, random_profile

ONE = ([[10.0, 5.0]], [[0.0, 0.1]], [[0.2, 0.1]])


def changed(table, sample, column, value):
    tables = [np.array(each) for each in ONE]
    tables[table][sample, column] = value
    return tables


def test_a_table_is_one_contiguous_column_per_cut_and_cannot_be_written():
    profile = profile_of(*ONE)
    assert profile.payload_bytes[:, 1].flags.c_contiguous
    assert profile.payload_bytes.dtype == profile.storage_s.dtype == np.float32
    with pytest.raises(ValueError, match="read-only"):
        profile.payload_bytes[0, 0] = 1
    with pytest.raises(AttributeError):
        profile.cuts = ()


def test_column_ordered_float32_tables_are_not_copied():
    tables = [np.zeros((100, 2), np.float32, order="F") for _ in range(3)]
    profile = profile_of(*tables)
    assert np.shares_memory(profile.payload_bytes, tables[0])
    assert tables[0].flags.writeable  # the caller's array stays the caller's


@pytest.mark.parametrize("value", [np.nan, -1.0, -np.inf])
@pytest.mark.parametrize("table", [0, 1, 2])
def test_nan_and_negative_numbers_are_refused_by_place(table, value):
    with pytest.raises(ConfigError, match=r"sample 0, cut 1:raw: \w+ is .*; it must be zero or more: measure"):
        profile_of(*changed(table, 0, 1, value))


def test_an_illegal_cut_is_infinite_in_all_three_tables():
    with pytest.raises(ConfigError, match="only some of payload_bytes, storage_s, trainer_s are infinite"):
        profile_of(*changed(0, 0, 1, np.inf))
    gone = [[1, np.inf], [1, 2]]
    profile = profile_of(gone, gone, gone)
    assert profile.has_illegal(1)
    assert not profile.has_illegal(0)


def test_raw_bytes_can_always_be_sent():
    gone = [[np.inf, 1], [1, 2]]
    with pytest.raises(ConfigError, match="sample 0 has no 0:raw cut"):
        profile_of(gone, gone, gone)


def test_an_empty_profile_is_refused():
    with pytest.raises(ConfigError, match="the profile is empty; profile at least one sample"):
        profile_of(np.empty((0, 2)), np.empty((0, 2)), np.empty((0, 2)))


@pytest.mark.parametrize(
    "cuts",
    [
        (),
        (Cut(1, "raw"), Cut(2, "raw")),
        (Cut(0, "raw"), Cut(0, "raw")),
        (Cut(0, "raw"), Cut(-1, "raw")),
        (Cut(0, "raw"), Cut(1, "a/b")),
        ("0:raw", "1:raw"),
    ],
)
def test_impossible_cuts_are_refused(cuts):
    with pytest.raises(ConfigError, match=r"different cuts, 0:raw among them|columns"):
        Profile(cuts, *ONE)


def test_more_cuts_than_a_byte_can_name_are_refused():
    cuts = tuple(Cut(k, "raw") for k in range(257))
    with pytest.raises(ConfigError, match="1 to 256"):
        Profile(cuts, *[np.zeros((1, 257))] * 3)


def test_tables_that_do_not_fit_each_other_are_refused():
    with pytest.raises(ConfigError, match="they must agree"):
        Profile((Cut(0), Cut(1)), np.zeros((2, 2)), np.zeros((3, 2)), np.zeros((2, 2)))
    with pytest.raises(ConfigError, match="one row per sample and 2 columns"):
        Profile((Cut(0), Cut(1)), np.zeros((2, 3)), np.zeros((2, 2)), np.zeros((2, 2)))
    with pytest.raises(ConfigError, match="1 qualities for 2 cuts"):
        Profile((Cut(0), Cut(1)), *ONE, quality=(Quality(1),))
    with pytest.raises(ConfigError, match="a negative side"):
        Profile((Cut(0),), *(np.ones((2, 1)),) * 3, sizes=np.array([[1, 1], [-1, 1]]))


def test_columns_are_found_by_cut():
    profile = random_profile(np.random.default_rng(0), 5)
    assert profile.column(Cut(2, "webp")) == 4
    assert [profile.cuts[column].k for column in profile.raw_columns()] == [0, 1, 2, 5]
    with pytest.raises(ConfigError, match="cut 9:raw was not profiled; choose one of 0:raw, 0:window"):
        profile.column(Cut(9, "raw"))


def test_a_saved_profile_is_loaded_as_it_was(tmp_path):
    rng = np.random.default_rng(0)
    base = random_profile(rng, 500, illegal=0.2)
    profile = Profile(
        CUTS,
        base.payload_bytes,
        base.storage_s,
        base.trainer_s,
        pipeline="p1",
        dataset="d1",
        measured=rng.random((500, len(CUTS))) < 0.05,
        quality=tuple(Quality(25, 0.01 * i, 0.02, 0.03) for i in range(len(CUTS))),
        provenance={"host": "here", "epochs": 1},
    )
    profile.save(tmp_path / "p.parquet")
    found = Profile.load(tmp_path / "p.parquet")
    assert found.cuts == profile.cuts
    assert found.fingerprints == {"pipeline": "p1", "dataset": "d1"}
    assert found.quality == profile.quality
    assert found.provenance == profile.provenance
    for name in ("payload_bytes", "storage_s", "trainer_s", "measured"):
        assert (getattr(found, name) == getattr(profile, name)).all()


def test_a_profile_without_predictions_has_no_mask(tmp_path):
    profile_of(*ONE).save(tmp_path / "p.parquet")
    assert Profile.load(tmp_path / "p.parquet").measured is None


def test_a_file_with_impossible_numbers_is_refused_by_name(tmp_path):
    profile = profile_of(*ONE)
    broken = np.array([[np.nan, 1]], np.float32, order="F")
    object.__setattr__(profile, "trainer_s", broken)
    profile.save(tmp_path / "p.parquet")
    with pytest.raises(ArtifactError, match=r"p\.parquet: sample 0, cut 0:raw: trainer_s is nan"):
        Profile.load(tmp_path / "p.parquet")


def test_a_profile_of_another_job_is_refused_with_both_fingerprints():
    profile = profile_of(*ONE, pipeline="aaa", dataset="ddd")
    profile.require(pipeline="aaa", dataset="ddd")
    with pytest.raises(
        ArtifactError, match=r"another dataset: it carries 'ddd', this job has 'eee'. Profile this job again"
    ):
        profile.require(pipeline="aaa", dataset="eee")
    with pytest.raises(ArtifactError, match="another pipeline: it carries 'aaa', this job has 'bbb'"):
        profile.require(pipeline="bbb")


def test_parts_and_more_measures_are_kept(tmp_path):
    profile = profile_of(*ONE, parts=[3], more={"read_bytes": [[7, 8]]})
    assert profile.part_count == 4
    profile.save(tmp_path / "p.parquet")
    found = Profile.load(tmp_path / "p.parquet")
    assert found.parts.tolist() == [3]
    assert found.more["read_bytes"].tolist() == [[7, 8]]
    assert "from the store" in found.explain()
    some = random_profile(np.random.default_rng(0), 9).rows(slice(None, None, 3))
    assert len(some) == 3
    with pytest.raises(ConfigError, match="not a known measure"):
        profile_of(*ONE, more={"luck": [[1, 2]]})
    with pytest.raises(ConfigError, match="one number from 0"):
        profile_of(*ONE, parts=[-1])
