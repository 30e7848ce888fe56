"""none, all and resize: one cut for everyone."""

from dataclasses import replace

import numpy as np
import pytest

from sophon.codec.cut import Cut
from sophon.codec.raw import Raw
from sophon.codec.table import CODECS
from sophon.errors import ConfigError
from sophon.plan.policies import POLICIES, Options, applicable, policy
from sophon.plan.policies.choice import exact_columns
from sophon.plan.resources import Resources
from tests.support.instances import CUTS, profile_of, random_profile

RESOURCES = Resources(1e6, 2, 2)
PROFILE = random_profile(np.random.default_rng(0), 20)


def chosen(name, profile=PROFILE, **options):
    return {profile.cuts[column] for column in POLICIES[name](profile, RESOURCES, Options(**options)).cut}


def test_the_table_names_six_policies():
    assert list(POLICIES) == ["none", "all", "resize", "fastflow", "sophon", "optimal"]


def test_none_sends_raw_bytes_wherever_that_column_is():
    assert chosen("none") == {Cut(0, "raw")}
    turned = profile_of([[1, 2]] * 3, [[1, 0]] * 3, [[0, 1]] * 3, (Cut(5, "raw"), Cut(0, "raw")))
    assert chosen("none", turned) == {Cut(0, "raw")}


def test_all_takes_the_last_raw_cut():
    assert chosen("all") == {Cut(5, "raw")}


@pytest.mark.parametrize("k", [0, 1, 2, 5])
def test_resize_takes_the_raw_cut_after_k_ops(k):
    assert chosen("resize", resize_k=k) == {Cut(k, "raw")}


def test_resize_is_where_the_profile_says_that_pictures_become_one_size():
    assert chosen("resize", replace(PROFILE, resize_k=1)) == {Cut(1, "raw")}
    assert "resize" in applicable(replace(PROFILE, resize_k=1))


def test_resize_asks_for_the_cut_where_neither_user_nor_profile_names_it():
    silent = replace(PROFILE, resize_k=None)
    assert "resize" not in applicable(silent)
    with pytest.raises(ConfigError, match="--resize-k"):
        chosen("resize", silent)


def test_resize_says_which_cuts_there_are():
    with pytest.raises(ConfigError, match="no raw cut after 3 ops was profiled; choose k from 0, 1, 2, 5"):
        chosen("resize", resize_k=3)


def test_a_sample_without_the_cut_gets_the_next_smaller_one():
    gone = [[1, 1, 1], [1, 1, np.inf], [1, np.inf, np.inf]]
    profile = profile_of(gone, gone, gone, resize_k=2)
    assert list(POLICIES["resize"](profile, RESOURCES, Options()).cut) == [2, 1, 0]
    assert list(POLICIES["all"](profile, RESOURCES, Options()).cut) == [2, 1, 0]


def test_an_unknown_policy_is_named_with_the_known_ones():
    with pytest.raises(ConfigError, match="there is no policy 'best'; choose one of none, all"):
        policy("best")


@pytest.mark.parametrize("options", [{"resize_k": -1}, {"resize_k": 1.5}, {"resize_k": True}, {"allow_lossy": 1}])
def test_impossible_options_are_refused(options):
    with pytest.raises(ConfigError):
        Options(**options)


def test_lossy_cuts_are_those_whose_codec_says_so(monkeypatch):
    """Whatever it is called; and a codec that is not known here is not trusted to keep every bit."""

    class Rough(Raw):
        exact = False
        name = "rough"

    monkeypatch.setitem(CODECS, "rough", Rough)
    profile = profile_of(
        [[1, 1, 1]] * 2, [[0, 0, 0]] * 2, [[0, 0, 0]] * 2, [Cut(0), Cut(1, "rough"), Cut(1, "mystery")]
    )
    assert exact_columns(profile, Options()) == (0,)
    assert exact_columns(profile, Options(allow_lossy=True)) == (0, 1, 2)
    assert len(exact_columns(PROFILE, Options())) == len(CUTS) - 1
    assert len(exact_columns(PROFILE, Options(allow_lossy=True))) == len(CUTS)
