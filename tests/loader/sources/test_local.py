"""Samples straight from a store: many reads at once where they are slow, none beside the loader's own where not."""

import pickle
import threading

import pytest

import sophon
from sophon.codec import RAW, Cut
from sophon.errors import StoreError
from sophon.link.wire import Request
from sophon.loader.sources.local import LocalTransport
from sophon.store import STORES, open_store
from sophon.store.folder import FolderStore
from tests.support.epochs import epochs_digest
from tests.support.servers import RECIPE, digest, make_images
from tests.support.waiting import HANG_S, wait_until


class Together(FolderStore):
    """Gives a sample only when as many as are wanted are being read at once."""

    wanted = 12
    most = 0
    _count = 0
    _condition = threading.Condition()

    def _read(self, index):
        cls = type(self)
        with cls._condition:
            cls._count += 1
            cls.most = max(cls.most, cls._count)
            cls._condition.notify_all()
            assert cls._condition.wait_for(lambda: cls.most >= cls.wanted, HANG_S)
            cls._count -= 1
        return super()._read(index)


@pytest.fixture
def together(monkeypatch):
    Together.most = Together._count = 0
    monkeypatch.setitem(STORES, "folder", Together)
    return Together


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    return make_images(tmp_path_factory.mktemp("data") / "train", 41)


def _request(count, cut="0:raw"):
    cuts = (Cut.parse(cut),) * count
    return Request("train", RECIPE.to_spec(), 0, 0, tuple(range(count)), cuts, columns=("id",))


def _no_threads():
    return not any(thread.name.startswith("sophon-read") for thread in threading.enumerate())


@pytest.mark.parametrize("cut", ["0:raw", "2:webp"])
def test_a_slow_store_is_read_many_times_at_once(pictures, together, cut):
    transport = LocalTransport(open_store(pictures), "train")
    transport.reading.learn(0.05)
    replies = {reply.position: reply for reply in transport.fetch(_request(41, cut), 60)}
    assert together.most >= 12
    assert sorted(replies) == list(range(41))
    manifest = transport.store.manifest
    for position, reply in replies.items():
        assert (reply.label, reply.columns["id"]) == (manifest.label(position), manifest.ids[position].as_py())
        assert str(reply.cut) == cut
        if reply.cut == RAW:
            assert reply.payload == (pictures / manifest.ids[position].as_py()).read_bytes()
    wait_until(_no_threads)


def test_a_loader_reads_more_at_once_than_it_has_workers_and_gives_the_same_batches(pictures, together):
    loader = sophon.DataLoader(pictures, RECIPE, batch_size=8, shuffle=True, num_workers=1, seed=5)
    loader.dataset.transport.reading.learn(0.05)
    found = digest([*loader, *loader])
    assert together.most >= 12
    assert loader.stats.reads == 82
    assert loader.stats.read_bytes == 2 * int(open_store(pictures).manifest.sizes.sum())
    assert loader.stats.read_s > 0
    together.most = together.wanted  # from now on nobody has to wait
    assert found == epochs_digest(pictures, seed=5, batch_size=8)
    wait_until(_no_threads)


def test_a_quick_store_is_read_in_the_thread_that_iterates(pictures, monkeypatch):
    transport = LocalTransport(open_store(pictures), "train")
    transport.reading.learn(1e-5)
    here, readers, original = threading.current_thread(), set(), transport.store.read
    monkeypatch.setattr(
        transport.store, "read", lambda sample: readers.add(threading.current_thread()) or original(sample)
    )
    monkeypatch.setattr(transport.reading, "learn", lambda *_: None)  # however busy the machine is
    fetch = transport.fetch(_request(41), 60)
    assert [reply.position for reply in fetch] == list(range(41))
    assert readers == {here}
    assert fetch.clock.reads == 41
    assert fetch.clock.read_bytes == transport.store.manifest.sizes.sum()
    assert 0 < fetch.clock.reading_s == fetch.clock.read_s


def test_a_fetch_from_a_store_that_hangs_can_be_cancelled(pictures, together):
    together.wanted = 100  # never
    try:
        transport = LocalTransport(open_store(pictures), "train")
        fetch, replies = transport.fetch(_request(41), 60), []
        thread = threading.Thread(target=lambda: replies.extend(fetch))
        thread.start()
        wait_until(lambda: together._count == 2)
        fetch.cancel()
        thread.join(HANG_S)
        assert not thread.is_alive()
        assert not replies
    finally:
        together.wanted = 12
        with together._condition:
            together.most = 12
            together._condition.notify_all()
    wait_until(_no_threads)


def test_a_sample_that_cannot_be_read_is_an_error_of_its_own_wherever_it_is_read(tmp_path):
    folder = make_images(tmp_path / "train", 9)
    transport = LocalTransport(open_store(folder), "train")
    (folder / transport.store.manifest.ids[4].as_py()).unlink()
    for each_s in (0.05, 1e-5):
        for _ in range(50):
            transport.reading.learn(each_s)
        replies = {reply.position: reply for reply in transport.fetch(_request(9), 60)}
        assert {i for i, reply in replies.items() if isinstance(reply.error, StoreError)} == {4}
        assert sum(bool(reply.payload) for reply in replies.values()) == 8


def test_a_transport_can_be_sent_to_another_process(pictures):
    transport = pickle.loads(pickle.dumps(LocalTransport(open_store(pictures), "train")))
    assert len(list(transport.fetch(_request(5), 60))) == 5
