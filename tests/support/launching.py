"""Programs of several ranks, as real processes, and what all of them have seen together."""

from __future__ import annotations

import collections
import hashlib
import json
import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sophon.pipeline import Key
from sophon.store import open_store
from tests.support.servers import RECIPE
from tests.support.waiting import HANG_S

ROOT = Path(__file__).parents[2]


def free_port() -> int:
    """Return a port of this machine on which nobody listens."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def environment(**more: str) -> dict[str, str]:
    """Return the environment of a program that finds this project, and knows of no ranks but its own."""
    ranks = ("RANK", "WORLD_SIZE", "LOCAL_RANK")
    inherited = {name: value for name, value in os.environ.items() if name not in ranks}
    return {**inherited, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}", "OMP_NUM_THREADS": "1", **more}


def seen_by_ranks(program: Sequence[str], ranks: int, folder: Path, by_torchrun: bool) -> dict[int, list[Any]]:
    """Run a program that writes down what each of its ranks has seen; return that by epoch."""
    port, how = str(free_port()), [sys.executable]
    if by_torchrun:
        rendezvous = ["--master-addr", "127.0.0.1", "--master-port", port]
        how += ["-m", "torch.distributed.run", "--nproc-per-node", str(ranks), *rendezvous]
    done = subprocess.run(
        [*how, *program],
        env=environment(MASTER_PORT=port),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=4 * HANG_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    seen = collections.defaultdict(list)
    for rank in range(ranks):
        for epoch, batch in json.loads((folder / f"seen-{rank}.json").read_text()):
            seen[epoch] += map(tuple, batch)
    return seen


def expected_of(images: Path, epoch: int) -> set[tuple[str, str]]:
    """Return what has to be seen of a folder in an epoch: ids, and digests of tensors."""
    store = open_store(images)
    return {
        (str(store.manifest.ids[i]), hashlib.sha256(RECIPE.run(store.read(i), Key(3, epoch, i)).tobytes()).hexdigest())
        for i in range(len(store))
    }
