import pytest
from hypothesis import given
from hypothesis import strategies as st

from sophon.codec.cut import RAW, Cut
from sophon.codec.route import UNTOUCHED, Route, legal_routes, pass_on
from sophon.errors import ConfigError
from sophon.pipeline import Key, Pipeline, ops

CODECS = st.sampled_from(["raw", "window", "webp", "zstd", "jpeg:95", "not-made-yet"])
CUTS = st.builds(Cut, st.integers(0, 99), CODECS)


@given(st.lists(CUTS, min_size=1, max_size=2))
def test_a_route_is_read_as_it_is_written(cuts):
    route = Route(tuple(sorted(cuts, key=lambda cut: cut.k)))
    assert Route.parse(str(route)) == route


def test_a_cut_is_the_route_that_has_no_other():
    assert Route.of(Cut(2, "webp")) == Route.parse("2:webp")
    assert Route.of(UNTOUCHED) is UNTOUCHED
    assert str(UNTOUCHED) == str(RAW) == "0:raw"
    assert UNTOUCHED.is_direct


def test_a_relay_makes_the_second_cut():
    route = Route.parse("0:window/2:raw")
    assert route.cuts == (Cut(0, "window"), Cut(2, "raw"))
    assert (route.arrival, route.is_direct, route.is_exact) == (Cut(2, "raw"), False, True)
    assert not Route.parse("0:window/2:jpeg:95").is_exact
    assert not Route.parse("2:not-made-yet").is_exact


@pytest.mark.parametrize(
    "text",
    [
        "",
        "2",
        ":raw",
        "2:",
        "-1:raw",
        "2:a b",
        "2:" + "x" * 40,
        "99999:raw",
        "2:raw/",
        "2:raw/0:raw",
        "0:raw/1:raw/2:raw",
    ],
)
def test_what_is_no_route_is_refused(text):
    with pytest.raises(ConfigError, match="is not a route"):
        Route.parse(text)


RECIPE = Pipeline([ops.Decode(), ops.RandomResizedCrop(16), ops.RandomHorizontalFlip(), ops.ToTensor()])


def test_a_window_is_followed_by_what_comes_after_the_crop_and_by_nothing_else():
    after = {
        str(route.arrival) for route in legal_routes(RECIPE, ("raw", "window")) if str(route.cuts[0]) == "0:window"
    }
    assert after == {"0:window", "2:raw", "3:raw", "4:raw"}


def test_a_relay_refuses_a_route_that_would_need_the_file():
    with pytest.raises(ConfigError, match="needs the file: 0:raw/1:raw"):
        pass_on(RECIPE, b"", Key(0, 0, 0), Route.parse("0:window/1:raw"))


def test_fields_that_belong_together_are_relayed_from_their_files():
    joint = Pipeline(RECIPE.ops, (("mask", "mask"),))
    firsts = {route.cuts[0] for route in legal_routes(joint, ("raw",)) if len(set(route.cuts)) > 1}
    assert firsts == {Cut(0, "raw")}
