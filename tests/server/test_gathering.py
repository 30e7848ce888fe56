"""When a batch is sent, in virtual time."""

import pytest

from sophon.link.wire import Reply
from sophon.server.gathering import BATCH_S, HEARTBEAT_S, Gathering
from sophon.server.pace import Pace


def _reply(size_bytes=10):
    return Reply(0, payload=bytes(size_bytes))


@pytest.fixture
def batch():
    return Gathering(Pace(), 100.0)


def test_a_finished_sample_waits_for_others_no_longer_than_it_should(batch):
    batch.add(_reply(), 100.7)
    assert batch.wait_s(100.7) == pytest.approx(BATCH_S)
    assert not batch.is_due(None, 100.7 + 0.9 * BATCH_S)
    batch.add(_reply(), 100.7 + 0.9 * BATCH_S)
    assert batch.wait_s(100.7 + 0.9 * BATCH_S) == pytest.approx(0.1 * BATCH_S), "the first of them counts"
    assert batch.is_due(None, 100.7 + 1.1 * BATCH_S)
    assert batch.is_due(_reply(), 100.7 + 1.1 * BATCH_S)


def test_a_sample_that_was_long_in_the_making_is_not_late_when_it_comes(batch):
    assert not batch.is_due(_reply(), 105.0)


def test_a_batch_that_is_full_is_sent_at_once(batch):
    batch.add(_reply(int(Pace().batch_bytes) - 5), 100.0)
    assert not batch.is_due(_reply(5), 100.0)
    assert batch.is_due(_reply(6), 100.0)
    assert batch.wait_s(100.0) > 0
    batch.add(_reply(5), 100.0)
    assert batch.wait_s(100.0) == 0
    assert batch.is_due(None, 100.0)


def test_a_sample_larger_than_any_batch_is_sent_alone(batch):
    large = _reply(10 * int(Pace().batch_bytes))
    assert not batch.is_due(large, 100.0)
    batch.add(large, 100.0)
    assert batch.is_due(None, 100.0)


def test_where_nothing_is_finished_an_empty_batch_is_due_now_and_then(batch):
    assert batch.wait_s(100.0) == HEARTBEAT_S
    assert not batch.is_due(None, 100.0 + 0.9 * HEARTBEAT_S)
    assert batch.is_due(None, 100.0 + HEARTBEAT_S)
    batch.sent(101.0, 101.0)
    assert batch.wait_s(101.5) == pytest.approx(HEARTBEAT_S - 0.5)


def test_the_pace_is_that_of_batches_with_something_in_them():
    pace = Pace()
    batch, first_bytes = Gathering(pace, 0.0), pace.batch_bytes
    batch.sent(1.0, 3.0)
    assert pace.batch_bytes == first_bytes
    batch.add(_reply(1000), 3.0)
    batch.sent(3.0, 5.0)
    assert pace.batch_bytes < first_bytes
    assert (batch.replies, batch.size_bytes) == ([], 0)
