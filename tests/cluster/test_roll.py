"""Which nodes there are, in virtual time."""

import pytest

from sophon.cluster.members import MOST_NODES
from sophon.cluster.roll import MOST_PARTS, Roll, known_from
from sophon.errors import ConfigError, RetryableError
from sophon.link.membership import LEASE_S, Held, NodeRecord
from sophon.server.access import Rights

TRAIN, MINE = Rights(frozenset({"train"}), tenant=1), Rights(frozenset({"mine"}), tenant=2)


def record(name, fingerprint, part="", whole="", dataset="train", **more):
    held = {dataset: Held(fingerprint, 10, part, whole)}
    return NodeRecord(name, f"grpc://{name}:7077", "storage", 1.0, "1", held, **more)


def told(roll, now_s, dataset="train"):
    return {one.held.name: one.urls for one in roll.parts(dataset, now_s)}


def test_copies_are_one_part_with_several_holders():
    roll = Roll(0.0)
    for name in ("a", "b"):
        roll.announce(record(name, "f1"), 1.0)
    assert told(roll, 5.0) == {"f1": ("grpc://a:7077", "grpc://b:7077")}


def test_nobody_is_told_of_a_data_set_before_all_nodes_had_time_to_announce_themselves():
    roll = Roll(0.0)
    roll.announce(record("a", "f1"), 0.1)
    with pytest.raises(RetryableError, match="just started"):
        roll.parts("train", 0.2)
    assert told(roll, 5.0)


def test_a_silent_node_is_named_only_where_nobody_else_holds_its_part():
    roll = Roll(0.0)
    roll.announce(record("a", "f1"), 0.0)
    roll.announce(record("b", "f1"), LEASE_S)
    roll.announce(record("c", "f2"), 0.0)
    assert told(roll, LEASE_S + 1) == {"f1": ("grpc://b:7077",), "f2": ("grpc://c:7077",)}


def test_a_part_that_was_known_and_has_no_holder_is_named_as_missing_and_never_left_out():
    roll = Roll(0.0)
    roll.announce(record("a", "f1"), 0.0)
    roll.announce(record("b", "f2"), 0.0)
    roll.leave("b")
    assert told(roll, 4.0) == {"f1": ("grpc://a:7077",), "f2": ()}
    again = Roll(0.0, known_from(roll.known()))  # a registry that was started anew knows it too
    again.announce(record("a", "f1"), 1.0)
    assert told(again, 4.0) == {"f1": ("grpc://a:7077",), "f2": ()}
    assert again.forget("train") == 1
    assert told(again, 4.0) == {"f1": ("grpc://a:7077",)}


def test_an_announcement_that_comes_after_its_node_has_left_does_not_bring_it_back():
    roll = Roll(0.0, settle_s=0.0)
    roll.announce(record("a", "f1"), 0.0, TRAIN)
    roll.leave("a", TRAIN)
    assert roll.announce(record("a", "f1"), 0.1, TRAIN) is False  # the network, or a busy registry, was slow
    assert told(roll, 1.0) == {"f1": ()}
    roll.announce(record("a", "f1"), 0.2, Rights(frozenset({"train"}), tenant=7))  # another token's node
    assert told(roll, 1.0) == {"f1": ("grpc://a:7077",)}


def test_parts_with_numbers_that_nobody_announced_are_missing():
    roll = Roll(0.0)
    roll.announce(record("a", "f1", "1/3", "w"), 0.0)
    roll.announce(record("c", "f3", "3/3", "w"), 0.0)
    assert told(roll, 4.0) == {"1/3": ("grpc://a:7077",), "2/3": (), "3/3": ("grpc://c:7077",)}


def test_nodes_that_list_different_files_or_divide_them_differently_are_refused():
    roll = Roll(0.0)
    roll.announce(record("a", "f1", "1/2", "w"), 0.0)
    with pytest.raises(ConfigError, match="different files"):
        roll.announce(record("b", "f2", "2/2", "other"), 1.0)
    with pytest.raises(ConfigError, match="divided in one way"):
        roll.announce(record("b", "f2", "2/3", "w"), 1.0)


def test_a_node_that_is_started_again_with_other_files_holds_those_and_no_others():
    roll = Roll(0.0)
    roll.announce(record("a", "f1"), 0.0)
    again = NodeRecord("a2", "grpc://a:7077", datasets={"train": Held("f9", 11)})
    roll.announce(again, 1.0)
    assert told(roll, 4.0) == {"f9": ("grpc://a:7077",)}


def test_who_is_leaving_is_not_named_while_others_hold_the_same():
    roll = Roll(0.0)
    roll.announce(record("a", "f1"), 0.0)
    roll.announce(record("b", "f1", is_leaving=True), 0.0)
    assert told(roll, 4.0) == {"f1": ("grpc://a:7077",)}


def test_relays_are_listed_beside_the_parts_and_hold_nothing():
    roll = Roll(0.0)
    roll.announce(record("a", "f1"), 3.0)
    roll.announce(NodeRecord("r", "grpc://r:7078", "relay", 4.0, "1", {"train": Held()}), 3.0)
    assert told(roll, 4.0) == {"f1": ("grpc://a:7077",)}
    assert roll.relays("train", 4.0) == ["grpc://r:7078/train"]
    assert roll.relays("train", 4.0 + 2 * LEASE_S) == []


def test_the_number_of_nodes_is_bounded():
    roll = Roll(0.0)
    for number in range(MOST_NODES):
        roll.announce(record(f"n{number}", "f1"), 0.0)
    with pytest.raises(ConfigError, match="nodes already"):
        roll.announce(record("one-more", "f1"), 0.0)


# --- several tokens ---------------------------------------------------------------------------------------------------


def full_of(by, dataset):
    roll = Roll(0.0, settle_s=0.0)
    roll.announce(record("n0", "f0", dataset=dataset), 0.0, by)
    for number in range(1, MOST_NODES):
        roll.announce(record(f"n{number}", "f1", dataset=dataset), 0.0, by)
    return roll


def test_nodes_of_one_token_leave_space_for_those_of_another():
    roll = full_of(MINE, "mine")
    for _ in range(2):  # and stay, whatever the other announces
        roll.announce(record("honest", "f"), 0.0, TRAIN)
        with pytest.raises(ConfigError, match="nodes already"):
            roll.announce(record("more", "f1", dataset="mine"), 0.0, MINE)
        assert told(roll, 1.0) == {"f": ("grpc://honest:7077",)}
    assert len(roll.status(0.0)) == MOST_NODES


def test_a_node_that_is_silent_makes_space_and_its_part_is_named_as_missing():
    roll = full_of(TRAIN, "train")
    for number in range(1, MOST_NODES):
        roll.announce(record(f"n{number}", "f1"), 2 * LEASE_S, TRAIN)
    roll.announce(record("one-more", "f2"), 2 * LEASE_S, TRAIN)
    now = told(roll, 2 * LEASE_S)
    assert now["f0"] == ()
    assert now["f2"] == ("grpc://one-more:7077",)
    with pytest.raises(ConfigError, match="nodes already"):
        roll.announce(record("another", "f2"), 2 * LEASE_S, TRAIN)


def at(url, name, fingerprint, dataset):
    return NodeRecord(name, url, datasets={dataset: Held(fingerprint, 1)})


@pytest.mark.parametrize("is_first", [True, False])
def test_a_token_cannot_take_the_address_or_the_name_of_anothers_node(is_first):
    url = "grpc://a:7077"
    roll = Roll(0.0, settle_s=0.0)
    if is_first:
        roll.announce(at(url, "a", "e", "mine"), 0.0, MINE)
    roll.announce(at(url, "a", "f", "train"), 1.0, TRAIN)
    roll.announce(at(url, "a", "e", "mine"), 2.0, MINE)
    roll.leave("a", MINE)
    assert told(roll, 2.0) == {"f": (url,)}
    roll.announce(at(url, "anew", "e", "mine"), 2.0, MINE)
    roll.leave("a", TRAIN)  # it is started again while the other goes on
    roll.announce(at(url, "again", "f", "train"), 3.0, TRAIN)
    assert told(roll, 3.0) == {"f": (url,)}
    assert told(roll, 3.0, "mine") == {"e": (url,)}


def test_a_node_that_is_started_again_with_another_token_replaces_the_old_one():
    roll = Roll(0.0, settle_s=0.0)
    roll.announce(record("a", "f1"), 0.0, TRAIN)
    new = Rights(frozenset({"train", "val"}), tenant=3)
    roll.announce(at("grpc://a:7077", "again", "f2", "train"), 1.0, new)
    assert told(roll, 1.0) == {"f2": ("grpc://a:7077",)}


def test_a_data_set_that_tokens_name_has_a_share_of_the_parts_however_many_others_have():
    known = {f"other{n}": [Held(f"f{m}", 1) for m in range(MOST_PARTS)] for n in range(16)}
    roll = Roll(0.0, known, 0.0, named={"train"})
    honest, stranger = record("a", "f1"), record("b", "f1", dataset="unnamed")
    assert not roll.announce(stranger, 0.0)
    assert not roll.knows(stranger)  # and is told so
    assert roll.announce(honest, 0.0)
    assert roll.knows(honest)
    assert told(roll, 0.0) == {"f1": ("grpc://a:7077",)}


def test_names_of_data_sets_are_told_to_those_alone_who_may_read_them():
    roll = Roll(0.0, settle_s=0.0)
    roll.announce(record("a", "f1"), 0.0)
    for to, there in ((MINE, "none"), (Rights(frozenset({"train", "mine"})), "train")):
        with pytest.raises(RetryableError, match=rf"known data sets: {there}$"):
            roll.parts("mine", 0.0, to)


def test_parts_that_nobody_may_announce_any_more_are_not_loaded():
    assert known_from({"mine~1": [vars(Held("f", 1))], "train": [vars(Held("f", 1))]}) == {"train": [Held("f", 1)]}
