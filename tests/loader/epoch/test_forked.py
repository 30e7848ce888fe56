"""A child that is forked in the middle of an epoch: no lock of the parent's stops it."""

import contextlib
import threading

import pytest

import sophon
from sophon.codec.window.indexes import INDEXES
from sophon.loader.epoch import leaving
from tests.support.forking import ends_well
from tests.support.servers import RECIPE, make_images, serve

pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")


@contextlib.contextmanager
def _held(*locks):
    """Hold locks in a thread of the parent's, which does not exist in a child."""
    is_held, is_over = threading.Event(), threading.Event()

    def hold():
        with contextlib.ExitStack() as stack:
            for lock in locks:
                stack.enter_context(lock)
            is_held.set()
            is_over.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    is_held.wait()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


def test_a_child_may_let_go_of_an_iterator(tmp_path):
    loader = sophon.DataLoader(make_images(tmp_path / "images", 40), RECIPE, batch_size=4, num_workers=2)
    batches = iter(loader)
    next(batches)
    (running,) = leaving.running
    with _held(running._lock, loader.stats._lock):
        assert ends_well(batches.close)
    assert len(list(batches)) == 9, "the parent's goes on"


def test_a_child_reads_samples_by_itself(tmp_path):
    dataset = sophon.RemoteDataset(make_images(tmp_path / "images", 40), RECIPE, on_error="skip")
    with _held(INDEXES._lock, dataset.stats._lock, dataset.bad_samples._lock):
        assert ends_well(lambda: dataset.__getitems__(range(40)))


def test_a_child_that_cannot_connect_is_told_so(tmp_path):
    with serve(make_images(tmp_path / "images", 4)) as server:
        dataset = sophon.RemoteDataset(server.url, RECIPE)

        def child():
            with pytest.raises(sophon.TransportError, match="forked while"):
                dataset[0]

        with dataset.transport._connection(), _held(dataset.transport._lock):
            assert ends_well(child)
