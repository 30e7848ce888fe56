"""Plans of several ranks, and of one loader with several nodes: they are of the whole job, with all that it has."""

import math

import pytest

import sophon
from sophon.loader.planning.clocks import LinkClock
from sophon.pipeline import Pipeline, ops
from sophon.process.cores import cores_here
from sophon.store import open_store
from tests.support.servers import digest, make_images, serve
from tests.support.settings import grouped

RECIPE = Pipeline([ops.Decode(), ops.RandomResizedCrop(32), ops.ToTensor()])
COUNT = 64


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    return make_images(tmp_path_factory.mktemp("data") / "train", COUNT)


@pytest.fixture(scope="module")
def server(images):
    with serve(images, cores=2) as running:
        yield running


def _loader(server, rank=0, size=1, **settings):
    settings = {"batch_size": 8, "num_workers": 1, "profile": False, "shuffle": True, **settings}
    return sophon.DataLoader(server.url, RECIPE, **grouped(rank=rank, size=size, **settings))


def _seen(clock, *, link, cores=0.0, waits=0.0):
    """Have a clock see this rank's part of link and cores for ten seconds."""
    clock.began(99, 0.0)
    for step in range(1, 101):
        clock.got(99, int(0.1 * link), 0.1 * cores, 0.1 * waits * step, 0.1 * step)
    clock.ended(99, 10.0)


def _planned_with(server, size, **seen):
    """Return a loader of one of several ranks whose second epoch is planned with what its clock has seen."""
    loader = _loader(server, 0, size)
    list(loader)
    planner = loader._planner
    planner._resources, planner.plan, planner._clock = None, None, LinkClock(2.0)
    _seen(planner._clock, **seen)
    next(iter(loader))
    return loader


@pytest.mark.parametrize("size", [1, 2, 4])
def test_what_a_rank_sees_is_its_part_and_what_it_plans_with_is_the_whole(server, size):
    loader = _planned_with(server, size, link=6e6 / size)
    planned = loader.plan.resources
    assert planned.link_bytes_per_s == pytest.approx(6e6, rel=0.02)
    assert planned.storage_cores == pytest.approx(2)
    assert planned.trainer_cores == size  # one worker each
    prediction = loader.plan.prediction
    assert prediction.link_s == pytest.approx(prediction.link_bytes / 6e6, rel=0.02)
    # All samples, and not those of one rank.
    raw = loader.profile.payload_bytes[:, 0]
    assert loader.plan.untouched.link_bytes == pytest.approx(float(raw.sum()), rel=1e-5)
    assert len(raw) == COUNT


@pytest.mark.parametrize("size", [2, 4])
def test_cores_that_all_ranks_wait_for_are_seen_in_parts_too(server, size):
    loader = _planned_with(server, size, link=1e5, cores=0.5 / size, waits=0.9)
    # A quarter more is hoped for when an epoch begins.
    assert loader.plan.resources.storage_cores == pytest.approx(1.25 * 0.5, rel=0.05)


def test_the_verdict_is_of_one_rank_as_are_the_words_around_it(server):
    loader = _planned_with(server, 4, link=1e6)
    raw_bytes = float(loader.profile.payload_bytes[:, 0].mean())
    assert loader.verdict.io_per_s == pytest.approx(1e6 / raw_bytes, rel=0.02)


def test_ranks_on_one_machine_share_its_cores(server, monkeypatch):
    monkeypatch.setenv("LOCAL_WORLD_SIZE", str(8 * cores_here()))
    loader = _planned_with(server, 16 * cores_here(), link=1e6)
    assert loader.plan.resources.trainer_cores == pytest.approx(2 * cores_here())  # of two machines like this one


def test_consumers_add_up(server):
    loader = _loader(server, 0, 2)
    list(loader)
    planner = loader._planner
    taken, spent_s = loader.stats.samples, planner._loop_s()
    assert loader.resources.consumer_samples_per_s == pytest.approx(2 * taken / spent_s)


def test_a_rank_knows_the_sizes_of_files_that_it_has_not_seen(server, images):
    loader = _loader(server, 1, 4)
    list(loader)
    next(iter(loader))
    raw = loader.profile.payload_bytes[:, loader.profile.column(sophon.Cut(0))]
    assert raw.tolist() == open_store(images).manifest.sizes.tolist()
    assert loader._planner._recorder.seen < COUNT


def test_ranks_that_plan_for_themselves_give_the_batches_of_those_that_do_not(server):
    for rank in range(2):
        plain, planned = _loader(server, rank, 2, policy="none"), _loader(server, rank, 2)
        for _ in range(3):
            assert digest(planned) == digest(plain)
        assert planned.plan is not None


def test_cores_of_several_nodes_add_up(images, server):
    with serve(images, cores=1) as other:
        loader = sophon.DataLoader(
            [server.url, other.url], RECIPE, batch_size=8, num_workers=1, policy=sophon.Planning(profile=False)
        )
        assert loader.resources.storage_cores == 3  # of a node with two and one with one
        for _ in range(2):
            list(loader)
        assert loader.plan.resources.storage_cores == 3


def test_a_kept_profile_is_good_for_another_number_of_ranks(server, tmp_path):
    path = tmp_path / "profile.parquet"
    loader = _loader(server, 0, 2, profile=path)
    list(loader)
    told = loader._planner._resources
    again = _loader(server, 0, 1, profile=path)
    assert again._planner._resources == told.having(consumer_samples_per_s=math.inf)  # its training step may differ
    # It has seen half of the samples, and says so: the others are measured, or guessed, anew.
    seen = again._planner._recorder.seen
    assert seen == COUNT // 2
    assert not math.isnan(float(again.profile.payload_bytes.sum()))
