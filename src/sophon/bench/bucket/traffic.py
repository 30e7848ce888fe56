"""Bytes read from a bucket and sent over a link: whole objects, bands without a node, and a node next to the bucket."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any, Final

from sophon.bench.rig.object_server import BUCKET, ObjectServer
from sophon.codec.window.object_index import write_index
from sophon.loader.loader import DataLoader
from sophon.loader.local_server import LocalServer
from sophon.pipeline import Pipeline, ops
from sophon.plan.plan import Plan, make_plan
from sophon.plan.resources import Resources
from sophon.profile.measure import measure
from sophon.store import Store, open_store
from sophon.store.bucket.account import ACCOUNT

_EPOCHS: Final = 2
_SEED: Final = 7
_LINK_BYTES_PER_S: Final = 5e6  # 40 Mbit/s, as in `bench paper`
_CORES: Final = 48  # enough that only the link is scarce
_RECIPE: Final = Pipeline([ops.Decode(), ops.RandomResizedCrop(224), ops.RandomHorizontalFlip(), ops.ToTensor()])


def bucket_bytes(server: ObjectServer, photos: Path, folder: Path, with_plan: bool = False) -> dict[str, Any]:
    """Count the bytes of the second epoch: whole objects, bands without a node, windows made by a node.

    Args:
        server: Object server for the pictures.
        photos: Folder of pictures.
        folder: Folder for the node's files.
        with_plan: Whether to also measure all cuts and compare a node next to the bucket with one next to the folder.
    """
    with open_store(photos) as files:
        server.put((f"photos/{files.manifest.ids[number].as_py()}", files.read(number)) for number in range(len(files)))
    address = f"s3://{BUCKET}/photos"
    whole = _epochs(address, "none")
    with open_store(address) as store:
        index_bytes = write_index(store).index_bytes
        file_bytes = int(_sizes(store))
    band = _epochs(address, "band")
    with LocalServer(address, cores=1, options=("--cache-dir", str(folder / "node"))) as node:
        window = _epochs(node.url, "0:window")
    found = {"whole": whole, "band": band, "window": window}
    assert len({each["digest"] for each in found.values()}) == 1, "tensors differ"
    result: dict[str, Any] = {
        "bucket_bytes": {name: each["bucket_bytes"] for name, each in found.items()},
        "index_bytes": index_bytes,
        "file_bytes": file_bytes,
        "link_bytes": {"window": window["link_bytes"]},
        "gets": {name: each["gets"] for name, each in found.items()},
        "hedge_bytes": {name: each["hedge_bytes"] for name, each in found.items()},
    }
    if with_plan:
        result |= _planned(photos, address, folder, whole["digest"])
    return result


def _planned(photos: Path, address: str, folder: Path, digest: str) -> dict[str, Any]:
    """Return how much traffic `optimal` saves on the link and from the bucket, with a slow link and enough cores."""
    with open_store(photos) as files:
        profile = measure(files, _RECIPE, seed=_SEED, epoch=_EPOCHS - 1)
        file_bytes = _sizes(files)
    plan = make_plan(profile, Resources(_LINK_BYTES_PER_S, _CORES, _CORES), "optimal")
    found = {}
    for name, data in (("folder", str(photos)), ("bucket", address)):
        with LocalServer(data, cores=1, options=("--cache-dir", str(folder / f"{name}-node"))) as node:
            found[name] = _epochs(node.url, plan)
    assert {each["digest"] for each in found.values()} == {digest}, "tensors differ"
    return {
        "link_gain": {name: file_bytes / each["link_bytes"] for name, each in found.items()},
        "bucket_gain": file_bytes / found["bucket"]["bucket_bytes"],
    }


def _sizes(store: Store) -> int:
    return int(store.manifest.sizes.sum())


def _epochs(data: str, policy: str | Plan) -> dict[str, Any]:
    """Return the cost of the second of two epochs, and a digest of its tensors."""
    digest = hashlib.sha256()
    loader = DataLoader(data, _RECIPE, batch_size=32, seed=_SEED, shuffle=True, num_workers=0, policy=policy)
    with loader:
        for _ in loader:
            pass
        stats = loader.stats
        before, account = (stats.reads, stats.read_bytes, stats.link_bytes), ACCOUNT.now()
        for batch in loader:
            digest.update((batch[0] if isinstance(batch, list | tuple) else batch).numpy().tobytes())
        is_local = data.startswith("s3://")
        return {
            "gets": stats.reads - before[0],
            # Hedged requests are counted separately: their number depends on how busy the machine is.
            "bucket_bytes": int(ACCOUNT.get_bytes - account["get_bytes"]) if is_local else stats.read_bytes - before[1],
            "hedge_bytes": int(ACCOUNT.hedge_bytes - account["hedge_bytes"]) if is_local else None,
            "link_bytes": stats.link_bytes - before[2],
            "digest": digest.hexdigest(),
        }
