"""One data set out of several listings, against a plain computation."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sophon.errors import ConfigError
from sophon.link.listing import Listing
from sophon.loader.sources.union import Told, unite
from sophon.store import open_store
from sophon.store.manifest import fingerprint_of
from tests.support.servers import make_images
from tests.support.torchvision_import import import_torchvision

ImageFolder = import_torchvision().datasets.ImageFolder
NAMES = st.text("ab-.é/", min_size=1, max_size=6).map(lambda text: text.strip("/") or "a")


def told(rows, kind="tar", classes=(), name="node"):
    """Make what a node tells of (id, size, label) rows."""
    ids, sizes, labels = zip(*rows, strict=True) if rows else ((), (), ())
    return Told(
        name,
        Listing(kind, pa.array(ids, pa.large_string()), np.array(sizes, np.int64), np.array(labels, np.int64)),
        classes,
    )


@given(st.sets(NAMES, max_size=20), st.integers(1, 4), st.randoms(use_true_random=False))
def test_whoever_holds_what_the_whole_is_the_sorted_union(names, nodes, random):
    facts = {name: (len(name) * 7, sum(name.encode()) % 5) for name in names}
    held = [set() for _ in range(nodes)]
    for name in names:
        for node in random.sample(range(nodes), random.randint(1, nodes)):
            held[node].add(name)
    listings = []
    for mine in held:
        rows = [(name, *facts[name]) for name in mine]
        random.shuffle(rows)  # in an order of its own
        listings.append(rows)
    union = unite([told(rows, name=f"node {node}") for node, rows in enumerate(listings)])
    order = sorted(names, key=lambda name: name.encode())
    assert union.sizes.tolist() == [facts[name][0] for name in order]
    assert union.labels.tolist() == [facts[name][1] for name in order]
    assert union.fingerprint == fingerprint_of(pa.array(order, pa.large_string()), union.sizes, union.labels)
    for sample, name in enumerate(order):
        holders = union.holders[union.part_of[sample]]
        assert holders == tuple(node for node in range(nodes) if name in held[node])
        for node in holders:
            (own,) = union.holdings[node].own_of([sample])
            assert listings[node][own][0] == name
        for node in set(range(nodes)) - set(holders):
            with pytest.raises(ConfigError, match="does not hold sample"):
                union.holdings[node].own_of([sample])


def test_folders_are_in_the_order_of_torchvision(tmp_path):
    make_images(tmp_path / "c", 6, classes=2)
    file = next((tmp_path / "c").rglob("*.jpg"))
    for path in ("a/z.jpg", "a/b/a.jpg", "a/b-c/a.jpg", "a-b/x.jpg", "a/B.jpg", "a/é.jpg", "a/b/c/d.jpg", "a.b/y.jpg"):
        target = tmp_path / "train" / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(file.read_bytes())
    whole = ImageFolder(tmp_path / "train")
    manifest = open_store(tmp_path / "train").manifest
    assert [path.removeprefix(f"{tmp_path}/train/") for path, _ in whole.samples] == manifest.ids.to_pylist()
    order = np.random.default_rng(0).permutation(len(manifest))
    parts = []
    for mine in (order[:3], order[3:]):
        ids = [manifest.ids[int(i)].as_py() for i in mine]
        classes = sorted({name.split("/")[0] for name in ids})
        rows = [(n, int(manifest.sizes[i]), classes.index(n.split("/")[0])) for n, i in zip(ids, mine, strict=True)]
        parts.append(told(rows, "folder", tuple(classes)))
    union = unite(parts)
    assert union.classes == manifest.classes
    assert union.labels.tolist() == manifest.labels.tolist()
    assert union.fingerprint == manifest.fingerprint


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([("a", 1, 0), ("b", 3, 0)], r"'b' is not the same everywhere \(bytes: 2 at one, 3 at two\)"),
        ([("b", 2, 1)], r"'b' is not the same everywhere \(label: 0 at one, 1 at two\)"),
        ([("c", 2, 1), ("c", 2, 1)], r"two has several samples named 'c'"),
    ],
)
def test_nodes_that_contradict_each_other_are_named(rows, words):
    with pytest.raises(ConfigError, match=words):
        unite([told([("a", 1, 0), ("b", 2, 0)], name="one"), told(rows, name="two")])


def test_classes_that_cannot_be_put_together():
    one = told([("a", 1, 0)], classes=("cat", "dog"), name="one")
    for classes, words in (((), "only some nodes have class names"), (("dog", "cow"), "differently, and not by name")):
        with pytest.raises(ConfigError, match=words):
            unite([one, told([("b", 1, 0)], classes=classes, name="two")])
    with pytest.raises(ConfigError, match="different kinds"):
        unite([one, told([("b", 1, 0)], "folder", ("cat",), "two")])
    union = unite([one, told([("b", 1, 1), ("c", 1, -1)], classes=("ape", "emu"), name="two")])
    assert union.classes == ("ape", "cat", "dog", "emu")
    assert union.labels.tolist() == [1, 3, -1]
    same = unite([told([("a", 1, 1)], classes=("z", "a")), told([("b", 1, 0)], classes=("z", "a"))])
    assert (same.classes, same.labels.tolist()) == (("z", "a"), [1, 0])
