"""Samples of several fields through the loader: the picture as ever, the others as they lie in the shard."""

import hashlib

import pytest

import sophon
from sophon import LocalServer, Output
from sophon.errors import ConfigError
from tests.store.test_fields import read_shard, write_shard
from tests.support.pictures import encode, scene
from tests.support.servers import RECIPE

COUNT = 12


@pytest.fixture(scope="module")
def shard(tmp_path_factory):
    folder = tmp_path_factory.mktemp("fields")
    members = []
    for i in range(COUNT):
        picture = encode(scene(120 + 9 * i, 150 + 5 * i, seed=i), "jpeg 4:2:0")
        mask = b"" if i == 3 else bytes([i, 0, 255, 0]) * (i + 1)  # one is empty, many end in a zero byte
        members += [(f"{i:03d}.jpg", picture), (f"{i:03d}.seg.png", mask), (f"{i:03d}.cls", str(i % 3).encode())]
    return write_shard(folder / "train.tar", members)


@pytest.fixture(scope="module")
def node(shard):
    options = ("--cache-dir", str(shard.parent / "cache"))
    with LocalServer(f"{shard}?fields=image,seg.png", 1, options=options) as server:
        yield server


def epoch(source, **more):
    """Return {id: (digest of the tensor, label, mask)} of an epoch."""
    found = {}
    more.setdefault("output", Output(columns=("id", "seg.png")))
    with sophon.DataLoader(source, RECIPE, batch_size=5, seed=7, shuffle=True, **more) as loader:
        for images, labels, columns in loader:
            rows = zip(images, labels, columns["id"], columns["seg.png"], strict=True)
            for image, label, name, mask in rows:
                found[name] = (hashlib.sha256(image.numpy().tobytes()).hexdigest(), int(label), mask)
    return found


@pytest.fixture(scope="module")
def expected(shard):
    """What a loader gives that knows nothing of fields, and what Python's tarfile says of the masks."""
    masks = read_shard(shard)
    plain = {}
    with pytest.warns(UserWarning, match="another one"):
        loader = sophon.DataLoader(
            str(shard), RECIPE, batch_size=5, seed=7, shuffle=True, output=Output(columns=["id"])
        )
    with loader:
        for images, labels, columns in loader:
            for image, label, name in zip(images, labels, columns["id"], strict=True):
                digest = hashlib.sha256(image.numpy().tobytes()).hexdigest()
                plain[name] = (digest, int(label), masks[name]["seg.png"])
    assert len(plain) == COUNT
    return plain


@pytest.mark.parametrize("workers", [0, 2, sophon.Workers(1, kind="processes")], ids=["none", "threads", "processes"])
def test_fields_come_along_from_a_path(shard, expected, workers):
    assert epoch(f"{shard}?fields=image,seg.png", num_workers=workers) == expected


@pytest.mark.parametrize("policy", ["none", "0:window", "2:webp", "4:raw"])
def test_fields_come_along_from_a_node_with_every_cut(node, expected, policy):
    assert epoch(node.url, policy=policy, num_workers=2) == expected


def test_fields_come_along_from_a_cache(node, expected, tmp_path):
    cache = sophon.Cache("1:zstd", folder=tmp_path)
    for _ in range(2):
        assert epoch(node.url, cache=cache, num_workers=0) == expected


def test_a_field_that_nobody_asks_for_is_not_sent(node, shard):
    sent = {}
    for columns in ((), ("seg.png",)):
        output = Output(columns=columns)
        with sophon.DataLoader(node.url, RECIPE, seed=7, policy="none", output=output) as loader:
            list(loader)
            sent[columns] = loader.stats.link_bytes
    members = read_shard(shard)
    masks = sum(len(one["seg.png"]) for one in members.values())
    assert sent[()] == sum(len(one["jpg"]) for one in members.values())
    assert sent[("seg.png",)] == sent[()] + masks + COUNT * 24


def test_a_field_that_is_not_there_is_named(node):
    with pytest.raises(ConfigError, match=r"no column 'depth' in .*; choose from id, seg\.png"):
        sophon.DataLoader(node.url, RECIPE, output=Output(columns=("depth",)))


def test_the_users_own_collate_fn_gets_bytes(node, expected):
    with sophon.DataLoader(
        node.url, RECIPE, seed=7, batch_size=4, num_workers=2, output=Output(columns=("id", "seg.png")), collate_fn=list
    ) as loader:
        found = {columns["id"]: columns["seg.png"] for batch in loader for _, _, columns in batch}
    assert found == {name: mask for name, (_, _, mask) in expected.items()}
