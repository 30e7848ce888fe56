"""One rank of a training run, started by tests with torchrun's environment: it meets the others at every step."""

from __future__ import annotations

import datetime
import json
import sys

import torch
import torch.distributed as dist

import sophon
from tests.support.servers import RECIPE
from tests.support.waiting import HANG_S


def main(url: str, uneven: str, kind: str) -> None:
    """Run two epochs and print what was seen as JSON."""
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=HANG_S))
    loader = sophon.DataLoader(
        url,
        RECIPE,
        batch_size=4,
        shuffle=True,
        num_workers=sophon.Workers(1, kind=kind),
        seed=3,
        policy="none",
        on_error="substitute",
        output=sophon.Output(columns=("id",)),
        ranks=sophon.Ranks(uneven=uneven),
    )
    seen = []
    for _ in range(2):
        names = []
        for images, _, columns in loader:
            total = images.sum()
            dist.all_reduce(total)  # hangs, and then fails, if another rank makes fewer steps
            assert torch.isfinite(total)
            names.append(columns["id"])
        seen.append(names)
    sys.stdout.write(json.dumps({"rank": loader.ranks.rank, "seen": seen, "state": loader.state_dict()}) + "\n")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
