from dataclasses import replace

import numpy as np
import pytest

from sophon.codec.cut import Cut
from sophon.codec.route import Route
from sophon.errors import ArtifactError, ConfigError
from sophon.plan.plan import Plan, make_plan
from sophon.plan.policies import POLICIES, Options
from sophon.plan.resources import Node, Resources
from sophon.profile.table import Profile
from tests.support.instances import profile_of, random_profile, random_resources

RNG = np.random.default_rng(0)
PROFILE = random_profile(RNG, 300)
RESOURCES = random_resources(RNG, PROFILE)


@pytest.mark.parametrize("name", POLICIES)
def test_every_policy_makes_a_plan_that_can_be_saved_and_loaded(name, tmp_path):
    plan = make_plan(PROFILE, RESOURCES, name, Options(resize_k=1))
    plan.save(tmp_path / "plan.parquet")
    found = Plan.load(tmp_path / "plan.parquet")
    assert (found.cut == plan.cut).all()
    assert found.cut.dtype == np.uint8
    for field in ("routes", "policy", "reason", "prediction", "untouched", "resources", "options"):
        assert getattr(found, field) == getattr(plan, field)
    assert dict(found.fingerprints) == {"pipeline": "p", "dataset": "d"}
    assert found.explain() == plan.explain()


def test_the_same_profile_and_resources_give_the_same_bytes(tmp_path):
    for name in ("a", "b"):
        make_plan(PROFILE, RESOURCES).save(tmp_path / name)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_a_plan_does_not_hang_on_how_the_profile_was_held(tmp_path):
    PROFILE.save(tmp_path / "p.parquet")
    loaded = make_plan(Profile.load(tmp_path / "p.parquet"), RESOURCES)
    assert loaded.cut.tobytes() == make_plan(PROFILE, RESOURCES).cut.tobytes()


def test_a_plan_takes_one_byte_per_sample_or_less(tmp_path):
    profile = random_profile(np.random.default_rng(1), 50_000)
    make_plan(profile, random_resources(RNG, profile)).save(tmp_path / "plan.parquet")
    assert (tmp_path / "plan.parquet").stat().st_size < 50_000


def test_a_plan_knows_the_cut_of_a_sample_and_how_many_have_each():
    plan = make_plan(profile_of([[9, 1]] * 4, [[0, 1]] * 4, [[0, 0]] * 4), Resources(1, 10, 1), "all")
    assert len(plan) == 4
    assert plan[3] == Route.of(Cut(1, "raw"))
    assert plan.counts() == {Route.of(Cut(1, "raw")): 4}
    with pytest.raises(ValueError, match="read-only"):
        plan.cut[0] = 0


def test_a_plan_explains_itself_in_words():
    profile = profile_of([[1000, 100]] * 10, [[0, 0.1]] * 10, [[0.2, 0.1]] * 10)
    text = make_plan(profile, Resources(1000, 1, 1, 0.6)).explain()
    assert text.splitlines() == [
        "Policy optimal: all cuts of all samples were weighed at once.",
        "Cuts: 100.0% 0:raw.",
        "An epoch takes 16.7 s with this plan; the bottleneck is the consumer (link 10 s, storage 0 s, "
        "trainer 2 s, consumer 16.7 s).",
        "10 KB cross the link and 0 s of CPU are spent near storage.",
        "Without offloading it would take 16.7 s; the bottleneck would be the consumer, and "
        "10 KB would cross the link.",
        "No plan can be faster.",
    ]


def test_a_plan_that_could_not_weigh_all_cuts_says_so(tmp_path):
    untried = float("inf")
    profile = profile_of([[1000, untried]] * 10, [[0, untried]] * 10, [[0.2, untried]] * 10)
    plan = make_plan(profile, Resources(1000, 1, 1, 0.6))
    plan.save(tmp_path / "plan.parquet")
    for one in (plan, Plan.load(tmp_path / "plan.parquet")):
        assert one.explain().splitlines()[-1] == "No plan with the cuts measured so far can be faster."


def test_an_explanation_says_how_near_the_best_the_plan_is():
    text = make_plan(PROFILE, RESOURCES.having(consumer_samples_per_s=float("inf"))).explain()
    assert "No plan can" in text
    assert "No plan can" not in make_plan(PROFILE, RESOURCES, "none").explain()


def test_without_storage_cores_a_plan_that_needs_them_can_still_be_saved(tmp_path):
    plan = make_plan(PROFILE, RESOURCES.having(storage_cores=0), "all")
    assert plan.prediction.epoch_s == float("inf")
    plan.save(tmp_path / "plan.parquet")
    assert Plan.load(tmp_path / "plan.parquet").prediction == plan.prediction
    assert "∞" in plan.explain()


def test_a_plan_of_another_job_is_refused_with_both_fingerprints():
    plan = make_plan(PROFILE, RESOURCES, "none")
    plan.require(pipeline="p", dataset="d", samples=300)
    with pytest.raises(
        ArtifactError, match=r"another pipeline: it carries 'p', this job has 'q'. Make a new plan for this job"
    ):
        plan.require(pipeline="q")
    with pytest.raises(ArtifactError, match="for 300 samples, but this job has 299"):
        plan.require(samples=299)


def test_a_profile_is_no_plan(tmp_path):
    PROFILE.save(tmp_path / "p.parquet")
    with pytest.raises(ArtifactError, match="the file is a profile; expected a plan"):
        Plan.load(tmp_path / "p.parquet")


def test_a_plan_over_unknown_cuts_is_refused(tmp_path):
    plan = make_plan(PROFILE, RESOURCES, "all")
    with pytest.raises(ConfigError, match="give one known cut per sample"):
        replace(plan, routes=(Cut(0, "raw"),))
    object.__setattr__(plan, "routes", (Cut(0, "raw"),))
    plan.save(tmp_path / "plan.parquet")
    with pytest.raises(ArtifactError, match="does not have the header of a plan"):
        Plan.load(tmp_path / "plan.parquet")


def test_a_plan_may_have_samples_take_a_relay_but_a_trainer_without_one_refuses_it(tmp_path):
    routes = (Cut(0), Cut(1), Route.parse("0:window/2:raw"))
    profile = profile_of([[9, 5, 1]] * 4, [[0, 1, 0.1]] * 4, [[1, 1, 0.1]] * 4, routes)
    profile.save(tmp_path / "profile.parquet")
    plan = make_plan(Profile.load(tmp_path / "profile.parquet"), Resources(1, 10, 1), options=Options(allow_lossy=True))
    plan.save(tmp_path / "plan.parquet")
    found = Plan.load(tmp_path / "plan.parquet")
    assert found.counts() == {Route.parse("0:window/2:raw"): 4}
    assert "100.0% 0:window/2:raw" in found.explain()
    with pytest.raises(ConfigError, match="there is no relay"):
        _ = found.cuts
    assert make_plan(profile, Resources(1, 10, 1), "none").cuts == (Cut(0), Cut(1), Cut(2))


def test_a_plan_for_several_nodes_is_saved_with_their_resources(tmp_path):
    nodes = [Node("a", {"link_bytes_per_s": 10}), Node("b", {"link_bytes_per_s": 100})]
    profile = profile_of([[9, 5]] * 4, [[0, 1]] * 4, [[1, 1]] * 4, parts=[0, 1, 0, 1])
    plan = make_plan(profile, Resources(storage_cores=1, trainer_cores=1, nodes=nodes))
    plan.save(tmp_path / "plan.parquet")
    found = Plan.load(tmp_path / "plan.parquet")
    assert (found.resources, found.prediction) == (plan.resources, plan.prediction)
    assert "link of a" in found.explain()
