"""The loader that measures and plans for itself, against real servers."""

import time

import numpy as np
import pytest

import sophon
from sophon.bench.pictures.photo_folder import write_photos
from sophon.codec.cut import Cut
from sophon.errors import ArtifactError, ConfigError
from sophon.loader.planning import clocks, planner
from sophon.loader.planning import replanning as replan
from sophon.loader.sources.assignment import OffloadWarning
from sophon.pipeline import Pipeline, ops
from sophon.plan.plan import Plan
from tests.support.marks import slow
from tests.support.servers import MEAN, STD, digest, serve
from tests.support.settings import grouped

RECIPE = Pipeline(
    [ops.Decode(), ops.RandomResizedCrop(224), ops.RandomHorizontalFlip(), ops.ToTensor(), ops.Normalize(MEAN, STD)]
)
COUNT = 32


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data") / "photos"
    write_photos(folder, "openimages", COUNT)
    return folder


@pytest.fixture(scope="module")
def slow_link(photos):
    with serve(photos, options=("--limit", "30mbit")) as server:
        yield server


def _loader(server, **settings):
    settings = {"batch_size": 16, "shuffle": True, "num_workers": 2, "profile": False, **settings}
    return sophon.DataLoader(server.url, RECIPE, **grouped(**settings))


def _epochs(loader, count):
    found = []
    for _ in range(count):
        before = loader.stats.link_bytes
        found.append((digest(loader), loader.stats.link_bytes - before))
    return found


@pytest.fixture(scope="module")
def truth(slow_link):
    """Digests and bytes of three epochs of raw samples."""
    return _epochs(_loader(slow_link, policy="none"), 3)


@pytest.mark.parametrize("policy", [None, *slow("sophon", "fastflow")])
def test_it_measures_then_plans_and_the_bits_stay_the_same(slow_link, truth, policy):
    loader = _loader(slow_link, policy=policy)
    assert loader.plan is None
    assert loader.verdict is None
    found = _epochs(loader, 3)
    assert [bits for bits, _ in found] == [bits for bits, _ in truth]
    assert loader.plan.policy == (policy or "optimal")
    assert loader.verdict.bound == "I/O-bound"
    least = {None: 3.0, "sophon": 1.4, "fastflow": 0.9}[policy]
    assert truth[2][1] / found[2][1] > least
    predicted = loader.plan.prediction.link_bytes
    assert found[2][1] == pytest.approx(predicted, rel=0.1)
    assert "Cuts:" in loader.plan.explain()
    assert "on the link" in loader.profile.explain()


@pytest.mark.parametrize(("reason", "is_for_good"), [("whole", False), ("op_failed", True)])
def test_a_pass_that_needed_the_whole_file_says_nothing_about_the_next_one(slow_link, reason, is_for_good):
    loader = _loader(slow_link)
    _epochs(loader, 1)
    window = Cut(0, "window")
    loader._planner.hear("received", 0, 3, 100, 0.0, 0.0, time.monotonic(), 0.0, str(window), reason)
    _epochs(loader, 1)
    refused = np.isinf(loader.profile.payload_bytes[:, loader.profile.column(window)])
    assert refused.tolist() == [is_for_good and sample == 3 for sample in range(COUNT)]


def test_worker_processes_measure_and_plan_as_threads_do(slow_link, truth):
    loader = _loader(slow_link, kind="processes")
    found = _epochs(loader, 3)
    assert [bits for bits, _ in found] == [bits for bits, _ in truth]
    assert loader.plan.policy == "optimal"
    assert truth[2][1] / found[2][1] > 3.0
    assert found[2][1] == pytest.approx(loader.plan.prediction.link_bytes, rel=0.1)


@pytest.mark.slow
def test_a_fast_link_and_a_slow_consumer_leave_everything_as_it_is(photos):
    with serve(photos) as server:
        loader = _loader(server)
        for _ in range(2):
            for _ in loader:
                planner.time.sleep(0.8)
        assert {str(route): count for route, count in loader.plan.counts().items()} == {"0:raw": COUNT}
        assert loader.verdict.bound == "GPU-bound"


def test_the_next_run_of_the_same_job_plans_at_once(slow_link, truth, tmp_path):
    path = tmp_path / "profile.parquet"
    _epochs(_loader(slow_link, profile=path), 2)
    again = _loader(slow_link, profile=path)
    bits, size = _epochs(again, 1)[0]
    assert bits == truth[0][0]
    assert truth[0][1] / size > 3.0
    assert again.plan.policy == "optimal"


def test_a_profile_of_another_job_is_refused_with_both_pipelines(slow_link, tmp_path):
    path = tmp_path / "profile.parquet"
    _epochs(_loader(slow_link, profile=path), 1)
    other = Pipeline([ops.Decode(), ops.RandomResizedCrop(100), ops.ToTensor()])
    with pytest.raises(ArtifactError) as caught:
        sophon.DataLoader(slow_link.url, other, policy=sophon.Planning(profile=path))
    assert "it carries Decode, RandomResizedCrop(size=(224, 224)), RandomHorizontalFlip" in str(caught.value)
    assert "this job has Decode, RandomResizedCrop(size=(100, 100)), ToTensor." in str(caught.value)
    path.write_bytes(b"no profile")
    with pytest.raises(ArtifactError):
        _loader(slow_link, profile=path)


def test_by_default_the_profile_is_kept_in_the_cache_folder(slow_link, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    _epochs(_loader(slow_link, profile=None), 1)
    (kept,) = (tmp_path / "sophon" / "profiles").glob("*.parquet")
    kept.write_bytes(b"damaged")
    loader = _loader(slow_link, profile=None)  # only a cache: it is made anew
    _epochs(loader, 1)
    assert kept.stat().st_size > 1000


def test_a_link_that_becomes_slower_in_the_middle_of_an_epoch_changes_the_plan(photos, monkeypatch):
    monkeypatch.setattr(clocks, "_STRETCH_S", 0.2)
    monkeypatch.setattr(replan, "SETTLE_S", 0.3)
    monkeypatch.setattr(replan, "LOOK_S", 0.1)
    with serve(photos, options=("--limit", "2gbit")) as server:
        plain = _epochs(_loader(server, policy="none", batch_size=4), 2)[1][0]
        # Two raw requests cannot be under way at once, or the fast server would have answered everything.
        loader = _loader(server, buffer_bytes=5 << 20, num_workers=1, batch_size=4)
        _epochs(loader, 1)
        batches = iter(loader)
        seen = [next(batches)]
        planned = loader.plan
    with serve(photos, port=server.port, options=("--limit", "30mbit")):
        seen.extend(batches)
    assert digest(seen) == plain
    assert loader.revisions > 0
    assert loader.plan is not planned
    assert loader.plan.resources.link_bytes_per_s < planned.resources.link_bytes_per_s / 1.25


@pytest.mark.slow
def test_a_saved_plan_can_be_used_by_worker_processes(slow_link, truth, tmp_path):
    loader = _loader(slow_link)
    _epochs(loader, 2)
    loader.plan.save(tmp_path / "plan.parquet")
    assert isinstance(Plan.load(tmp_path / "plan.parquet"), Plan)
    forked = _loader(slow_link, policy=tmp_path / "plan.parquet", kind="processes", num_workers=1)
    assert digest(forked) == truth[0][0]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"share": 1.5}, "share: expected"),
        ({"policy": "best"}, "expected policy"),
    ],
)
def test_what_cannot_work_is_refused_with_a_remedy(slow_link, settings, message):
    with pytest.raises(ConfigError, match=message):
        _loader(slow_link, **settings)


def test_local_files_need_no_plan(photos):
    loader = sophon.DataLoader(photos, RECIPE, batch_size=16)
    assert len(list(loader)) == -(-COUNT // 16)
    assert (loader.plan, loader.profile, loader.resources) == (None, None, None)
    assert loader.verdict.to_json()["io_per_s"] is None, "there is no link"


def test_a_pipeline_of_user_code_alone_stays_on_the_trainer(slow_link):
    with pytest.warns(OffloadWarning, match="step 0, Call"):
        loader = sophon.DataLoader(slow_link.url, Pipeline([lambda data: np.float32(len(data))]), batch_size=16)
    assert loader.plan is None
    assert len(list(loader)) == -(-COUNT // 16)


def test_steps_of_ones_own_are_part_of_what_the_plan_reckons_with(photos):
    """They take the time of workers: where they set the pace, nothing is offloaded in vain, and words agree."""

    def slow(picture):
        time.sleep(0.05)
        return np.zeros(1, np.float32)

    recipe = Pipeline([ops.Decode(), ops.RandomResizedCrop(8), slow])
    with serve(photos) as server:
        loader = sophon.DataLoader(
            server.url, recipe, batch_size=16, num_workers=2, policy=sophon.Planning(profile=False)
        )
        for _ in range(2):
            for _ in loader:
                pass
    assert loader.resources.consumer_samples_per_s > 80
    assert loader.verdict.cpu_per_s < 41
    assert loader.verdict.bound == "CPU-bound"
    assert loader.plan.prediction.bottleneck == "trainer"
    assert "the link would set the pace" not in loader.explain()
