"""How many relays there should be, in virtual time."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sophon.errors import ConfigError
from sophon.plan.cost import Prediction
from sophon.plan.scaling import Bounds, Report, Scale, rescaled

BOUNDS = Bounds(least=1, most=6, patience_s=10, rest_s=100, stale_s=30)


def run(scale, bottleneck, waited, seconds, start_s=0.0, relay_share=0.0, bounds=BOUNDS):
    """Report the same every second; return the numbers of relays."""
    found = []
    for now_s in range(int(start_s), int(start_s + seconds)):
        scale = rescaled(scale, [Report(now_s, bottleneck, waited, relay_share)], bounds, float(now_s))
        found.append(scale.relays)
    return scale, found


def test_a_trainer_that_waits_for_its_own_cpu_gets_relays_after_a_while():
    _, found = run(Scale(1), "trainer", 0.4, 45)
    assert found[:10] == [1] * 10
    assert found[10] == 2
    assert found[20] == 4
    assert found[-1] == 6


@pytest.mark.parametrize("bottleneck", ["link", "store", "consumer", "storage", ""])
def test_what_relays_cannot_help_with_gets_none(bottleneck):
    _, found = run(Scale(1), bottleneck, 0.4, 60)
    assert set(found) == {1}


def test_a_trainer_that_does_not_wait_gets_none():
    _, found = run(Scale(2), "trainer", 0.01, 60)
    assert set(found) == {2}


def test_relays_that_nobody_needs_go_one_by_one_and_late():
    _, found = run(Scale(4), "consumer", 0.0, 320)
    assert (found[99], found[100], found[199], found[200], found[-1]) == (4, 3, 3, 2, 1)


def test_relays_that_are_busy_stay():
    _, found = run(Scale(4), "consumer", 0.0, 300, relay_share=0.8)
    assert set(found) == {4}


def test_a_moment_without_need_starts_the_patience_anew():
    scale, _ = run(Scale(1), "trainer", 0.4, 8)
    scale, _ = run(scale, "link", 0.4, 2, start_s=8)
    _, found = run(scale, "trainer", 0.4, 8, start_s=10)
    assert set(found) == {1}


def test_what_was_said_long_ago_counts_for_nothing():
    scale = Scale(1)
    for now_s in range(31, 80):
        scale = rescaled(scale, [Report(0.0, "trainer", 0.9)], BOUNDS, float(now_s))
    assert scale.relays == 1


def test_a_report_is_made_of_a_plans_prediction():
    prediction = Prediction(10.0, "relay", {"relay": 10.0, "trainer": 4.0})
    report = Report.of(3.0, prediction, 0.3)
    assert (report.bottleneck, report.relay_share, report.wants_more, report.needs_them) == ("relay", 1.0, True, True)
    assert not Report.of(3.0, None, 0.3).wants_more


@pytest.mark.parametrize("wrong", [{"least": 3, "most": 2}, {"least": -1}, {"rest_s": float("nan")}])
def test_bounds_that_make_no_sense_are_refused(wrong):
    with pytest.raises(ConfigError, match="relays:"):
        Bounds(**wrong)


_reports = st.lists(
    st.builds(
        Report,
        st.floats(-100, 1000),
        st.sampled_from(["trainer", "relay", "link", "consumer", ""]),
        st.floats(0, 1),
        st.floats(0, 1),
    ),
    max_size=4,
)


@given(st.lists(st.tuples(st.floats(0, 50), _reports), max_size=40), st.integers(-3, 20), st.integers(0, 5))
def test_the_number_stays_within_its_bounds_and_moves_as_promised(steps, start, least):
    bounds = Bounds(least, least + 3, 10, 100, 30)
    scale, now_s = Scale(start), 0.0
    for wait_s, reports in steps:
        now_s += wait_s
        before, scale = scale, rescaled(scale, reports, bounds, now_s)
        assert bounds.least <= scale.relays <= bounds.most
        if before.relays in range(bounds.least, bounds.most + 1):
            assert before.relays - 1 <= scale.relays <= max(2 * before.relays, 1)
        if scale.relays > max(before.relays, bounds.least):
            assert any(report.wants_more for report in reports if now_s - report.at_s <= bounds.stale_s)
