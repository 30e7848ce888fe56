"""From policies and plans to one cut per sample."""

import numpy as np
import pytest

import sophon
from sophon import Cut
from sophon.errors import ArtifactError, ConfigError
from sophon.loader.sources.assignment import assignment_for
from sophon.pipeline import Pipeline, ops
from sophon.plan.plan import make_plan
from sophon.plan.policies import Options
from sophon.plan.resources import Resources
from sophon.profile.columns import cuts_to_profile
from sophon.profile.measure import measure
from sophon.store import open_store
from tests.support.servers import make_images

RECIPE = Pipeline([ops.Decode(), ops.RandomResizedCrop(32), ops.ToTensor()])
COUNT = 8


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    return make_images(tmp_path_factory.mktemp("data") / "train", COUNT)


@pytest.mark.parametrize("policy", ["2:jpeg:95", "2:jpeg", Cut(2, "jpeg:80")])
@pytest.mark.parametrize("make", [sophon.DataLoader, sophon.RemoteDataset])
def test_a_cut_that_changes_tensors_is_refused_unless_it_is_allowed(images, make, policy):
    with pytest.raises(ConfigError, match=r"jpeg.*changes the tensors.*allow_lossy=True.*webp"):
        make(images, RECIPE, policy=policy)
    assert len(make(images, RECIPE, policy=sophon.Planning(policy, allow_lossy=True))) == COUNT


def test_a_plan_that_changes_tensors_is_refused_unless_it_is_allowed(images):
    cuts = ["0:raw"] * (COUNT - 1) + ["2:jpeg:95"]
    with pytest.raises(ConfigError, match=r"plan: 2:jpeg:95 changes the tensors"):
        assignment_for(RECIPE, None, cuts, COUNT)
    assert assignment_for(RECIPE, None, cuts, COUNT, allow_lossy=True).of([COUNT - 1]) == (Cut(2, "jpeg:95"),)


def test_a_plan_may_know_lossy_cuts_that_it_does_not_use(images):
    profile = measure(open_store(images), RECIPE, cuts=cuts_to_profile(RECIPE, allow_lossy=True))
    resources = Resources(1e4, 8, 1)
    exact, lossy = (make_plan(profile, resources, options=Options(allow_lossy=allowed)) for allowed in (False, True))
    assert exact.cuts == lossy.cuts
    assert set(map(str, assignment_for(RECIPE, None, exact, COUNT).used())) == set(map(str, exact.counts()))
    with pytest.raises(ConfigError, match="allow_lossy=True"):
        assignment_for(RECIPE, None, lossy, COUNT)


@pytest.mark.parametrize(
    "steps",
    [
        [ops.Decode(), ops.RandomResizedCrop(32), ops.ToTensor()],
        [ops.Decode(), ops.RandomHorizontalFlip(), ops.Resize(40), ops.CenterCrop(32), ops.ToTensor()],
    ],
)
def test_resize_is_the_same_cut_as_a_policy_of_the_loader_and_of_a_profile(images, steps):
    pipeline = Pipeline(steps)
    profile = measure(open_store(images), pipeline)
    (fixed,) = assignment_for(pipeline, "resize", None, COUNT).used()
    assert set(map(str, make_plan(profile, Resources(1e6, 1, 1), "resize").counts())) == {str(fixed)}
    assert fixed.k == np.argmax([isinstance(step, ops.RandomResizedCrop | ops.CenterCrop) for step in steps]) + 1


def test_a_plan_or_profile_for_another_pipeline_says_which(images, tmp_path):
    other = Pipeline([ops.Decode(), ops.CenterCrop(16), ops.ToTensor()])
    profile = measure(open_store(images), other)
    plan, saved = make_plan(profile, Resources(1e4, 8, 1)), tmp_path / "plan.parquet"
    plan.save(saved)
    both = r"another pipeline: it carries Decode, CenterCrop\(size=\(16, 16\)\), ToTensor, this job has Decode, Random"
    for given in (plan, saved):
        with pytest.raises(ArtifactError, match=f"the plan belongs to {both}.*Make a new plan for this job"):
            sophon.DataLoader(images, RECIPE, policy=given)
    assert len(sophon.DataLoader(images, other, policy=saved)) == COUNT
    profile.save(tmp_path / "profile.parquet")
    found = measure(open_store(images), RECIPE)
    with pytest.raises(ArtifactError, match=r"the profile belongs to another pipeline: it carries Decode, CenterCrop"):
        type(found).load(tmp_path / "profile.parquet").require(pipeline=RECIPE.fingerprint, recipe=found.recipe)


def test_a_plan_for_other_files_is_refused(images, tmp_path):
    plan = make_plan(measure(open_store(images), RECIPE), Resources(1e4, 8, 1))
    others = make_images(tmp_path / "others", COUNT, classes=1)
    with pytest.raises(ArtifactError, match="the plan belongs to another dataset"):
        sophon.DataLoader(others, RECIPE, policy=plan)
