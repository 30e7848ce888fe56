"""A training program that launchers start in several processes: each rank writes down what it saw, and its state.

``python -m tests.support.launched LAUNCHER URL FOLDER EPOCHS STOP RANKS``: trains until STOP batches of an epoch are
used up (0 for whole epochs) and goes on from FOLDER/state.json or Lightning's checkpoint, if there is one.
"""

from __future__ import annotations

import datetime
import hashlib
import json
import os
import sys
import warnings
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import sophon
from tests.support.servers import RECIPE
from tests.support.waiting import HANG_S

BATCH = 2


class Told:
    """What this program was told on its command line."""

    def __init__(self, words: list[str]) -> None:
        self.launcher, self.url = words[0], words[1]
        self.folder = Path(words[2])
        self.epochs, self.stop, self.ranks = map(int, words[3:6])

    def loader(self) -> sophon.DataLoader:
        """Return the loader, made before anybody has said which rank this is, as people do."""
        return sophon.DataLoader(
            self.url,
            RECIPE,
            batch_size=BATCH,
            shuffle=True,
            seed=3,
            num_workers=1,
            policy=sophon.Planning("optimal", profile=False),
            output=sophon.Output(columns=("id",)),
        )


def described(batch: Any) -> list[tuple[str, str]]:
    """Return id and digest of every sample of a batch."""
    images, _, columns = batch
    return [
        (name, hashlib.sha256(image.numpy().tobytes()).hexdigest())
        for name, image in zip(columns["id"], images, strict=True)
    ]


def train(told: Told, loader: Any) -> None:
    """Run epochs by hand; every step meets the other ranks."""
    saved = told.folder / "state.json"
    if saved.exists():
        loader.load_state_dict(json.loads(saved.read_text()))
    seen, state = [], None
    while loader.epoch < told.epochs:
        epoch = loader.epoch
        for number, batch in enumerate(loader):
            total = batch[0].sum()
            if dist.is_initialized():
                dist.all_reduce(total)  # fails if another rank makes fewer steps
            seen.append((epoch, described(batch)))
            if told.stop and number + 1 == told.stop:
                state = loader.state_dict()
                break
        if state is not None:
            break
    rank = loader.ranks.rank
    (told.folder / f"seen-{rank}.json").write_text(json.dumps(seen))
    if rank == 0 and state is not None:
        saved.write_text(json.dumps(state))


def by_group(told: Told) -> None:
    """As started by torchrun."""
    loader = told.loader()
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=HANG_S))
    train(told, loader)
    dist.destroy_process_group()


def by_accelerate(told: Told) -> None:
    """As started by `accelerate launch`, which is torchrun."""
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    train(told, accelerator.prepare(told.loader()))
    accelerator.end_training()


def _spawned(rank: int, told: Told, loader: sophon.DataLoader, port: str) -> None:
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(told.ranks), MASTER_ADDR="127.0.0.1", MASTER_PORT=port)
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=HANG_S))
    train(told, loader)
    dist.destroy_process_group()


def by_spawn(told: Told) -> None:
    """With torch.multiprocessing: the loader is made once, and pickled."""
    torch.multiprocessing.spawn(_spawned, (told, told.loader(), os.environ["MASTER_PORT"]), nprocs=told.ranks)


def by_lightning(told: Told) -> None:
    """With Lightning's own launcher, which starts this program once more for every other rank."""
    from sophon.bench.torchvision_import import import_torchvision

    import_torchvision()
    import lightning.pytorch as lightning

    class Model(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(3, 3)
            self.seen: list[Any] = []

        def training_step(self, batch: Any, _: int) -> Any:
            self.seen.append((self.current_epoch, described(batch)))
            return torch.nn.functional.cross_entropy(self.layer(batch[0].mean((2, 3))), batch[1] % 3)

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), 0.01)

    model = Model()
    # Within the epoch, as Lightning means it: what is saved after `fit` counts the epoch that max_steps ended as whole.
    saves = lightning.callbacks.ModelCheckpoint(told.folder, "lightning", every_n_train_steps=told.stop or None)
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=told.ranks,
        strategy="ddp" if told.ranks > 1 else "auto",
        max_epochs=told.epochs,
        max_steps=told.stop or -1,
        logger=False,
        callbacks=[saves] if told.stop else [],
        enable_checkpointing=bool(told.stop),
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=told.folder,
    )
    saved = told.folder / "lightning.ckpt"
    trainer.fit(model, told.loader(), ckpt_path=str(saved) if saved.exists() else None)
    (told.folder / f"seen-{trainer.global_rank}.json").write_text(json.dumps(model.seen))


LAUNCHERS = {"torchrun": by_group, "accelerate": by_accelerate, "spawn": by_spawn, "lightning": by_lightning}

if __name__ == "__main__":
    warnings.simplefilter("ignore")
    _told = Told(sys.argv[1:])
    LAUNCHERS[_told.launcher](_told)
