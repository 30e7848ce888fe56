"""Several ranks share an epoch as torch's DistributedSampler does, in equal steps."""

import json
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DistributedSampler

import sophon
from sophon.errors import ConfigError
from sophon.loader.order.order import epoch_order
from sophon.loader.order.ranks import Rank, each, find_rank, share
from sophon.loader.sampler import EpochSampler
from tests.support.launching import ROOT, environment, free_port
from tests.support.marks import slow
from tests.support.servers import RECIPE, make_images, serve
from tests.support.waiting import HANG_S


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    return make_images(tmp_path_factory.mktemp("data") / "train", 41)


@given(st.integers(1, 60), st.integers(1, 9), st.booleans())
def test_the_shares_are_those_of_torchs_distributed_sampler(count, size, drop):
    order = np.arange(count)
    for rank in range(size):
        theirs = DistributedSampler(range(count), size, rank, shuffle=False, drop_last=drop)
        if drop and count < size:
            continue  # torch's own asserts
        assert share(order, 0, Rank(rank, size), "drop" if drop else "pad").tolist() == list(theirs)


@given(st.integers(1, 60), st.integers(1, 7), st.integers(0, 60), st.sampled_from(["pad", "drop"]))
def test_all_ranks_get_equally_many_and_together_what_is_left(count, size, cursor, uneven):
    order = epoch_order(count, 1, 0, shuffle=True)
    cursor = min(cursor, count)
    shares = [share(order, cursor, Rank(rank, size), uneven).tolist() for rank in range(size)]
    assert {len(part) for part in shares} == {each(count - cursor, Rank(0, size), uneven)}
    whole = [sample for row in zip(*shares, strict=True) for sample in row]
    left = order[cursor:].tolist()
    assert whole[: len(left)] == left[: len(whole)]
    assert abs(len(whole) - len(left)) < size


@pytest.mark.parametrize(("uneven", "steps", "sizes"), [("pad", 4, [4, 4, 4, 2]), ("drop", 4, [4, 4, 4, 1])])
def test_every_rank_makes_the_same_steps_of_the_same_size(images, uneven, steps, sizes):
    for rank in range(3):
        loader = sophon.DataLoader(images, RECIPE, batch_size=4, ranks=sophon.Ranks(rank, 3, uneven=uneven))
        assert len(loader) == steps
        assert [len(labels) for _, labels in loader] == sizes
        loader = sophon.DataLoader(
            images, RECIPE, batch_size=4, drop_last=True, ranks=sophon.Ranks(rank, 3, uneven=uneven)
        )
        assert len(list(loader)) == len(loader) == 3


def test_samples_that_cannot_be_shared_evenly_are_an_error_where_that_is_wanted(images):
    with pytest.raises(ConfigError, match=r'41 samples cannot be shared evenly by 2 ranks.*uneven="pad"'):
        sophon.DataLoader(images, RECIPE, ranks=sophon.Ranks(0, 2, uneven="raise"))
    assert len(sophon.DataLoader(images, RECIPE, ranks=sophon.Ranks(0, 41, uneven="raise"))) == 1


def test_ranks_come_from_arguments_or_from_the_environment(images, monkeypatch):
    monkeypatch.setenv("RANK", "2")
    monkeypatch.setenv("WORLD_SIZE", "4")
    assert find_rank(None, None) == Rank(2, 4)
    assert find_rank(0, 1) == Rank(0, 1)
    loader = sophon.DataLoader(images, RECIPE, batch_size=41, output=sophon.Output(columns=("id",)))
    (batch,) = list(loader)
    everything = sophon.DataLoader(
        images, RECIPE, batch_size=41, output=sophon.Output(columns=("id",)), ranks=sophon.Ranks(0, 1)
    )
    names = next(iter(everything))[2]["id"]
    assert batch[2]["id"] == (names + names[:3])[2::4]
    # A sampler is divided by Lightning and Accelerate; it looks at nothing itself.
    assert len(EpochSampler(range(8))) == 8


@pytest.mark.parametrize(
    ("given_ranks", "environment", "message"),
    [
        ((3, None), {}, "rank and size go together"),
        ((4, 4), {}, "expected a rank in 0 … size - 1, got rank 4 of 4"),
        ((True, 2), {}, "rank: expected an integer"),
        ((None, None), {"WORLD_SIZE": "four"}, "WORLD_SIZE='four' in the environment"),
    ],
)
def test_wrong_ranks_are_refused(images, monkeypatch, given_ranks, environment, message):
    monkeypatch.delenv("RANK", raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match=message):
        sophon.DataLoader(images, RECIPE, ranks=sophon.Ranks(given_ranks[0], given_ranks[1]))


def test_which_rank_this_is_may_be_told_after_the_loader_is_made(images, monkeypatch):
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.setenv("WORLD_SIZE", "4")
    loader = sophon.DataLoader(images, RECIPE, batch_size=41)
    for look in (iter, len):
        with pytest.raises(sophon.RankError, match=r"WORLD_SIZE is 4 but RANK is not set.*start with torchrun"):
            look(loader)
    monkeypatch.setenv("RANK", "3")  # as a launcher does that joins its processes late
    (batch,) = list(loader)
    assert len(batch[1]) == len(loader) * 11


def test_an_unknown_way_to_share_is_refused(images):
    with pytest.raises(ConfigError, match="uneven: expected pad, drop or raise, got 'mix'"):
        sophon.DataLoader(images, RECIPE, ranks=sophon.Ranks(uneven="mix"))


def _run_ranks(size, *words):
    known = environment(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(free_port()), WORLD_SIZE=str(size))
    command = [sys.executable, "-m", "tests.support.rank_main", *words]
    running = [
        subprocess.Popen(
            command, env={**known, "RANK": str(rank)}, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        for rank in range(size)
    ]
    try:
        ends = [process.communicate(timeout=3 * HANG_S) for process in running]
    finally:
        for process in running:
            process.kill()
    for process, (_, errors) in zip(running, ends, strict=True):
        assert process.returncode == 0, errors.decode()[-3000:]
    return [json.loads(out.splitlines()[-1]) for out, _ in ends]


@pytest.mark.slow
@pytest.mark.parametrize(("uneven", "kind"), [*slow(("pad", "threads")), ("drop", "processes")])
def test_two_real_ranks_meet_at_every_step(tmp_path, uneven, kind):
    folder = make_images(tmp_path / "train", 21)
    with serve(folder) as server:
        victim = sorted(folder.rglob("*.*"))[4]
        victim.write_bytes(b"not a picture")  # one rank meets it, and makes no step less
        told = _run_ranks(2, server.url, uneven, kind)
    count = len(list(folder.rglob("*.*")))
    names = [[name for batch in epoch for name in batch] for rank in told for epoch in rank["seen"]]
    assert len({len(epoch) for epoch in names}) == 1
    for epoch in range(2):
        together = names[epoch] + names[2 + epoch]
        assert len(together) == (count + 1) // 2 * 2 if uneven == "pad" else count // 2 * 2
        assert len(set(together)) >= count - 2
    assert told[0]["state"] == told[1]["state"]
    assert (told[0]["state"]["epoch"], told[0]["state"]["cursor"]) == (2, 0)
