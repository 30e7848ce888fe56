"""Ray Data, a common alternative, on the same photos, cores and link.

``read_images`` + ``map_batches`` + ``iter_torch_batches`` on a `Cluster`, with the ops of our own pipeline after Decode
in the mapper. Ray Data sends finished tensors through its object store; here all raylets are on one machine, so no link
can be put between them. Samples per second are therefore compared where the CPU is the bottleneck, and the bytes that
would cross a link are counted.

The result also lists comparisons that are not possible here, with reasons.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from sophon.bench.harness import OnStep, nothing
from sophon.errors import Error

_NOT = {
    "ray data behind a shaped link": "raylets of one `Cluster` share this host's loopback and shared memory; Ray "
    "offers no way to put a link between two of them without a network of hosts",
    "same bits": "Ray Data has no order or random stream that could be compared: workers use their own random "
    "generators",
}
_SERVICE = "tensorflow is not installed here, so tf.data service was not run"


def bench_peers(data: Path, batch_size: int = 16, on_step: OnStep = nothing) -> dict[str, Any]:
    """Return samples per second of Ray Data, the bytes of its batches, and the comparisons that are not possible.

    Raises:
        Error: Ray Data failed.
    """
    not_compared = dict(_NOT)
    if importlib.util.find_spec("tensorflow") is None:
        not_compared["tf.data service"] = _SERVICE
    on_step("Ray Data", 1, 1)
    command = [sys.executable, "-m", "sophon.bench.cluster.peers", str(data.absolute()), str(batch_size)]
    told = subprocess.run(command, capture_output=True, text=True, check=False)
    lines = [line for line in told.stdout.splitlines() if line.startswith("{")]
    if told.returncode or not lines:
        raise Error(f"Ray Data failed: {told.stderr[-1000:]}")
    return {"ray_data": json.loads(lines[-1]), "not_compared": not_compared}


def _ray_data(data: Path, batch_size: int) -> dict[str, Any]:
    """Run two epochs of Ray Data; the second is timed."""
    import numpy as np
    import ray
    from PIL import Image

    from sophon.bench.cluster.raylets import raylets
    from sophon.bench.ops import RECIPE
    from sophon.pipeline import Key

    def finish(batch: dict[str, Any]) -> dict[str, Any]:
        rng = np.random.default_rng()
        keys = rng.integers(0, 1 << 31, len(batch["image"])).tolist()
        pictures = map(Image.fromarray, batch["image"])
        finished = [RECIPE.run(picture, Key(0, 0, key), 1) for picture, key in zip(pictures, keys, strict=True)]
        return {"image": np.stack(finished)}

    seconds, samples, size_bytes = 0.0, 0, 0
    with raylets([], head_cpus=2):
        ray.data.DataContext.get_current().enable_progress_bars = False
        for _ in range(2):
            start_s, samples, size_bytes = time.monotonic(), 0, 0
            dataset = ray.data.read_images(str(data), mode="RGB").map_batches(finish, batch_size=batch_size)
            for batch in dataset.iter_torch_batches(batch_size=batch_size):
                samples += len(batch["image"])
                size_bytes += batch["image"].numel() * batch["image"].element_size()
            seconds = time.monotonic() - start_s
    return {"per_s": samples / seconds, "samples": samples, "bytes_per_sample": size_bytes / max(samples, 1)}


if __name__ == "__main__":
    sys.stdout.write(json.dumps(_ray_data(Path(sys.argv[1]), int(sys.argv[2]))) + "\n")
