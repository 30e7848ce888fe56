"""Hugging Face's Trainer, with its own checkpoints on as many ranks, and with our loader on another number of them."""

import warnings
from importlib.util import find_spec

import pytest
import torch

import sophon
from sophon.bench.pictures.photo_folder import write_photos
from sophon.pipeline import Pipeline, ops
from sophon.store import open_store
from tests.support.launching import expected_of, seen_by_ranks
from tests.support.marks import slow
from tests.support.pictures import photo_folder
from tests.support.servers import make_images, serve

pytestmark = pytest.mark.skipif(find_spec("transformers") is None, reason="needs transformers")
COUNT, EPOCHS, BATCH = 24, 2, 2


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    return make_images(tmp_path_factory.mktemp("data") / "train", COUNT)


@pytest.fixture(scope="module")
def node(images):
    with serve(images) as running:
        yield running


def _run(way, node, folder, stop, ranks):
    program = ["-m", "tests.support.trained", way, node.url, str(folder), str(EPOCHS), str(stop)]
    return seen_by_ranks(program, ranks, folder, by_torchrun=ranks > 1)


@pytest.mark.parametrize(
    ("way", "ranks", "stop"),
    [
        *slow(("dataset", (1, 1), 15), ("dataset", (2, 2), 8)),  # in the second epoch
        *slow(("dataset", (2, 2), 3), ("loader", (2, 2), 3), ("loader", (2, 1), 3)),
    ],
)
def test_nothing_is_missing_or_there_twice_after_a_checkpoint_in_mid_epoch(way, ranks, stop, node, images, tmp_path):
    first = _run(way, node, tmp_path, stop, ranks[0])
    assert sum(map(len, first.values())) == stop * BATCH * ranks[0]
    second = _run(way, node, tmp_path, 0, ranks[1])
    for epoch in range(EPOCHS):
        seen = first[epoch] + second[epoch]
        assert len(seen) == COUNT
        assert set(seen) == expected_of(images, epoch)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # what libraries say of each other
def test_half_of_the_bytes_of_raw_files_are_enough(tmp_path, monkeypatch):
    """Over a link of 40 Mbit/s, with the ImageNet recipe, once the first epoch was measured."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    from tests.support.trained import Model, Trainer, TrainingArguments

    data = photo_folder()
    folder = tmp_path / "photos" if data is None else data / "imagenet"
    if not folder.is_dir():  # no photos here: some that weigh and compress like them
        write_photos(folder, "imagenet", 60)
    recipe = Pipeline([ops.Decode(), ops.RandomResizedCrop(224), ops.RandomHorizontalFlip(), ops.ToTensor()])
    sent = []

    class Counting(sophon.RemoteDataset):
        def set_epoch(self, epoch):
            sent.append(self.stats.link_bytes)
            super().set_epoch(epoch)

    def collated(items):
        pictures = [item[0] if isinstance(item, tuple) else item for item in items]
        return {"pixel_values": torch.stack(pictures), "labels": torch.zeros(len(items), dtype=torch.int64)}

    options = ("--limit", "40mbit", "--cache-dir", str(tmp_path))
    with sophon.LocalServer(folder, 1, options=options) as server, warnings.catch_warnings(action="ignore"):
        dataset = Counting(server.url, recipe, policy="optimal")
        told = TrainingArguments(
            str(tmp_path / "out"),
            num_train_epochs=3,
            per_device_train_batch_size=8,
            remove_unused_columns=False,
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
            use_cpu=True,
            dataloader_num_workers=1,
        )
        Trainer(Model(), told, data_collator=collated, train_dataset=dataset).train()
        total = dataset.stats.link_bytes
    raw_bytes = int(open_store(folder).manifest.sizes.sum())
    last = total - sent[-1]
    print(f"{last / 1e6:.2f} MB in the last epoch, {raw_bytes / 1e6:.2f} MB of raw files")  # noqa: T201
    assert dataset.plan is not None
    assert last <= 0.5 * raw_bytes
