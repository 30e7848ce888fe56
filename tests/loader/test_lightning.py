"""PyTorch Lightning takes the loader as it is, and resumes it in the middle of an epoch from its own checkpoints."""

import functools
import logging
import warnings

import pytest
import torch

import sophon
from sophon.bench.torchvision_import import import_torchvision
from tests.support.servers import RECIPE, make_images
from tests.support.settings import grouped

pytestmark = [
    pytest.mark.filterwarnings("ignore"),  # Lightning's own advice is not ours to heed
]
COUNT, BATCH = 22, 4  # six batches, the last one small


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    return make_images(tmp_path_factory.mktemp("data") / "train", COUNT)


@functools.cache  # loading it takes seconds, and other processes collect this file too
def _lightning():
    """Return Lightning, with a model of it."""
    import_torchvision()  # Lightning's metrics would, and fail where its build and torch's do not match
    with warnings.catch_warnings(action="ignore"):
        lightning = pytest.importorskip("lightning.pytorch")

    class Model(lightning.LightningModule):
        """Learns next to nothing and remembers what it saw."""

        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(3, 3)
            self.seen = []

        def training_step(self, batch, batch_idx):
            images, labels, columns = batch
            self.seen.append((self.current_epoch, batch_idx, tuple(columns["id"]), images.numpy().tobytes()))
            return torch.nn.functional.cross_entropy(self.layer(images.mean((2, 3))), labels % 3)

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), 0.01)

    return lightning, Model


def _fit(images, tmp_path, epochs, resume=None, stop_at=None, count=1, **settings):
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    lightning, model_class = _lightning()
    model = model_class()
    saves = lightning.callbacks.ModelCheckpoint(tmp_path, filename="{step}", every_n_train_steps=1, save_top_k=-1)
    trainer = lightning.Trainer(
        accelerator="cpu",
        max_epochs=epochs,
        max_steps=stop_at or -1,
        logger=False,
        callbacks=[saves],
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=tmp_path,
    )
    loader = sophon.DataLoader(
        images,
        RECIPE,
        **grouped(
            batch_size=BATCH, shuffle=True, num_workers=count, seed=3, output=sophon.Output(columns=("id",)), **settings
        ),
    )
    trainer.fit(model, loader, ckpt_path=resume)
    return model


@pytest.fixture(scope="module")
def whole(images, tmp_path_factory):
    """Return what a run of three epochs sees, and the folder of its checkpoints, one per step."""
    folder = tmp_path_factory.mktemp("checkpoints")
    return _fit(images, folder, 3).seen, folder


def test_every_epoch_is_another_and_each_has_all_samples(whole):
    seen, _ = whole
    assert [(epoch, number) for epoch, number, _, _ in seen] == [(e, b) for e in range(3) for b in range(6)]
    for epoch in range(3):
        names = [name for e, _, part, _ in seen if e == epoch for name in part]
        assert len(set(names)) == len(names) == COUNT
    assert seen[0][2] != seen[6][2]


@pytest.mark.parametrize("step", [1, 5, 6, 7, 11, 12])
@pytest.mark.matrix(every=3)
def test_a_checkpoint_resumes_where_it_was_taken_within_an_epoch_and_at_its_end(images, whole, tmp_path, step):
    seen, folder = whole
    again = _fit(images, tmp_path, 3, resume=folder / f"step={step}.ckpt", count=step % 3).seen
    assert again == seen[step:]


def test_a_checkpoint_resumes_into_worker_processes(images, whole, tmp_path):
    seen, folder = whole
    again = _fit(images, tmp_path, 3, resume=folder / "step=8.ckpt", count=2, kind="processes").seen
    assert again == seen[8:]


def test_torchs_loader_with_our_data_set_and_sampler_works_too(images, tmp_path):
    dataset = sophon.RemoteDataset(images, RECIPE, seed=3, output=sophon.Output(columns=("id",)))
    sampler = sophon.EpochSampler(dataset, shuffle=True, seed=3)
    lightning, model_class = _lightning()
    model = model_class()
    trainer = lightning.Trainer(
        accelerator="cpu",
        max_epochs=2,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=tmp_path,
    )
    trainer.fit(model, torch.utils.data.DataLoader(dataset, BATCH, sampler=sampler))
    ours = sophon.DataLoader(
        images, RECIPE, batch_size=BATCH, shuffle=True, seed=3, output=sophon.Output(columns=("id",))
    )
    expected = [tuple(columns["id"]) for _ in range(2) for _, _, columns in ours]
    assert [names for _, _, names, _ in model.seen] == expected
