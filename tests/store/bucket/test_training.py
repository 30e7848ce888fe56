"""Tensors from a bucket, through a node and without one: the oracle is a loader on a folder of the same files."""

import itertools
import warnings
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import sophon
from sophon.store import open_store
from tests.store.bucket.test_stores import upload
from tests.store.datasets import structs, write_tar
from tests.support.pictures import photo_folder
from tests.support.servers import RECIPE, digest, make_images, serve

POLICIES = ("none", "all", "resize", "sophon", "optimal", "0:window", "2:webp")


def photos(folder: Path, count: int = 24) -> Path:
    """Return a folder of photos: real ones if there are any."""
    real = photo_folder()
    found = [] if real is None else sorted(real.rglob("*.[jJ][pP]*[gG]"))[:count]
    for number, file in enumerate(found):
        home = folder / f"class_{number % 3}"
        home.mkdir(parents=True, exist_ok=True)
        (home / file.name).write_bytes(file.read_bytes())
    return folder if found else make_images(folder, count)


def as_kind(kind: str, root: Path, folder: Path) -> Path:
    """Return the samples of a folder as a data set of another kind, in the same order."""
    with open_store(root) as store:
        ids, labels = store.manifest.ids.to_pylist(), store.manifest.labels.tolist()
        files = [store.read(number) for number in range(len(store))]
    if kind == "folder":
        return root
    folder.mkdir()
    if kind == "listing":
        for name, data in zip(ids, files, strict=True):
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_bytes(data)
        rows = [f"{name},{label}" for name, label in zip(ids, labels, strict=True)]
        (folder / "metadata.csv").write_text("\n".join(["file_name,label", *rows]) + "\n")
    elif kind == "tar":
        members = []
        for number, (name, data) in enumerate(zip(ids, files, strict=True)):
            ending = name.rpartition(".")[2]
            members += [(f"{number:05}.{ending}", data), (f"{number:05}.cls", str(labels[number]).encode())]
        write_tar(folder / "a-000.tar", members[: len(members) // 4 * 2])
        write_tar(folder / "a-001.tar", members[len(members) // 4 * 2 :])
    else:
        table = pa.table({"image": structs(files, ids), "label": labels})
        pq.write_table(table, folder / "a.parquet", row_group_size=5)
    return folder


def epochs(data, policy: str, workers: int) -> list[str]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what a policy cannot do is said; here only bits count
        loader = sophon.DataLoader(data, RECIPE, batch_size=5, seed=3, shuffle=True, num_workers=workers, policy=policy)
        with loader:
            return [digest(loader) for _ in range(2)]


def _compare(server, tmp_path, kind, policy, workers, through_a_node):
    root = photos(tmp_path / "data")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        data = as_kind(kind, root, tmp_path / kind)
    address = upload(server, data, f"{tmp_path.name}/{kind}")
    expected = epochs(root, "none", 0)
    if through_a_node:
        with serve(address, options=("--cache-dir", str(tmp_path / "cache"))) as node:
            assert epochs(node.url, policy, workers) == expected
    else:
        assert epochs(address, policy, workers) == expected


def test_training_from_a_bucket_gives_the_bits_of_a_folder(seaweedfs, use, tmp_path):
    _compare(use(seaweedfs), tmp_path, "folder", "none", 0, False)


def test_training_through_a_node_beside_the_bucket_gives_the_bits_of_a_folder(seaweedfs, use, tmp_path):
    _compare(use(seaweedfs), tmp_path, "tar", "2:webp", 2, True)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["folder", "listing", "tar", "parquet"])
@pytest.mark.parametrize("through_a_node", [False, True])
@pytest.mark.parametrize("name", ["seaweedfs", "rclone"])
def test_all_kinds_policies_and_workers_give_the_same_bits(request, use, tmp_path, name, kind, through_a_node):
    server = use(request.getfixturevalue(name))
    root = photos(tmp_path / "data")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        data = as_kind(kind, root, tmp_path / kind)
    address = upload(server, data, f"{tmp_path.name}/{kind}")
    expected = epochs(root, "none", 0)
    policies = POLICIES if through_a_node else ("none",)
    if not through_a_node:
        for workers in (0, 2):
            assert epochs(address, "none", workers) == expected
        return
    with serve(address, options=("--cache-dir", str(tmp_path / "cache"))) as node:
        for policy, workers in itertools.product(policies, (0, 2)):
            assert epochs(node.url, policy, workers) == expected, (policy, workers)
