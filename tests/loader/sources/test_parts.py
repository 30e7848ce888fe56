"""A data set that is spread over several nodes: real processes, real files."""

import json
import os
import shutil
import signal
import threading

import pytest

import sophon
from sophon.errors import ConfigError, UnavailableError
from sophon.loader.sources.census import AbsentWarning
from tests.support.epochs import epochs_digest
from tests.support.servers import RECIPE, digest, make_images, serve

COUNT, BATCH, SEED = 40, 4, 5
SETTINGS = {"batch_size": BATCH, "shuffle": True, "seed": SEED, "num_workers": 2, "profile": False}


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    return make_images(tmp_path_factory.mktemp("parts") / "train", COUNT)


@pytest.fixture(scope="module")
def expected(images):
    """Two epochs, computed the plain way: no loader, no server, one sample after the other."""
    return epochs_digest(images, SEED, BATCH)


@pytest.fixture(scope="module")
def whole(images):
    return sophon.RemoteDataset(images, RECIPE).opened.fingerprint


def part_of(images, folder, mine):
    """Copy the files for whose number `mine` is true to a folder of the same name."""
    for number, path in enumerate(sorted(images.rglob("*.*"))):
        if mine(number):
            target = folder / "train" / path.relative_to(images)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(path, target)
    return folder / "train"


def two_epochs(loader):
    return digest(batch for _ in range(2) for batch in loader)


@pytest.fixture(scope="module")
def halves(images, tmp_path_factory):
    """Two nodes: one with a class that the other has nothing of, and each with half of the others."""
    root = tmp_path_factory.mktemp("halves")
    first = part_of(images, root / "a", lambda n: n < 25 and n % 2 == 0)
    second = part_of(images, root / "b", lambda n: n >= 25 or n % 2 == 1)
    shutil.rmtree(first / "class_2", ignore_errors=True)
    assert {path.name for path in first.iterdir()} == {"class_0", "class_1"}
    with serve(first) as one, serve(second) as two:
        yield one, two


def test_two_halves_give_the_batches_of_the_whole(images, halves, expected, whole):
    one, two = halves
    for urls in ([one.url, two.url], [two.url, one.url]):
        loader = sophon.DataLoader(urls, RECIPE, policy="2:webp", **SETTINGS)
        assert (len(loader.dataset), loader.dataset.opened.fingerprint) == (COUNT, whole)
        assert loader.dataset.classes == ("class_0", "class_1", "class_2")
        assert two_epochs(loader) == expected
        assert sum(loader.stats.sources.values()) == 2 * COUNT
        assert set(loader.stats.sources) == {one.url, two.url}
