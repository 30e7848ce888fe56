"""Bad samples: raised, substituted or skipped, within a budget, and always recorded."""

import json

import pytest
import torch

import sophon
from sophon.errors import ArtifactError, BudgetError, ConfigError, OpError, StoreError, UnavailableError
from sophon.loader.account.bad import BadSamples
from sophon.pipeline import Key, Pipeline
from tests.support.servers import RECIPE, digest, make_images, serve
from tests.support.settings import grouped

COUNT, BATCH, SEED = 23, 4, 7
BROKEN, GONE = (5, 6, 22), (9,)  # 5 and 6 are neighbours; behind 22 comes 0
BAD = {*BROKEN, *GONE}


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    return make_images(tmp_path_factory.mktemp("data") / "train", COUNT)


@pytest.fixture(scope="module")
def server(images):
    """Serve some files that are no pictures, and take others away behind the server's back."""
    files = sorted(images.rglob("*.*"))
    for sample in BROKEN:
        files[sample].write_bytes(b"\xff\xd8\xff not a picture")
    with serve(images, cores=2, options=("--debug",)) as running:
        for sample in GONE:
            files[sample].unlink()
        yield running


def _good(sample):
    while sample in BAD:
        sample = (sample + 1) % COUNT
    return sample


@pytest.fixture(scope="module")
def good(server, images):
    """Return (tensor, label) of every good sample of epoch 0."""
    names = sorted(path for path in images.rglob("*.*"))
    names = {str(path.relative_to(images)): path for path in names}
    dataset = sophon.RemoteDataset(server.url, RECIPE, seed=SEED, output=sophon.Output(columns=("id",)))
    found = {}
    for sample in range(COUNT):
        if sample not in BAD:
            image, label, columns = dataset[sample]
            data = names[columns["id"]].read_bytes()
            assert image.numpy().tobytes() == RECIPE.run(data, Key(SEED, 0, sample)).tobytes()
            found[sample] = (image, label)
    return found


def _batches(good, samples):
    for start in range(0, len(samples), BATCH):
        part = [good[sample] for sample in samples[start : start + BATCH] if sample is not None]
        if part:
            yield torch.stack([image for image, _ in part]), torch.tensor([label for _, label in part])


def _loader(server, **settings):
    return sophon.DataLoader(
        server.url, RECIPE, **grouped(**{"batch_size": BATCH, "seed": SEED, "budget": 4, **settings})
    )


KINDS = {
    "no workers": {},
    "threads": {"num_workers": 2},
    "processes": {"num_workers": 2, "kind": "processes"},
    "offloaded": {"num_workers": 1, "policy": "resize"},
    "collate_fn": {"num_workers": 1, "collate_fn": torch.utils.data.default_collate},
}


@pytest.mark.filterwarnings("ignore:.*raw files instead")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.matrix(every=3)
def test_a_substitute_is_the_next_good_sample_and_batches_stay_whole(server, good, kind):
    loader = _loader(server, on_error="substitute", **KINDS[kind])
    expected = digest(_batches(good, [_good(sample) for sample in range(COUNT)]))
    assert digest(loader) == expected
    loader.set_epoch(0)
    assert digest(loader) == expected
    assert sorted(row.sample for row in loader.bad_samples) == sorted(BAD)


@pytest.mark.filterwarnings("ignore:.*raw files instead")
@pytest.mark.parametrize("kind", KINDS)
def test_a_skipped_sample_makes_its_batch_smaller(server, good, kind):
    loader = _loader(server, on_error="skip", **KINDS[kind])
    samples = [None if sample in BAD else sample for sample in range(COUNT)]
    assert digest(loader) == digest(_batches(good, samples))
    assert len(loader.bad_samples) == 4


@pytest.mark.parametrize("kind", ["no workers", "threads", "processes"])
def test_a_batch_of_which_nothing_is_left_is_left_out(server, good, kind):
    loader = _loader(server, on_error="skip", **{**KINDS[kind], "batch_size": 1})
    assert sum(len(labels) for _, labels in loader) == len(list(loader)) == COUNT - 4
    assert loader.state_dict()["epoch"] == 2


@pytest.mark.parametrize("kind", ["threads", "processes"])
def test_among_several_ranks_an_empty_batch_is_an_error_and_not_a_step_less(server, kind):
    loader = _loader(server, on_error="skip", rank=1, size=2, **{**KINDS[kind], "batch_size": 1})
    with pytest.raises(BudgetError, match=r"rank 1 take fewer steps.*on_error='substitute'"):
        list(loader)


def test_ranks_substitute_the_same(server, good):
    parts = []
    for rank in range(2):
        loader = _loader(server, on_error="substitute", rank=rank, size=2, batch_size=1)
        parts.append([batch[0] for batch in loader])
    both = [image for pair in zip(*parts, strict=True) for image in pair][:COUNT]
    for sample, image in enumerate(both):
        assert torch.equal(image[0], good[_good(sample)][0])


@pytest.mark.parametrize("kind", ["threads", "processes"])
def test_the_record_says_which_sample_which_op_why_and_where(server, kind, tmp_path):
    loader = _loader(server, on_error="substitute", **KINDS[kind])
    list(loader)
    rows = {row.sample: row for row in loader.bad_samples}
    assert rows.keys() == BAD
    broken, gone = rows[5], rows[9]
    assert (broken.op, broken.error, broken.where, broken.epoch) == ("Decode", "OpError", "trainer", 0)
    assert broken.id in broken.message
    assert "Traceback" in broken.traceback
    assert (gone.op, gone.error, gone.where) == (None, "StoreError", "storage")
    assert gone.id is not None
    assert gone.id in gone.message
    assert "sophon/store/" in gone.traceback  # a trainer that asks a node opens no files
    assert rows[6].times == 2  # once by itself, once as the neighbour of 5
    path = tmp_path / "bad.jsonl"
    loader.bad_samples.save(path)
    again = BadSamples.load(path)
    assert list(again) == sorted(loader.bad_samples, key=lambda row: row.sample)
    assert [json.loads(line)["sample"] for line in path.read_text().splitlines()[1:]] == sorted(BAD)
    assert [file.name for file in tmp_path.iterdir()] == ["bad.jsonl"]


def test_a_remote_error_carries_the_servers_traceback(server):
    dataset = sophon.RemoteDataset(server.url, RECIPE)
    with pytest.raises(StoreError) as caught:
        dataset[9]
    (note,) = caught.value.__notes__
    assert note.startswith("traceback on the storage node:")
    assert "sophon/server/" in note
    with pytest.raises(ConfigError) as caught:
        sophon.RemoteDataset(server.url.rsplit("/", 1)[0] + "/nowhere", RECIPE)
    assert not hasattr(caught.value, "__notes__")  # what the user said is not found in the node's code


@pytest.mark.parametrize("kind", ["no workers", "threads", "processes"])
def test_more_bad_samples_than_the_budget_are_an_error_that_says_so(server, kind):
    loader = _loader(server, on_error="substitute", **{**KINDS[kind], "budget": 2})
    with pytest.raises(
        BudgetError, match=r"3 bad samples exceed the budget of 2, which allows 2;.*loader\.bad_samples"
    ):
        list(loader)
    loader = _loader(server, on_error="skip", **{**KINDS[kind], "budget": 0.01})
    with pytest.raises(BudgetError, match=r"2 bad samples exceed the budget of 0\.01, which allows 1;"):
        list(loader)


def test_the_default_is_to_raise(server):
    loader = _loader(server, num_workers=1)
    batches = iter(loader)
    next(batches)
    with pytest.raises(OpError, match=r"sample 5, op 0 \(Decode\)"):
        next(batches)
    assert len(loader.bad_samples) == 0


class _Refuses:
    """A user's own step that fails on some pictures."""

    def __call__(self, tensor):
        if float(tensor.mean()) > 0.5:
            raise ValueError("too bright")
        return tensor


@pytest.mark.parametrize("kind", ["no workers", "threads", "processes"])
def test_a_users_own_step_that_fails_makes_a_bad_sample_too(tmp_path, kind):
    folder = make_images(tmp_path / "train", 12)
    plain = sophon.DataLoader(folder, RECIPE, batch_size=12)
    ((tensors, _),) = list(plain)
    bright = {i for i, tensor in enumerate(tensors) if float(tensor.mean()) > 0.5}
    assert 0 < len(bright) < 12
    loader = sophon.DataLoader(
        folder,
        Pipeline([*RECIPE.ops, _Refuses()]),
        **grouped(batch_size=12, on_error=sophon.OnError("skip", 12), **KINDS[kind]),
    )
    ((kept, _),) = list(loader)
    assert kept.tolist() == tensors[[i for i in range(12) if i not in bright]].tolist()
    assert {row.sample for row in loader.bad_samples} == bright
    assert all("too bright" in row.message and "_Refuses" in row.op for row in loader.bad_samples)


def test_a_target_transform_that_fails_makes_a_bad_sample_too(tmp_path):
    folder = make_images(tmp_path / "train", 6)
    loader = sophon.DataLoader(
        folder, RECIPE, batch_size=6, target_transform=lambda label: 1 // label, on_error=sophon.OnError("skip", 3)
    )
    ((_, labels),) = list(loader)
    assert len(labels) == 4
    assert {row.error for row in loader.bad_samples} == {"ZeroDivisionError"}


def test_a_lost_server_is_no_bad_sample(tmp_path):
    folder = make_images(tmp_path / "train", 6)
    with serve(folder) as lost:
        loader = sophon.DataLoader(
            lost.url,
            RECIPE,
            batch_size=2,
            on_error="skip",
            faults=sophon.Faults(deadline_s=5.0),
            num_workers=sophon.Workers(0, buffer_bytes=1),
        )
        batches = iter(loader)
        next(batches)
    with pytest.raises(UnavailableError):
        list(batches)
    assert len(loader.bad_samples) == 0


def test_a_data_set_of_bad_samples_is_an_error_and_no_endless_search(tmp_path):
    folder = make_images(tmp_path / "train", 3)
    for path in folder.rglob("*.*"):
        path.write_bytes(b"nothing")
    loader = sophon.DataLoader(folder, RECIPE, batch_size=2, on_error=sophon.OnError("substitute", 1.0))
    with pytest.raises(BudgetError, match="all 3 samples are bad"):
        list(loader)


def test_under_torchs_own_loader_an_empty_batch_is_an_error_that_says_what_to_do(server):
    dataset = sophon.RemoteDataset(server.url, RECIPE, seed=SEED, on_error=sophon.OnError("skip", 4))
    assert len(dataset.__getitems__([4, 5, 7])) == 2
    with pytest.raises(BudgetError, match="all 2 samples of a batch are bad"):
        dataset.__getitems__([5, 6])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"on_error": "ignore"}, "on_error: expected raise, substitute or skip, got 'ignore'"),
        ({"budget": -1}, "budget: expected a number of samples or a share"),
        ({"budget": 1.5}, "budget: expected"),
        ({"budget": True}, "budget: expected"),
    ],
)
def test_wrong_settings_are_refused(server, settings, message):
    with pytest.raises(ConfigError, match=message):
        _loader(server, **settings)


def test_a_data_set_has_its_own_policy(server):
    dataset = sophon.RemoteDataset(server.url, RECIPE, on_error="skip")
    with pytest.raises(ConfigError, match="has its own on_error"):
        sophon.DataLoader(dataset, on_error="substitute")
    assert sophon.DataLoader(dataset).bad_samples is dataset.bad_samples


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": "sophon bad samples 1"}', "\x00"])
def test_what_is_no_record_is_refused(tmp_path, text):
    path = tmp_path / "bad.jsonl"
    path.write_text(text)
    with pytest.raises(ArtifactError, match="not a record of bad samples"):
        BadSamples.load(path)
