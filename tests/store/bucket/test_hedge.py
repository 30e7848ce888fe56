"""Second requests for late answers: threads are used again, and the first answer counts."""

import threading

import pytest

from sophon.store.bucket.hedge import Hedge
from tests.support.waiting import HANG_S


def hedge(late_s):
    made = Hedge(lambda: None)
    made.late_s, made._seen = late_s, 10_000
    return made


def test_one_thread_makes_many_requests():
    made, seen = hedge(60.0), set()
    for number in range(20):
        assert made.call(lambda number=number: seen.add(threading.current_thread()) or number, lambda: None) == number
        while not made._threads._idle:  # it has answered, and is about to wait for the next one
            pass
    assert len(seen) == 1


def test_the_second_request_is_taken_if_it_is_answered_first():
    made, first, over = hedge(0.01), [], threading.Event()

    def request():
        first.append(threading.current_thread())
        if len(first) == 1:
            over.wait(HANG_S)
            return "late"
        return "soon"

    seconds = []
    assert made.call(request, lambda: seconds.append(1)) == "soon"
    assert seconds == [1]
    over.set()


def test_a_failure_is_raised_where_the_request_was_made():
    with pytest.raises(ValueError, match="no such thing"):
        hedge(60.0).call(lambda: (_ for _ in ()).throw(ValueError("no such thing")), lambda: None)
