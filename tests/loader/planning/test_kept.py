"""Profiles from one run to the next: what is only a cache may be damaged in any way, what the user names may not."""

from dataclasses import replace

import numpy as np
import pytest

import sophon
from sophon import artifact
from sophon.errors import ArtifactError, ConfigError
from sophon.loader.planning import kept
from sophon.loader.planning.kept import KeptProfile, cache_path
from sophon.pipeline import Pipeline, ops
from sophon.profile.table import Profile
from tests.support.servers import make_images, serve
from tests.support.settings import grouped

RECIPE = Pipeline([ops.Decode(), ops.RandomResizedCrop(32), ops.ToTensor()])
COUNT = 24


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with serve(make_images(tmp_path_factory.mktemp("data") / "train", COUNT)) as running:
        yield running


@pytest.fixture(scope="module")
def whole(server, tmp_path_factory):
    """A file that a loader has kept."""
    path = tmp_path_factory.mktemp("kept") / "profile.parquet"
    for _ in _loader(server, profile=path):
        pass
    return path


def _loader(server, **settings):
    return sophon.DataLoader(server.url, RECIPE, **grouped(batch_size=8, num_workers=2, **settings))


def _with(path, whole, **made):
    """Save the whole profile with other words about how it was made."""
    profile = Profile.load(whole)
    replace(profile, provenance={**profile.provenance, **made}).save(path)


def _of_fewer_samples(path, whole):
    found = Profile.load(whole)
    names = ("payload_bytes", "storage_s", "trainer_s", "measured", "sizes")
    replace(found, **{name: getattr(found, name)[:3] for name in names}).save(path)


def _with_a_flipped_bit(path, whole):
    data = bytearray(whole.read_bytes())
    data[200] ^= 1
    path.write_bytes(data)


def _as_a_plan(path, _):
    artifact.save(path, artifact.Header("plan", 1), {"cut": np.zeros(3, np.uint8)})


def _with_a_rule(path, whole, said):
    _with(path, whole, rules={**Profile.load(whole).provenance["rules"], "op 1": said})


DAMAGES = {
    "truncated": lambda path, whole: path.write_bytes(whole.read_bytes()[:1000]),
    "empty": lambda path, _: path.write_bytes(b""),
    "a flipped bit": _with_a_flipped_bit,
    "no profile": lambda path, _: path.write_bytes(b"garbage" * 100),
    "another format": _as_a_plan,
    "a folder": lambda path, _: path.mkdir(),
    "of fewer samples": _of_fewer_samples,
    "no rules": lambda path, whole: _with(path, whole, rules={}),
    "rules in a list": lambda path, whole: _with(path, whole, rules=[1, 2]),
    "a rule of text": lambda path, whole: _with_a_rule(path, whole, "fast"),
    "a rule of one feature": lambda path, whole: _with_a_rule(path, whole, [9, 0.1, [0.0], [0.0], 0.0, 0.0, 1.0]),
    "a rule beyond all bounds": lambda path, whole: _with_a_rule(path, whole, [9, 0.1, [0] * 3, [1e300] * 3, 0, 0, 1]),
    "no ratios": lambda path, whole: _with(path, whole, storage_to_trainer=None),
    "too few ratios": lambda path, whole: _with(path, whole, storage_to_trainer=[1.0]),
    "negative ratios": lambda path, whole: _with(path, whole, storage_to_trainer=[-1.0] * len(RECIPE)),
    "no link": lambda path, whole: _with(path, whole, resources={"link_bytes_per_s": 0}),
    "resources of text": lambda path, whole: _with(path, whole, resources="plenty"),
}


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.matrix(every=4)
def test_a_cached_profile_that_cannot_be_used_is_measured_again(server, whole, damage, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    loader = _loader(server)
    path = loader._planner._kept.path
    path.parent.mkdir(parents=True)
    DAMAGES[damage](path, whole)
    loader = _loader(server)
    assert loader.profile is None
    for _ in range(2):
        assert len(list(loader)) == 3
    assert loader.plan is not None
    if damage != "a folder":  # which is not ours to remove
        assert len(Profile.load(path)) == COUNT
    assert {one.name.removesuffix(".about") for one in path.parent.iterdir()} == {path.name}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_profile_that_the_user_names_and_that_cannot_be_used_is_an_error_that_names_it(
    server, whole, damage, tmp_path
):
    path = tmp_path / "mine.parquet"
    DAMAGES[damage](path, whole)
    with pytest.raises(ArtifactError, match=r"mine\.parquet"):
        _loader(server, profile=path)


def test_a_whole_profile_is_taken_over(server, whole):
    assert _loader(server, profile=whole).profile is not None


def test_another_release_has_a_cache_of_its_own(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    now = cache_path(["job"])
    monkeypatch.setattr(kept, "__version__", "0.0.0")
    assert cache_path(["job"]) != now


def test_a_cache_that_cannot_be_written_is_no_error_and_a_path_of_the_users_is(whole, tmp_path):
    profile = Profile.load(whole)
    (tmp_path / "file").write_text("in the way")
    (tmp_path / "folder.parquet").mkdir()
    for path in (tmp_path / "file" / "profile.parquet", tmp_path / "folder.parquet"):
        KeptProfile(path, is_cache=True).save(profile)
        with pytest.raises(ConfigError, match=r"cannot be saved to .*give another path"):
            KeptProfile(path, is_cache=False).save(profile)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["file", "folder.parquet"]


def test_a_plan_from_a_kept_profile_does_not_count_on_the_training_step_of_the_run_before(server, whole, tmp_path):
    path = tmp_path / "profile.parquet"
    said = Profile.load(whole).provenance["resources"]
    _with(path, whole, resources={**said, "consumer_samples_per_s": 0.5, "link_bytes_per_s": 1e5})
    loader = _loader(server, profile=path)
    for _ in loader:
        break
    assert loader.plan is not None
    assert loader.plan.prediction.bottleneck != "consumer"
    assert loader.plan.resources.consumer_samples_per_s > 0.5
