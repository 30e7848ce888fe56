import numpy as np
import pytest
from hypothesis import given, settings

from sophon.codec.cut import Cut
from sophon.plan.cost import predict
from sophon.plan.policies import Options
from sophon.plan.policies.sophon import choose
from sophon.plan.resources import Resources
from tests.support.instances import problems, profile_of, random_profile, random_resources

DEFAULTS = Options()


def cuts_of(profile, resources):
    return list(choose(profile, resources, DEFAULTS).cut)


# Four samples, 1000 bytes raw, nothing to do at the trainer. Saved bytes and storage seconds of the cut k = 1:
# A 900 in 1 s (900/s), B 500 in 0.25 s (2000/s), C 100 in 1 s (100/s), D none (1000 again) in 0.1 s.
FOUR = profile_of(
    [[1000, 100], [1000, 500], [1000, 900], [1000, 1000]],
    [[0, 1], [0, 0.25], [0, 1], [0, 0.1]],
    [[0, 0], [0, 0], [0, 0], [0, 0]],
)


def test_samples_go_in_order_of_bytes_saved_per_storage_second():
    # Link 1000 B/s: T_Net 4 s. After B 3.5 s against 0.25 s of storage on one core, after A 2.6 s against 1.25 s, after
    # C 2.5 s against 2.25 s; never overtaken: all that shrink are offloaded.
    assert cuts_of(FOUR, Resources(1000, 1, 1)) == [1, 1, 1, 0]
    # Link 3000 B/s: T_Net 4/3 s. After B 1.167 s against 0.25 s; after A 0.867 s against 1.25 s: stop. C stays.
    assert cuts_of(FOUR, Resources(3000, 1, 1)) == [1, 1, 0, 0]
    # Link 14000 B/s: T_Net 0.2857 s. After B 0.25 s against 0.25 s: no longer the largest alone: stop.
    assert cuts_of(FOUR, Resources(14000, 1, 1)) == [0, 1, 0, 0]


def test_it_stops_when_the_consumer_decides():
    # The consumer takes 3.2 s for four samples: after B and A 2.6 s < 3.2 s; after B alone 3.5 s.
    assert cuts_of(FOUR, Resources(1000, 100, 1, consumer_samples_per_s=4 / 3.2)) == [1, 1, 0, 0]
    assert cuts_of(FOUR, Resources(1000, 100, 1, consumer_samples_per_s=4 / 3.6)) == [0, 1, 0, 0]


def test_it_stops_when_the_trainers_cpus_decide():
    profile = profile_of(
        [[1000, 100], [1000, 500]],
        [[0, 1], [0, 0.25]],
        [[2, 1.9], [1, 0.9]],
    )
    # Link 600 B/s: 3.33 s against 3 s at the trainer. After B 2.5 s against 2.9 s: stop before A.
    assert cuts_of(profile, Resources(600, 10, 1)) == [0, 1]


def test_it_stops_when_no_sample_is_left_that_shrinks():
    choice = choose(FOUR, Resources(1, 1, 1), DEFAULTS)
    assert list(choice.cut) == [1, 1, 1, 0]
    assert "no other sample would shrink" in choice.reason


def test_a_sample_that_does_not_shrink_is_untouched():
    profile = profile_of([[100, 200], [100, 100], [100, 50]], [[0, 1]] * 3, [[0, 0]] * 3)
    assert cuts_of(profile, Resources(1, 1, 1)) == [0, 0, 1]


@pytest.mark.parametrize(
    "resources",
    [
        Resources(1e6, 1, 1, consumer_samples_per_s=0.5),  # the consumer decides
        Resources(1e6, 1, 1e-9),  # the trainer's CPUs decide
        Resources(4000, 1, 1, consumer_samples_per_s=4),  # link and consumer alike: not the link alone
    ],
)
def test_a_job_that_is_not_bound_by_the_link_is_not_offloaded(resources):
    trainer = profile_of(FOUR.payload_bytes, FOUR.storage_s, [[1, 0]] * 4)
    assert cuts_of(trainer, resources) == [0, 0, 0, 0]


def test_the_cut_of_least_bytes_is_taken_and_of_equal_bytes_the_cheaper():
    profile = profile_of([[1000, 3000, 200, 200, 800]], [[0, 1, 2, 1.5, 3]], [[0] * 5])
    assert cuts_of(profile, Resources(1, 1, 1)) == [3]


def test_codecs_are_not_considered():
    cuts = (Cut(0, "raw"), Cut(2, "webp"), Cut(2, "raw"))
    profile = profile_of([[1000, 10, 500]], [[0, 0.1, 0.1]], [[0, 0, 0]], cuts)
    assert cuts_of(profile, Resources(1, 1, 1)) == [2]


def test_equal_efficiency_goes_by_index():
    profile = profile_of([[1000, 500]] * 4, [[0, 0.5]] * 4, [[0, 0]] * 4)
    # 4 s of link at 1000 B/s; 3.5 against 0.5, 3 against 1, 2.5 against 1.5, 2 against 2: stop at the last; with two
    # cores' worth less link: 2 s, 1.75 against 0.5, 1.5 against 1, 1.25 against 1.5: stop after three.
    assert cuts_of(profile, Resources(2000, 1, 1)) == [1, 1, 1, 0]


def test_samples_that_cost_nothing_go_first():
    profile = profile_of([[1000, 100], [1000, 999]], [[0, 0.1], [0, 0]], [[0, 0]] * 2)
    # 2 s at 1000 B/s against a consumer of 1.9995 s: the second saves one byte for nothing, and that is enough.
    assert cuts_of(profile, Resources(1000, 1, 1, consumer_samples_per_s=2 / 1.9995)) == [0, 1]


def test_without_storage_cores_only_what_costs_nothing_is_offloaded():
    profile = profile_of([[1000, 100], [1000, 999]], [[0, 0.1], [0, 0]], [[0, 0]] * 2)
    assert cuts_of(profile, Resources(1, 0, 1)) == [0, 1]


def test_illegal_cuts_are_left_alone():
    profile = profile_of([[1000, np.inf], [1000, 1]], [[0, np.inf], [0, 1]], [[0, np.inf], [0, 0]])
    assert cuts_of(profile, Resources(1, 1, 1)) == [0, 1]


def one_by_one(profile, resources):
    """The paper's words as a loop."""
    raw = profile.raw_columns()
    b, s = profile.payload_bytes.astype(float), profile.storage_s.astype(float)
    cut = np.zeros(len(profile), np.uint8)
    best = [min(raw, key=lambda c: (b[i, c], s[i, c], profile.cuts[c].k)) for i in range(len(profile))]
    saved = [b[i, 0] - b[i, c] for i, c in enumerate(best)]
    spent = [max(s[i, c] - s[i, 0], 0.0) for i, c in enumerate(best)]
    shrinks = [i for i in range(len(profile)) if saved[i] > 0 and (resources.storage_cores > 0 or spent[i] == 0)]
    shrinks.sort(key=lambda i: (-(saved[i] / spent[i]) if spent[i] else -np.inf, i))
    for i in shrinks:
        now = predict(profile, cut, resources)
        if now.link_s <= max(now.storage_s, now.trainer_s, now.consumer_s):
            break
        cut[i] = best[i]
    return cut


@settings(max_examples=100, deadline=None)
@given(problems())
def test_it_does_what_the_papers_loop_does(problem):
    profile, resources = problem
    expected = one_by_one(profile, resources)
    found = choose(profile, resources, DEFAULTS).cut
    assert list(found) == list(expected)


def test_blocks_do_not_show(monkeypatch):
    from sophon.plan.policies import sophon

    rng = np.random.default_rng(0)
    profile = random_profile(rng, 1000)
    resources = [random_resources(rng, profile) for _ in range(10)]
    whole = [choose(profile, each, DEFAULTS).cut for each in resources]
    monkeypatch.setattr(sophon, "_BLOCK", 7)
    for each, cut in zip(resources, whole, strict=True):
        assert (choose(profile, each, DEFAULTS).cut == cut).all()
