"""What a node says when a data set is opened is believed within bounds only."""

import copy
import pickle
import random

import pytest

from sophon.codec.table import CODECS
from sophon.errors import ProtocolError
from sophon.link.answer import MOST_SAMPLES, opened_from
from sophon.link.credentials import Credentials
from tests.support.answer import ANSWER as GOOD


def test_a_good_answer_is_what_it_says():
    opened = opened_from(GOOD, "grpc://node")
    assert (opened.samples, opened.classes, opened.cores, opened.max_cut) == (1000, ("cat", "dog"), 2.5, 3)
    assert opened.codecs == ("raw", "webp")


WRONG = {
    "samples": [2 * 10**9, 10**10, -5, 1e3, "1000", True, None, 10**400],
    "cores": [-1, float("nan"), float("inf"), 1e300, "2", True, 10**400],
    "fingerprint": ["\ud800"],
    "classes": ["cat", [7], ["x" * 5000], ["c"] * (1 << 21), None],
    "columns": ["id", [None], ["c"] * 2000],
    "codecs": [None, [[]], ["raw"] * 2000],
    "max_cut": [-1, 65, "3", 1.5],
    "digests": [["d"] * 65, "abc"],
    "versions": [[], {str(n): n for n in range(2000)}],
    "dataset": [7, "x" * 5000, "\udfff"],
    "has_labels": [1, "yes", None],
    "reason": [["x"], "x" * 2000],
}


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in WRONG.items() for value in values])
def test_a_wrong_answer_is_a_protocol_error_that_names_the_node_and_the_field(name, value):
    with pytest.raises(ProtocolError, match=rf"grpc://node.*{name}: expected") as caught:
        opened_from({**GOOD, name: value}, "grpc://node")
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize("name", ["dataset", "samples", "fingerprint", "classes", "has_labels", "columns", "cores"])
def test_an_answer_without_a_field_is_one_too(name):
    answer = copy.copy(GOOD)
    del answer[name]
    with pytest.raises(ProtocolError, match=f"without {name}"):
        opened_from(answer, "grpc://node")


def test_more_samples_are_taken_from_a_node_that_the_user_trusts():
    large = {**GOOD, "samples": MOST_SAMPLES + 1}
    with pytest.raises(ProtocolError, match=r"Credentials\(trusted=True\)"):
        opened_from(large, "grpc://node")
    assert opened_from(large, "grpc://node", trusted=True).samples == MOST_SAMPLES + 1
    kept = pickle.loads(pickle.dumps(Credentials(token="t" * 20, trusted=True)))
    assert kept.trusted
    assert repr(kept) == "Credentials(token=…, trusted=True)"


def test_codecs_that_nobody_here_knows_are_left_out():
    opened = opened_from({**GOOD, "codecs": [*CODECS, "jpeg:90", "of a later release"]}, "grpc://node")
    assert opened.codecs == (*CODECS, "jpeg:90")


def test_mutated_answers_end_in_typed_errors():
    rng = random.Random(1)
    junk = [None, True, -1, 1e308, 10**30, "", "x" * 100, [], {}, [[]], [None], {"a": {}}, float("nan"), "9" * 50]
    for _ in range(3000):
        answer = {**GOOD, **{rng.choice(list(GOOD)): rng.choice(junk) for _ in range(rng.randint(1, 3))}}
        try:
            opened_from(answer, "grpc://node")
        except ProtocolError:
            continue
