"""Measuring a data set where it lies."""

import numpy as np
import pytest

from sophon import Cut, Pipeline, make_payload, open_store, ops
from sophon.codec.cut import is_exact
from sophon.errors import ConfigError
from sophon.pipeline import Key
from sophon.plan.policies import Options
from sophon.plan.policies.optimal import choose
from sophon.plan.resources import Resources
from sophon.profile.columns import cuts_to_profile
from sophon.profile.measure import measure
from tests.support.pictures import encode, scene

RECIPE = Pipeline(
    [
        ops.Decode(),
        ops.RandomResizedCrop(32),
        ops.RandomHorizontalFlip(),
        ops.ToTensor(),
        ops.Normalize((0.5,) * 3, (0.2,) * 3),
    ]
)


@pytest.fixture
def folder(tmp_path):
    for number in range(4):
        (tmp_path / f"{number}.jpg").write_bytes(encode(scene(90 + number, 70, number), "jpeg 4:2:0"))
    return tmp_path


def test_bytes_are_those_of_the_payloads(folder):
    store = open_store(folder)
    profile = measure(store, RECIPE, seed=3, epoch=2)
    for sample in range(len(store)):
        data = store.read(sample)
        for column, cut in enumerate(profile.cuts):
            assert profile.payload_bytes[sample, column] == len(make_payload(RECIPE, data, Key(3, 2, sample), cut))
    assert profile.fingerprints == {"pipeline": RECIPE.fingerprint, "dataset": store.manifest.fingerprint}
    assert not profile.storage_s[:, profile.column(Cut(0))].any()
    assert (profile.trainer_s > 0).all()


def test_a_file_that_cannot_be_decoded_can_only_be_sent_as_it_is(folder):
    (folder / "2.jpg").write_bytes(b"\xff\xd8\xff nothing that could be decoded")
    profile = measure(open_store(folder), RECIPE)
    assert np.isfinite(profile.payload_bytes[2]).tolist() == [cut == Cut(0) for cut in profile.cuts]


def test_files_of_which_none_can_be_decoded_are_refused(folder):
    for path in folder.iterdir():
        path.write_bytes(b"no picture")
    with pytest.raises(ConfigError, match=r"no sample could be preprocessed; check the files, such as 0\.jpg"):
        measure(open_store(folder), RECIPE)


def test_codecs_are_left_out_behind_ops_that_change_neither_shape_nor_type():
    cuts = cuts_to_profile(RECIPE)
    assert cuts[0] == Cut(0)
    assert Cut(2, "webp") in cuts
    assert Cut(3) in cuts
    assert Cut(3, "webp") not in cuts
    assert all(cut.k <= 1 for cut in cuts_to_profile(RECIPE, max_k=1))
    assert {cut.codec for cut in cuts_to_profile(RECIPE, ["raw"])} == {"raw"}


def test_an_empty_data_set_is_refused(folder):
    class Empty:
        def __len__(self):
            return 0

    with pytest.raises(ConfigError, match="empty"):
        measure(Empty(), RECIPE)


def test_of_views_both_sides_of_the_branch_are_weighed_for_every_sample(tmp_path):
    """A window of all boxes, or the crops themselves: whichever has fewer bytes, where the link is what binds."""
    for number, side in enumerate((60, 90, 400, 700, 900, 60)):
        (tmp_path / f"{number}.jpg").write_bytes(encode(scene(side, side - 7, number), "jpeg 4:2:0"))
    view = [ops.RandomResizedCrop(72), ops.ColorJitter(0.4), ops.GaussianBlur(3), ops.ToTensor()]
    profile = measure(open_store(tmp_path), Pipeline([ops.Decode(), ops.Views([view] * 2)]), seed=1)
    assert {"0:window", "2:webp", "3:webp"} <= set(map(str, profile.cuts))
    choice = choose(profile, Resources(10.0, 1, 1), Options())
    exact = np.array([is_exact(cut) for cut in profile.cuts])
    least = np.where(exact, profile.payload_bytes, np.inf).min(axis=1)
    assert profile.payload_bytes[np.arange(6), choice.cut].tolist() == least.tolist()
    chosen = {profile.cuts[column].codec == "window" for column in choice.cut.tolist()}
    assert chosen == {True, False}
