"""Volumes through a loader: the same bits from a folder and a node, with workers and without, cached or not."""

import importlib
import os

import numpy as np
import pytest
import torch

import sophon
from sophon.codec.volumes.indexing import write_foreground
from sophon.errors import ConfigError, OpError, StoreError
from sophon.pipeline import Key, ops
from sophon.store import open_store
from tests.support.volumes import DECODE, FORMATS, MLPERF, RECIPE, data_set


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return data_set(tmp_path_factory.mktemp("scans"))


@pytest.fixture(scope="module")
def expected(path):
    """What the pipeline itself gives for the two first epochs, sample by sample."""
    with open_store(path) as store:
        return [
            [RECIPE.run(store.read(sample), Key(5, epoch, sample)) for sample in range(len(store))]
            for epoch in range(2)
        ]


def check(where, expected, **options):
    with sophon.DataLoader(where, MLPERF, batch_size=2, seed=5, **options) as loader:
        for epoch in range(2):
            loader.set_epoch(epoch)
            batches = list(loader)
            for name, whole in (
                ("image", [v.array for v in expected[epoch]]),
                ("label", [v.label for v in expected[epoch]]),
            ):
                found = torch.cat([batch[name] for batch in batches]).numpy()
                assert found.tobytes() == np.stack(whole).tobytes(), (name, epoch, options)


@pytest.mark.parametrize(
    "options",
    [{}, {"num_workers": 2}, {"num_workers": 2, "multiprocessing_context": "fork"}],
    ids=["no workers", "threads", "processes"],
)
def test_batches_from_a_folder_are_what_the_pipeline_gives(path, expected, options):
    check(path, expected, **options)


def test_batches_from_a_node_are_the_same_whatever_the_policy(path, expected):
    with sophon.LocalServer(path, name="scans") as server:
        for policy in ("0:window", "4:zstd", "optimal"):
            check(server.url, expected, policy=policy)


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("workers", [0, 2])
def test_batches_of_every_format_at_every_cut_are_the_same(tmp_path, form, workers):
    path = data_set(tmp_path / "scans", 4, form)
    with open_store(path) as store:
        expected = [[RECIPE.run(store.read(n), Key(5, epoch, n)) for n in range(4)] for epoch in range(2)]
    with sophon.LocalServer(path, name="scans") as server:
        for cut in sophon.legal_cuts(RECIPE):
            check(server.url, expected, policy=str(cut), num_workers=workers)


def test_the_ops_before_the_crop_are_kept_and_run_once(path, expected, tmp_path):
    cache = sophon.Cache(folder=tmp_path)
    for _ in range(2):
        check(path, expected, cache=cache)


def test_an_image_alone_is_a_tensor(path):
    folder = path.partition("?")[0] + "/images"
    with sophon.DataLoader(folder, [ops.DecodeVolume(), ops.RandomBalancedCrop((8, 8, 8))], batch_size=2) as loader:
        assert [batch.shape for batch in loader] == [(2, 1, 8, 8, 8)] * 2


def test_functions_of_ones_own_are_given_image_and_label_by_name(path):
    def double(sample):
        return {"image": sample["image"] * 2, "classes": sample["label"].unique().tolist()}

    steps = [DECODE, ops.RandomBalancedCrop((8, 8, 8), 1.0), double]
    item = sophon.RemoteDataset(path, steps, seed=5)[1]
    plain = sophon.RemoteDataset(path, steps[:2], seed=5)[1]
    assert torch.equal(item["image"], plain["image"] * 2)
    assert item["classes"] == plain["label"].unique().tolist()


@pytest.mark.filterwarnings("ignore")  # of imports that MONAI does
def test_monais_dictionary_transforms_run_as_they_are_after_the_crop(path):
    monai = pytest.importorskip("monai.transforms", exc_type=ImportError)
    after = monai.Compose([monai.RandGaussianNoised("image", prob=1.0), monai.RandFlipd(["image", "label"], prob=0.5)])
    steps = [DECODE, ops.NormalizeVolume(), ops.RandomBalancedCrop((8, 8, 8)), after]
    with sophon.LocalServer(path, name="scans") as server:
        first, second = (
            sophon.RemoteDataset(url, steps, seed=5, policy=policy)[2]
            for url, policy in ((path, None), (server.url, "0:window"))
        )
    assert torch.equal(torch.as_tensor(first["image"]), torch.as_tensor(second["image"]))
    assert torch.equal(torch.as_tensor(first["label"]), torch.as_tensor(second["label"]))
    assert importlib.util.find_spec("monai") is not None


def test_what_is_missing_is_said(path, tmp_path):
    with pytest.raises(ConfigError, match=r"no field 'seg'; its fields are label, foreground"):
        sophon.RemoteDataset(path, [ops.DecodeVolume(label="seg")])
    with pytest.raises(ConfigError, match="is a field"):
        sophon.RemoteDataset(path, MLPERF, output=sophon.Output(columns=("label",)))
    other = data_set(tmp_path / "other", 2)
    (tmp_path / "other" / "labels" / "case_00001.nii.gz").unlink()
    with pytest.warns(UserWarning, match="missing or damaged"):
        missing = sophon.RemoteDataset(other, MLPERF)
    missing[0]
    with pytest.raises(StoreError, match="there is no label named case_00001"):
        missing[1]
    (tmp_path / "other" / "images" / "case_00000.nii.gz").write_bytes(b"\x1f\x8bno")
    with pytest.warns(UserWarning, match="missing or damaged"):
        damaged = sophon.RemoteDataset(f"{other}&foreground=foreground", MLPERF)
    with pytest.raises((OpError, StoreError)):
        damaged[0]


def test_an_index_is_written_once_and_anew_for_another_label(tmp_path):
    path = data_set(tmp_path, 3)
    folder = tmp_path / "foreground"
    before = {file.name: file.read_bytes() for file in folder.iterdir()}
    with open_store(path) as store:
        assert write_foreground(store, folder).kept == 3
        (folder / "case_00001.json").write_bytes(b"{}")
        written = write_foreground(store, folder, threads=2)
    assert (written.samples, written.kept, written.unreadable) == (3, 2, 0)
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == before


def test_a_pipe_or_a_terabyte_in_the_place_of_an_index_is_replaced(tmp_path):
    path = data_set(tmp_path, 2)
    folder = tmp_path / "foreground"
    before = {file.name: file.read_bytes() for file in folder.iterdir()}
    (folder / "case_00000.json").unlink()
    os.mkfifo(folder / "case_00000.json")
    os.truncate(folder / "case_00001.json", 1 << 40)
    with open_store(path) as store:
        assert write_foreground(store, folder).kept == 0
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == before
