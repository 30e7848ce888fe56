"""A program with Hugging Face's Trainer: each rank writes down what it saw.

``python -m tests.support.trained WAY URL FOLDER EPOCHS STOP``: trains for EPOCHS, or until STOP steps are done and a
checkpoint lies in FOLDER; goes on from the checkpoint there, if there is one. WAY is "dataset" for a `RemoteDataset`
under the Trainer's own loader and checkpoints, or "loader" for `sophon.DataLoader` through `get_train_dataloader`.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import warnings
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"

import torch

import sophon
from sophon.bench.torchvision_import import import_torchvision
from tests.support.servers import RECIPE

import_torchvision()
with warnings.catch_warnings(action="ignore"):
    from transformers import Trainer, TrainerCallback, TrainingArguments

BATCH = 2
SETTINGS: dict[str, Any] = {"seed": 3, "output": sophon.Output(columns=("id",))}


class Model(torch.nn.Module):
    """Learns next to nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(3, 3)

    def forward(self, pixel_values: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        scores = self.layer(pixel_values.mean((2, 3)))
        return {"loss": torch.nn.functional.cross_entropy(scores, labels % 3), "logits": scores}


def collated(items: list[Any]) -> dict[str, Any]:
    """Return a batch as the Trainer wants it, with the names of its samples."""
    images, labels, columns = zip(*items, strict=True)
    names = [one["id"] for one in columns]
    return {"pixel_values": torch.stack(images), "labels": torch.tensor(labels), "names": names}


class Seeing(Trainer):
    """Writes down what it is given."""

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self.seen: list[Any] = []

    def compute_loss(self, model: Any, inputs: dict[str, Any], *arguments: Any, **settings: Any) -> Any:
        names = inputs.pop("names")
        images = inputs["pixel_values"]
        batch = [(n, hashlib.sha256(i.numpy().tobytes()).hexdigest()) for n, i in zip(names, images, strict=True)]
        self.seen.append((self.train_dataset.epoch, batch))
        return super().compute_loss(model, inputs, *arguments, **settings)


class WithLoader(Seeing):
    """Takes its batches from our loader."""

    loader: Any = None

    def get_train_dataloader(self) -> Any:
        return self.loader


class Stop(TrainerCallback):
    """Ends training after some steps, with a checkpoint that the state of a loader of ours lies beside."""

    def __init__(self, stop: int, loader: Any = None) -> None:
        self._stop, self._loader = stop, loader

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step == self._stop:
            control.should_save = control.should_training_stop = True
            if self._loader is not None and state.is_world_process_zero:
                Path(args.output_dir, "loader.json").write_text(json.dumps(self._loader.state_dict()))


def train(way: str, url: str, folder: Path, epochs: int, stop: int, **more: Any) -> Seeing:
    """Train, or go on, until the last epoch or step."""
    told = TrainingArguments(
        str(folder / "out"),
        num_train_epochs=epochs,
        per_device_train_batch_size=BATCH,
        remove_unused_columns=False,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
        seed=7,
        logging_strategy="no",
        ignore_data_skip=way == "loader",  # the loader knows itself where it stands
    )
    last = sorted((folder / "out").glob("checkpoint-*"))
    saved = folder / "out" / "loader.json"
    policy = sophon.Planning("optimal", profile=False)
    if way == "dataset":
        dataset = sophon.RemoteDataset(url, RECIPE, policy="optimal", **SETTINGS)
        trainer: Seeing = Seeing(Model(), told, data_collator=collated, train_dataset=dataset, **more)
        trainer.add_callback(Stop(stop))
        trainer.add_callback(sophon.EpochCallback())
    else:
        loader = sophon.DataLoader(
            url, RECIPE, batch_size=BATCH, shuffle=True, num_workers=1, policy=policy, collate_fn=collated, **SETTINGS
        )
        if saved.exists():
            loader.load_state_dict(json.loads(saved.read_text()))
        trainer = WithLoader(Model(), told, data_collator=collated, train_dataset=loader.dataset, **more)
        trainer.loader = loader
        trainer.add_callback(Stop(stop, loader))
    trainer.train(resume_from_checkpoint=str(last[-1]) if last else None)
    if way == "loader":
        trainer.loader.close()
    (folder / f"seen-{told.process_index}.json").write_text(json.dumps(trainer.seen))
    return trainer


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    train(sys.argv[1], sys.argv[2], Path(sys.argv[3]), *map(int, sys.argv[4:6]))
