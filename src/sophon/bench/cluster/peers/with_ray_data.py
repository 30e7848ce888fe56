"""The trainer process for Ray Data: reading and ops on raylets near the files, `iter_torch_batches` at the trainer.

Three ways, which differ in what crosses the link:

- ``tensors``: `read_images` + `map_batches`; finished float32 tensors, as in Ray's documentation
- ``crops``: the same up to the flip; bytes that the trainer turns into floats
- ``files``: `read_binary_files`; the trainer decodes and does everything else
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import ray
import ray.data
import torch

from sophon.bench.cluster.peers.counting import count_epoch
from sophon.bench.ops import MEAN, RECIPE, STD
from sophon.bench.rig.commands import answer
from sophon.pipeline import Key

_FLIPPED = 3  # ops up to and including the flip


class Commands:
    """The commands of the process."""

    def __init__(self) -> None:
        self._paths: list[str] = []
        self._batch_size = 0

    def hello(self) -> dict[str, str]:
        """Return the versions of packages."""
        torch.set_num_threads(1)
        return {"ray": ray.__version__, "torch": torch.__version__}

    def open(self, paths: list[str], batch_size: int, address: str, host: str) -> None:
        """Connect to the cluster."""
        ray.init(address=address, _node_ip_address=host, log_to_driver=False, logging_level="error")
        ray.data.DataContext.get_current().enable_progress_bars = False
        self._paths, self._batch_size = paths, batch_size

    def epoch(self, way: str, epoch: int, patience_s: float) -> dict[str, Any]:
        """Run an epoch."""
        return count_epoch(self._batches(way, epoch), len(self._paths), patience_s)

    def _batches(self, way: str, epoch: int) -> Iterator[list[int]]:
        how: dict[str, Any] = {
            "include_paths": True,
            "override_num_blocks": -(-len(self._paths) // self._batch_size),  # one block per batch
            "shuffle": ray.data.FileShuffleConfig(seed=epoch),
        }
        if way == "files":
            dataset = ray.data.read_binary_files(self._paths, **how)
        else:
            images = ray.data.read_images(self._paths, mode="RGB", **how)
            # No batch size: with one, Ray would not fuse reading and mapping, and would send decoded pictures between
            # raylets.
            dataset = images.map_batches(_mapper(way), batch_size=None)
        collate = {"files": _from_files, "crops": _from_crops, "tensors": _from_tensors}[way]
        for _, paths in dataset.iter_torch_batches(batch_size=self._batch_size, collate_fn=collate):
            yield [int(Path(path).parent.name) for path in paths]


def _mapper(way: str) -> Any:
    """Return the function that raylets apply to a batch of decoded pictures."""
    stop = _FLIPPED if way == "crops" else None

    def run(batch: dict[str, Any]) -> dict[str, Any]:  # has its own imports: it runs in other processes
        import numpy as np
        from PIL import Image

        from sophon.bench.ops import RECIPE
        from sophon.pipeline import Key

        pictures = list(map(Image.fromarray, batch["image"]))
        numbers = np.random.default_rng().integers(0, 1 << 31, len(pictures)).tolist()
        made = [RECIPE.run(one, Key(0, 0, number), 1, stop) for one, number in zip(pictures, numbers, strict=True)]
        return {"image": np.stack([np.asarray(one) for one in made]), "path": batch["path"]}

    return run


def _from_tensors(batch: dict[str, Any]) -> tuple[torch.Tensor, Any]:
    return torch.as_tensor(batch["image"]), batch["path"]


def _from_crops(batch: dict[str, Any]) -> tuple[torch.Tensor, Any]:
    pictures = torch.as_tensor(batch["image"]).permute(0, 3, 1, 2).float().div_(255)
    mean, std = (torch.tensor(its).view(1, 3, 1, 1) for its in (MEAN, STD))
    return pictures.sub_(mean).div_(std).contiguous(), batch["path"]


def _from_files(batch: dict[str, Any]) -> tuple[torch.Tensor, Any]:
    numbers = np.random.default_rng().integers(0, 1 << 31, len(batch["path"])).tolist()
    made = [RECIPE.run(data, Key(0, 0, number)) for data, number in zip(batch["bytes"], numbers, strict=True)]
    return torch.from_numpy(np.stack(made)), batch["path"]


if __name__ == "__main__":
    answer(Commands())
