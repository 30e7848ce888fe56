"""What a node that is found later holds of a data set that was opened before."""

import numpy as np
import pyarrow as pa
import pytest

from sophon.codec.cut import RAW
from sophon.errors import ConfigError, RetryableError, UnavailableError
from sophon.link.listing import Listing
from sophon.link.transport import Opened
from sophon.link.wire import Request
from sophon.loader.sources.census import check_numbers
from sophon.loader.sources.found import Vacant
from sophon.loader.sources.source import Source
from sophon.loader.sources.union import Holding, Told, unite, whole_of
from sophon.pipeline import Pipeline, ops


def told(name, ids, labels, classes, sizes=None):
    sizes = np.array([len(one) for one in ids] if sizes is None else sizes, np.int64)
    listing = Listing("folder", pa.array(ids, pa.large_string()), sizes, np.array(labels, np.int64))
    return Told(name, listing, classes)


A = told("a", ["cat/1.jpg", "dog/2.jpg"], [0, 1], ("cat", "dog"))
B = told("b", ["dog/3.jpg", "emu/4.jpg"], [0, 1], ("dog", "emu"))


def test_a_later_node_holds_what_it_has_of_the_data_set_and_nothing_else():
    union = unite([A, B], keep_ids=True)
    later = told("c", ["emu/4.jpg", "dog/2.jpg", "fox/9.jpg"], [1, 0, 2], ("dog", "emu", "fox"))
    holding = union.fitted(later)
    names = union.ids.to_pylist()
    assert [names[i] for i in holding.indexes] == ["dog/2.jpg", "emu/4.jpg"]
    assert holding.own_of(holding.indexes.tolist()) == (1, 0)
    both = union.divided_among([*union.holdings, holding])
    assert [both.holders[part] for part in both.part_of] == [(0,), (0, 2), (1,), (1, 2)]
    alone = union.divided_among([None, None, holding])
    assert [alone.holders[part] for part in alone.part_of] == [(), (2,), (), (2,)]


@pytest.mark.parametrize(
    ("later", "what"),
    [
        (told("c", ["dog/2.jpg"], [0], ("dog",), [99]), "bytes"),
        (told("c", ["dog/2.jpg"], [0], ("cow",)), "label"),
        (told("c", ["dog/2.jpg", "dog/2.jpg"], [0, 0], ("dog",)), "several"),
    ],
)
def test_a_node_that_has_something_else_under_an_id_is_refused(later, what):
    with pytest.raises(ConfigError, match=what):
        unite([A, B], keep_ids=True).fitted(later)


def test_the_whole_of_one_node_keeps_its_own_order():
    mixed = told("m", ["dog/2.jpg", "cat/1.jpg"], [1, 0], ("cat", "dog"))
    whole = whole_of(mixed)
    assert whole.ids.to_pylist() == ["dog/2.jpg", "cat/1.jpg"]
    assert whole.fitted(A).indexes.tolist() == [0, 1]
    assert whole.fitted(A).own_of([0, 1]) == (1, 0)


def opened(part, whole="w", fingerprint=None):
    return Opened("train", 10, fingerprint or f"f{part}", part=part, whole=whole)


def test_parts_with_numbers_are_complete_or_the_missing_one_is_named():
    check_numbers([opened("1/2"), opened("2/2"), opened("2/2")])
    check_numbers([opened(""), opened("")])
    with pytest.raises(UnavailableError, match="2/3, 3/3"):
        check_numbers([opened("1/3")])
    with pytest.raises(ConfigError, match="different data sets"):
        check_numbers([opened("1/2"), opened("2/2", "other")])
    with pytest.raises(ConfigError, match="divide one differently"):
        check_numbers([opened("1/2"), opened("2/3")])


@pytest.mark.parametrize(("may_move", "kind"), [(True, RetryableError), (False, ConfigError)])
def test_a_node_that_came_back_without_a_sample_is_asked_again_until_another_one_has_it(may_move, kind):
    pipeline = Pipeline([ops.Decode()])
    source = Source(Vacant(), pipeline)
    source.may_move, source._opened = may_move, Opened("train", 2, "f")
    source._holding = Holding(np.array([1, 3]))
    request = Request("train", pipeline.to_spec(), 0, 0, (0, 1), (RAW, RAW))
    with pytest.raises(kind, match="hold"):
        source.fetch(request, 1.0)
