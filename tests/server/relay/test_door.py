"""Who is let in at a relay: tokens that nodes accept, however many others are tried."""

import threading

import pytest

from sophon.errors import AccessError, RetryableError
from sophon.server.access import Rights
from sophon.server.relay import door
from sophon.server.relay.door import Door
from sophon.server.relay.passed import PassedTokens

GOOD = "a-token-that-is-good"


class Node:
    """Accepts one token, and counts what it was shown."""

    def __init__(self):
        self.tokens = PassedTokens()
        self.shown = []
        self.door = Door(self.tokens, self.ask)

    def ask(self, token):
        self.shown.append(token)
        if not token.startswith(GOOD):
            raise AccessError("this node does not know the token")
        self.tokens.accepted(token)

    def call(self, token, host="10.0.0.1"):
        return self.door.admitted(self.tokens.rights_of(f"Bearer {token}"), host)


def test_a_token_that_was_accepted_is_not_shown_again():
    node = Node()
    assert [node.call(GOOD).tenant for _ in range(3)] == [1, 1, 1]
    assert node.call(GOOD + "-too").tenant == 2
    assert node.shown == [GOOD, GOOD + "-too"]


def test_a_wrong_token_is_refused_in_the_words_of_the_node_and_shown_once():
    node = Node()
    for _ in range(3):
        with pytest.raises(AccessError, match="does not know the token"):
            node.call("wrong")
    assert node.shown == ["wrong"]


def test_an_address_with_many_wrong_tokens_costs_a_node_no_more_and_others_come_in():
    node = Node()
    for number in range(200):
        with pytest.raises((AccessError, RetryableError)):
            node.call(f"wrong-{number}")
    assert len(node.shown) == door._MOST_REFUSED
    with pytest.raises(RetryableError, match="too many were wrong"):
        node.call(GOOD)
    assert node.call(GOOD, "10.0.0.2").tenant == 1
    assert node.call(GOOD).tenant == 1, "what is known needs no look at it"


def test_a_node_that_does_not_answer_is_nobodys_fault():
    node = Node()

    def away(_):
        raise RetryableError("no answer")

    node.door = Door(node.tokens, away)
    for _ in range(2 * door._MOST_REFUSED):
        with pytest.raises(RetryableError, match="no answer"):
            node.call(GOOD)


def test_many_who_come_at_once_with_one_token_ask_once():
    node, came = Node(), []
    inside, go_on = threading.Event(), threading.Event()

    def ask(token):
        inside.set()
        assert go_on.wait(20)
        node.ask(token)

    node.door = Door(node.tokens, ask)
    threads = [threading.Thread(target=lambda: came.append(node.call(GOOD).tenant)) for _ in range(8)]
    for thread in threads:
        thread.start()
    assert inside.wait(20)
    go_on.set()
    for thread in threads:
        thread.join(20)
    assert came == [1] * 8
    assert node.shown == [GOOD]
    assert not node.door._turns
    assert not node.door._waiting


def test_without_tokens_everybody_comes_in():
    assert Node().door.admitted(Rights(), "10.0.0.1") == Rights()
