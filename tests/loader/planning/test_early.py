"""The first epoch of a new job is planned on its way: soon, more often at first, with the same bits."""

import numpy as np
import pytest

import sophon
from sophon.codec.cut import RAW, WINDOW
from sophon.loader.planning.early import Early
from sophon.pipeline import Pipeline, ops
from sophon.profile.columns import cuts_to_profile
from sophon.profile.explore import explore_first
from tests.support.servers import digest, make_images, serve

RECIPE = Pipeline([ops.Decode(), ops.RandomResizedCrop(64), ops.RandomHorizontalFlip(), ops.ToTensor()])
CUTS = cuts_to_profile(RECIPE)


def test_plans_become_rarer_as_more_is_known():
    early, made = Early(32), []
    for number in range(1, 1001):
        early.saw()
        if early.is_due(0.0):
            early.planned(0.0, 0.0)
            made.append(number)
    assert made == [32, 64, 128, 256, 512]


def test_plans_that_take_long_wait_for_their_time():
    early = Early(1)
    early.saw()
    assert early.is_due(10.0)
    early.planned(3.0, 13.0)
    for _ in range(100):
        early.saw()
    assert not early.is_due(27.9)
    assert early.is_due(28.1)


def test_the_first_samples_of_the_row_try_what_promises_most():
    row = np.random.default_rng(3).permutation(5000)[:2000]
    first = explore_first(RECIPE, CUTS, 5000, 0.05, 0, row)
    head = [CUTS[column] for column in first.columns[row[: first.head]]]
    assert first.head < 64
    assert head.count(RAW) == 8
    assert head.count(WINDOW) == 8
    assert {cut.codec for cut in head} >= {"webp", "zstd"}
    assert all(cut.k in (0, 2, 3) for cut in head), "nothing that is large"
    others = np.delete(first.columns[row], np.flatnonzero(np.isin(row, first.tried)))
    assert {CUTS[column] for column in others} == {WINDOW}, "until there is a plan"
    assert len(first.tried) == len(set(first.tried.tolist())) == 100


@pytest.mark.parametrize(("share", "count"), [(0.0, 1000), (0.05, 60)])
def test_with_few_samples_or_none_to_try_the_epoch_is_measured_as_a_whole(share, count):
    assert explore_first(RECIPE, CUTS, count, share, 0, np.arange(count)) is None


def test_a_new_job_is_planned_in_its_first_epoch_and_gives_the_same_bits(tmp_path):
    photos = make_images(tmp_path / "train", 240)
    with serve(photos, options=("--limit", "20mbit")) as server:

        def run(policy, **more):
            loader = sophon.DataLoader(
                server.url,
                RECIPE,
                batch_size=16,
                shuffle=True,
                seed=1,
                num_workers=2,
                policy=sophon.Planning(policy, profile=False, **more),
            )
            return loader, [digest(loader) for _ in range(2)]

        _, expected = run("none")
        planned, found = run("optimal")
        measured, also = run("sophon")
    assert found == also == expected
    assert planned.plan.policy == "optimal"
    assert planned.revisions > 0, "in the first epoch"
    assert measured.revisions == 0, "as the paper has it"


@pytest.mark.slow
def test_an_epoch_that_is_taken_up_again_tries_what_is_left_of_it(tmp_path):
    photos = make_images(tmp_path / "train", 240)
    with serve(photos) as server:
        told = {"batch_size": 16, "shuffle": True, "seed": 1, "num_workers": 2}
        loader = sophon.DataLoader(server.url, RECIPE, policy="none", **told)
        expected = list(loader)
        batches = iter(loader := sophon.DataLoader(server.url, RECIPE, policy="none", **told))
        for _ in range(4):
            next(batches)
        state = loader.state_dict()
        batches.close()
        again = sophon.DataLoader(server.url, RECIPE, policy=sophon.Planning("optimal", profile=False), **told)
        again.load_state_dict(state)
        assert digest(list(again)) == digest(expected[4:])
        assert again.stats.to_dict()["cuts"]["0:window"] > 0
