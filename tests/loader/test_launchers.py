"""Real launchers with two processes on CPUs: nothing missing or twice, the same bits, resumed with other ranks."""

import collections
import hashlib
import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from sophon.pipeline import Key
from sophon.store import open_store
from tests.support.launched import BATCH
from tests.support.marks import slow
from tests.support.servers import RECIPE, make_images, serve
from tests.support.waiting import HANG_S

ROOT = Path(__file__).parents[2]
COUNT, EPOCHS, STOP = 24, 2, 3


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    return make_images(tmp_path_factory.mktemp("data") / "train", COUNT)


@pytest.fixture(scope="module")
def node(images):
    with serve(images) as running:
        yield running


def _launch(launcher, node, folder, stop, ranks):
    """Run the program; return what all ranks have seen together, by epoch."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    program = ["-m", "tests.support.launched", launcher, node.url, str(folder), str(EPOCHS), str(stop), str(ranks)]
    how = [sys.executable]
    if launcher in ("torchrun", "accelerate"):
        rendezvous = ["--master-addr", "127.0.0.1", "--master-port", port]
        how += ["-m", "torch.distributed.run", "--nproc-per-node", str(ranks), *rendezvous]
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}", "OMP_NUM_THREADS": "1", "MASTER_PORT": port}
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        environment.pop(name, None)
    done = subprocess.run(
        [*how, *program], env=environment, cwd=ROOT, capture_output=True, text=True, timeout=4 * HANG_S, check=False
    )
    assert done.returncode == 0, done.stderr[-4000:]
    seen = collections.defaultdict(list)
    for rank in range(ranks):
        for epoch, batch in json.loads((folder / f"seen-{rank}.json").read_text()):
            seen[epoch] += map(tuple, batch)
    return seen


def _expected(images, epoch):
    store = open_store(images)
    return {
        (str(store.manifest.ids[i]), hashlib.sha256(RECIPE.run(store.read(i), Key(3, epoch, i)).tobytes()).hexdigest())
        for i in range(COUNT)
    }


@pytest.mark.parametrize(
    ("launcher", "ranks"),
    [
        ("spawn", (2, 1)),
        *slow(*((name, (2, n)) for name in ("torchrun", "accelerate", "lightning") for n in (2, 1)), ("spawn", (2, 2))),
    ],
)
def test_ranks_share_every_epoch_and_go_on_where_others_stopped(launcher, ranks, node, images, tmp_path):
    first = _launch(launcher, node, tmp_path, STOP, ranks[0])
    assert len(first[0]) == STOP * BATCH * ranks[0]
    second = _launch(launcher, node, tmp_path, 0, ranks[1])
    for epoch in range(EPOCHS):
        seen = first[epoch] + second[epoch]
        assert len(seen) == COUNT, "nothing is missing or there twice"
        assert set(seen) == _expected(images, epoch)
