import math

import numpy as np
import pytest

from sophon.errors import ConfigError
from sophon.plan.resources import KINDS, Node, Resources, kind_named
from sophon.profile.measures import MEASURES

GOOD = {"link_bytes_per_s": 1.0, "storage_cores": 1.0, "trainer_cores": 1.0, "consumer_samples_per_s": 1.0}


@pytest.mark.parametrize("name", GOOD)
@pytest.mark.parametrize("value", [-1, math.nan, -math.inf, None, "2", True, 1j])
def test_what_is_no_amount_is_refused(name, value):
    with pytest.raises(ConfigError, match=f"{name} is .*give the"):
        Resources(**{**GOOD, name: value})


@pytest.mark.parametrize("name", ["link_bytes_per_s", "trainer_cores", "consumer_samples_per_s"])
def test_zero_is_refused_with_what_to_give(name):
    with pytest.raises(ConfigError, match=f"{name} is 0.*more than zero"):
        Resources(**{**GOOD, name: 0})


@pytest.mark.parametrize("name", ["link_bytes_per_s", "storage_cores", "trainer_cores"])
def test_what_must_be_finite_is(name):
    with pytest.raises(ConfigError, match=f"{name} is inf"):
        Resources(**{**GOOD, name: math.inf})


def test_no_storage_cores_and_an_unknown_consumer_are_fine():
    assert Resources(1, 0, 1).consumer_samples_per_s == math.inf


def test_numpy_numbers_are_numbers():
    assert Resources(np.float32(1), np.int64(2), np.float64(3)).storage_cores == 2.0


def test_json_and_back():
    for resources in (Resources(1, 2, 3, 4), Resources(1.5, 0, 3)):
        assert Resources.from_json(resources.to_json()) == resources
    with pytest.raises(ConfigError, match=r"expected \[.*got resources"):
        Resources.from_json({"link_bytes_per_s": 1})


def test_text_is_for_people():
    assert str(Resources(62.5e6, 2, 8, 1200)) == "link 500 Mbit/s, 2 storage cores, 8 trainer cores, consumer 1,200/s"


def test_new_resources_are_unknown_until_somebody_says_them():
    unknown, known = Resources(1, 2, 3), Resources(1, 2, 3, store_reads_per_s=200, store_bytes_per_s=1e8)
    assert (unknown.store_reads_per_s, unknown.store_bytes_per_s) == (math.inf, math.inf)
    assert "store_reads_per_s" not in unknown.to_json()
    assert Resources.from_json(known.to_json()) == known
    assert [row.label for row in known.rows()] == ["link", "storage", "trainer", "reads", "store"]


def test_nodes_have_rates_of_their_own():
    nodes = [Node("a", {"link_bytes_per_s": 10, "storage_cores": 1}), Node("b", {"link_bytes_per_s": 5})]
    with pytest.raises(ConfigError, match="storage_cores is missing; give the cores near storage"):
        Resources(trainer_cores=1, nodes=nodes)
    found = Resources(trainer_cores=1, storage_cores=2, nodes=nodes)
    labels = [(row.label, row.part) for row in found.rows()]
    assert labels == [("link of a", 0), ("link of b", 1), ("storage", None), ("storage of a", 0), ("trainer", None)]
    assert str(found) == (
        "2 storage cores, 1 trainer cores, consumer ∞, a (link 80 bit/s, 1 storage cores), b (link 40 bit/s)"
    )
    with pytest.raises(ConfigError, match="'trainer_cores' is not a per-node rate"):
        Node("a", {"trainer_cores": 1})


def test_resources_are_changed_by_name_and_nothing_else():
    assert Resources(1, 2, 3).having(storage_cores=5) == Resources(1, 5, 3)
    with pytest.raises(ConfigError, match="'luck' was given twice or is not a resource"):
        Resources(1, 2, 3, luck=7)
    with pytest.raises(ConfigError, match="sending_s_per_byte is -1"):
        Resources(1, 2, 3, sending_s_per_byte=-1)
    with pytest.raises(AttributeError):
        _ = Resources(1, 2, 3).luck


def test_the_table_is_complete():
    known = {measure.name for measure in MEASURES} | {"samples"}
    for kind in KINDS:
        assert {use.measure for use in kind.uses} <= known
        assert kind_named(kind.name) is kind_named(f"{kind.name} of somewhere") is kind
        assert kind.option in kind.remedy
