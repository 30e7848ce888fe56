"""One part of a data set: every sample is in exactly one, however many there are."""

import numpy as np
import pytest

from sophon.errors import ConfigError
from sophon.store import open_store
from sophon.store.part import Part, part_of
from tests.support.servers import make_images


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return open_store(make_images(tmp_path_factory.mktemp("part") / "train", 23))


@pytest.mark.parametrize("of", [1, 2, 5, 23])
def test_every_sample_is_in_one_part_with_its_own_bytes_and_label(store, of):
    found = {}
    for number in range(1, of + 1):
        part = part_of(store, Part(number, of))
        assert (part.part, part.whole) == (f"{number}/{of}", store.manifest.fingerprint)
        assert abs(len(part) - len(store) / of) < 1
        for index, name in enumerate(part.manifest.ids.to_pylist()):
            assert name not in found
            found[name] = (part.read(index), part.manifest.label(index))
    whole = {n: (store.read(i), store.manifest.label(i)) for i, n in enumerate(store.manifest.ids.to_pylist())}
    assert found == whole


def test_the_division_depends_on_the_sorted_ids_alone(store):
    order = np.random.default_rng(0).permutation(len(store))
    mixed = store.holding(store.manifest.select(order))
    for number in (1, 2, 3):
        ids = [set(part_of(one, Part(number, 3)).manifest.ids.to_pylist()) for one in (store, mixed)]
        assert ids[0] == ids[1] == set(sorted(store.manifest.ids.to_pylist())[number - 1 :: 3])


def test_an_ordinal_is_the_number_at_the_end_of_the_hosts_name(monkeypatch):
    monkeypatch.setattr("socket.gethostname", lambda: "sophon-2")
    assert Part.parse("ordinal/4") == Part(3, 4)
    monkeypatch.setattr("socket.gethostname", lambda: "somewhere")
    with pytest.raises(ConfigError, match="does not end in a number"):
        Part.parse("ordinal/4")


@pytest.mark.parametrize("text", ["", "3", "0/4", "5/4", "1/0", "-1/3", "a/b", "1/99999", "1/2/3"])
def test_what_is_no_part_is_refused(text):
    with pytest.raises(ConfigError, match="part"):
        Part.parse(text)


def test_more_parts_than_samples_are_refused(store):
    with pytest.raises(ConfigError, match="fewer"):
        part_of(store, Part(1, 24))
