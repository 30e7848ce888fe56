import numpy as np
import pytest

from sophon.plan.policies import Options
from sophon.plan.policies.fastflow import choose
from sophon.plan.resources import Resources
from tests.support.instances import profile_of, random_profile, random_resources

DEFAULTS = Options()

# 100 samples, 1 kB raw and at every cut; 40 ms of work in two ops.
PROFILE = profile_of(
    [[1000, 1000, 1000]] * 100,
    [[0, 0.03, 0.04]] * 100,
    [[0.04, 0.01, 0.0]] * 100,
)


def share(profile, resources, column):
    return float((choose(profile, resources, DEFAULTS).cut == column).mean())


def test_nothing_is_offloaded_while_local_cpus_keep_up_with_the_consumer():
    # One core does 25 samples a second.
    choice = choose(PROFILE, Resources(1e9, 3, 1, consumer_samples_per_s=25), DEFAULTS)
    assert set(choice.cut) == {0}
    assert "keep up" in choice.reason


def test_three_times_the_local_throughput_takes_three_quarters():
    # Three storage cores against one at the trainer, for the whole pipeline: 75 : 25, as on FastFlow's slide.
    assert share(PROFILE, Resources(1e9, 3, 1, consumer_samples_per_s=1000), 2) == 0.75


def test_a_slow_link_lowers_the_remote_share():
    # Remote throughput is now the link's 50 samples a second, twice what the trainer's core does: 67 : 33.
    # Both cuts take 2 s then, and the one with fewer ops is kept.
    assert share(PROFILE, Resources(50_000, 3, 1, consumer_samples_per_s=1000), 1) == 0.67


def test_the_best_of_the_whole_data_set_cuts_is_taken():
    # After two ops the payload is a hundred times larger: on this link the cut after one is the better.
    profile = profile_of([[1000, 1000, 100_000]] * 100, PROFILE.storage_s, PROFILE.trainer_s)
    choice = choose(profile, Resources(1e6, 3, 1, consumer_samples_per_s=1000), DEFAULTS)
    assert set(choice.cut) == {0, 1}


def test_samples_are_spread_evenly_and_alike():
    cut = choose(PROFILE, Resources(1e9, 3, 1, consumer_samples_per_s=1000), DEFAULTS).cut
    assert [int(part.sum() / 2) for part in np.split(cut, 4)] == [18, 19, 19, 19]


def test_it_does_not_offload_where_that_is_slower():
    # An I/O-bound job with few cores, as in the SOPHON paper: tensors are larger than what they are made from.
    profile = profile_of([[1000, 150_000, 600_000]] * 100, PROFILE.storage_s, PROFILE.trainer_s)
    choice = choose(profile, Resources(1000, 48, 0.5, consumer_samples_per_s=1000), DEFAULTS)
    assert set(choice.cut) == {0}
    assert "no whole-data-set cut helps" in choice.reason


def test_without_storage_cores_nothing_is_offloaded():
    assert set(choose(PROFILE, Resources(1e9, 0, 1, consumer_samples_per_s=1000), DEFAULTS).cut) == {0}


@pytest.mark.parametrize("seed", range(20))
def test_any_profile_gets_a_legal_plan(seed):
    rng = np.random.default_rng(seed)
    profile = random_profile(rng, 40, illegal=0.3)
    choice = choose(profile, random_resources(rng, profile, storage=seed % 4 > 0), DEFAULTS)
    assert np.isfinite(profile.payload_bytes[np.arange(40), choice.cut]).all()
