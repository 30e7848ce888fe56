"""What ops before the first random one give is kept on disk: fewer steps, the same bits, within a bound."""

import fcntl
import os
import signal
import struct
import time
import zlib

import numpy as np
import pytest

import sophon
from sophon.errors import ConfigError
from sophon.link.wire import Reply
from sophon.loader.sources.prefix_cache import PrefixCache, cache_cut, steady_ops
from sophon.pipeline import Pipeline, ops
from tests.support.forking import ends_well
from tests.support.marks import slow
from tests.support.servers import RECIPE, digest, make_images, serve
from tests.support.settings import grouped

COUNT = 23
STEADY = Pipeline([ops.Decode(), ops.Resize(40), ops.RandomCrop(32), ops.ToTensor()])  # two steps to keep
WHOLE = Pipeline([ops.Decode(), ops.Resize(40), ops.CenterCrop(32), ops.ToTensor()])


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    return make_images(tmp_path_factory.mktemp("data") / "train", COUNT)


@pytest.fixture(scope="module")
def server(images):
    with serve(images) as running:
        yield running


def _samples_in(folder):
    return [path for path in folder.glob("prefixes/*/*/*") if path.is_file()]


def _three(loader):
    return digest(batch for _ in range(3) for batch in loader)


KINDS = {
    "no workers": {},
    "threads": {"num_workers": 2},
    "processes": {"num_workers": 2, "kind": "processes"},
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("where", ["server", "local"])
@pytest.mark.parametrize("cache", [True, "1:webp", *slow("2:zstd", "0:raw")])
@pytest.mark.matrix(every=4)
def test_three_epochs_have_the_same_bits_and_the_first_steps_run_once(server, images, tmp_path, where, kind, cache):
    url = server.url if where == "server" else images
    plain = sophon.DataLoader(images, STEADY, batch_size=4, shuffle=True, seed=2)
    loader = sophon.DataLoader(
        url, STEADY, **grouped(batch_size=4, shuffle=True, seed=2, cache=sophon.Cache(cache, tmp_path), **KINDS[kind])
    )
    assert _three(loader) == _three(plain)
    stats = loader.stats
    assert (stats.samples, stats.cached, stats.smaller_cuts) == (3 * COUNT, 2 * COUNT, 0)
    assert f"The first steps of {COUNT} samples came from the cache" in loader.explain()
    before = stats.link_bytes
    again = sophon.DataLoader(url, STEADY, batch_size=4, shuffle=True, seed=2, cache=sophon.Cache(cache, tmp_path))
    assert _three(again) == _three(sophon.DataLoader(images, STEADY, batch_size=4, shuffle=True, seed=2))
    assert (again.stats.cached, again.stats.link_bytes) == (3 * COUNT, 0)
    assert (before > 0) == (where == "server")


def test_random_ops_are_drawn_anew(images, tmp_path):
    loader = sophon.DataLoader(images, STEADY, batch_size=COUNT, cache=sophon.Cache(True, tmp_path))
    (one,), (two,) = list(loader), list(loader)
    assert not np.array_equal(one[0].numpy(), two[0].numpy())


def test_a_pipeline_without_random_ops_is_kept_as_tensors(images, tmp_path):
    loader = sophon.DataLoader(images, WHOLE, batch_size=4, cache=sophon.Cache(True, tmp_path))
    assert steady_ops(WHOLE) == 4
    assert _three(loader) == _three(sophon.DataLoader(images, WHOLE, batch_size=4))


@pytest.mark.parametrize("kind", KINDS)
def test_the_bound_is_kept_and_what_does_not_fit_is_made_anew(images, tmp_path, kind):
    bound = 40_000
    loader = sophon.DataLoader(
        images, STEADY, **grouped(batch_size=4, cache=sophon.Cache(True, tmp_path, bound), **KINDS[kind])
    )
    assert _three(loader) == _three(sophon.DataLoader(images, STEADY, batch_size=4))
    kept = _samples_in(tmp_path)
    size = sum(path.stat().st_size for path in kept)
    assert 0.5 * bound < size <= bound
    assert loader.dataset.transport.cache.used_bytes == size
    assert loader.stats.cached == 2 * len(kept)


def test_a_damaged_file_is_made_anew(images, tmp_path):
    loader = sophon.DataLoader(images, STEADY, batch_size=4, cache=sophon.Cache(True, tmp_path))
    expected = digest(loader)
    files = sorted(_samples_in(tmp_path))
    files[0].write_bytes(b"")
    files[1].write_bytes(files[1].read_bytes()[:-1])
    data = bytearray(files[2].read_bytes())
    data[-1] ^= 1
    files[2].write_bytes(data)
    loader.set_epoch(0)
    before = loader.stats.cached
    assert digest(loader) == expected
    assert loader.stats.cached - before == COUNT - 3
    loader.set_epoch(0)
    assert digest(loader) == expected
    assert loader.stats.cached - before == 2 * COUNT - 3


def test_columns_and_labels_come_from_the_cache_too(server, tmp_path):
    def names(columns):
        loader = sophon.DataLoader(
            server.url,
            STEADY,
            batch_size=COUNT,
            cache=sophon.Cache(True, tmp_path),
            output=sophon.Output(columns=columns),
        )
        return list(next(iter(loader))[1:]), loader.stats.cached

    first, _ = names(("id",))
    second, cached = names(("id",))
    assert cached == COUNT
    assert first[0].tolist() == second[0].tolist()
    assert first[1] == second[1]
    assert names(())[1] == COUNT


def test_a_bad_sample_is_not_kept_and_is_met_again(tmp_path):
    folder = make_images(tmp_path / "train", 6)
    victim = sorted(folder.rglob("*.*"))[3]
    victim.write_bytes(b"not a picture")
    with serve(folder) as server:
        loader = sophon.DataLoader(
            server.url, STEADY, batch_size=6, num_workers=1, cache=sophon.Cache(True, tmp_path), on_error="substitute"
        )
        with pytest.warns(sophon.loader.sources.assignment.OffloadWarning):
            ((one, _),) = list(loader)
        loader.set_epoch(0)
        ((two, _),) = list(loader)
        assert np.array_equal(one.numpy(), two.numpy())
        (row,) = loader.bad_samples
        assert (row.sample, row.times, row.op) == (3, 2, "Decode")


def test_another_pipeline_or_data_set_has_another_cache(images, tmp_path):
    folders = set()
    for pipeline, cache in ((STEADY, True), (STEADY, "1:raw"), (STEADY, "1:webp"), (WHOLE, True)):
        dataset = sophon.RemoteDataset(images, pipeline, cache=sophon.Cache(cache, tmp_path))
        folders.add(dataset.transport.cache.folder)
    folders.add(
        sophon.RemoteDataset(
            make_images(tmp_path / "x", 3), STEADY, cache=sophon.Cache(folder=tmp_path)
        ).transport.cache.folder
    )
    assert len(folders) == 5
    # The same first ops in front of other random ones share what is kept.
    other = Pipeline([*STEADY.ops[:2], ops.RandomCrop(16), ops.ToTensor()])
    assert sophon.RemoteDataset(images, other, cache=sophon.Cache(folder=tmp_path)).transport.cache.folder in folders


def test_it_saves_what_the_first_steps_cost(images, tmp_path):
    slow = Pipeline([ops.Decode(), ops.Resize(600), ops.Resize(40), ops.RandomCrop(32), ops.ToTensor()])
    loader = sophon.DataLoader(images, slow, batch_size=COUNT, cache=sophon.Cache(True, tmp_path))
    taken = []
    for _ in range(3):
        start_s = time.process_time()
        list(loader)
        taken.append(time.process_time() - start_s)
    assert min(taken[1:]) < 0.5 * taken[0]


@pytest.mark.parametrize(
    ("pipeline", "settings", "message"),
    [
        (RECIPE, {"cache": "2:raw"}, "the result of 2:raw differs in every epoch.*first 1 ops.*1:raw"),
        (RECIPE, {"cache": "0:window"}, "differs in every epoch"),
        (STEADY, {"cache": "2:jpeg:95"}, "changes the pixels"),
        (STEADY, {"cache": "nine"}, "expected a cut as NUMBER:CODEC"),
        (Pipeline([lambda data: data]), {"cache": True}, "comes first and is random"),
        (STEADY, {"cache": True, "policy": "all"}, "leave out policy and plan"),
        (STEADY, {"cache": True, "policy": "optimal"}, "leave out the policy"),
        (STEADY, {"cache": sophon.Cache(most_bytes=0)}, "most_bytes: expected"),
        (STEADY, {"cache": sophon.Cache(folder="/proc/nothing")}, "cache: /proc/nothing.* cannot be written to"),
    ],
)
def test_wrong_settings_are_refused(images, pipeline, settings, message):
    with pytest.raises(ConfigError, match=message):
        sophon.DataLoader(images, pipeline, **grouped(**settings))


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_child_that_is_forked_while_bytes_are_counted_does_not_keep_the_lock(tmp_path, monkeypatch):
    cache = PrefixCache(tmp_path / "cache", cache_cut(STEADY, True), 1 << 20)
    children, flock = [], fcntl.flock

    def fork_then(file, how):
        flock(file, how)
        if how == fcntl.LOCK_EX:
            children.append(os.fork())
            if children[-1] == 0:  # pragma: no cover - the child, which has the file open for as long as it lives
                signal.pause()
                os._exit(1)

    monkeypatch.setattr(fcntl, "flock", fork_then)
    cache.put(3, Reply(0, payload=b"x"))
    monkeypatch.undo()
    try:
        assert ends_well(lambda: cache.put(4, Reply(0, payload=b"x")))
    finally:
        os.kill(children[0], signal.SIGKILL)
        os.waitpid(children[0], 0)
    assert cache.get(4, ()) is not None


def test_a_disk_that_fails_ends_the_keeping_and_not_the_training(tmp_path):
    cache = PrefixCache(tmp_path / "cache", cache_cut(STEADY, True), 1 << 20)
    (tmp_path / "cache" / "0").write_text("a file where a folder should be")
    cache.put(3, Reply(0, payload=b"x"))
    assert cache.get(3, ()) is None
    cache.put(1003, Reply(0, payload=b"x"))
    assert cache.get(1003, ()) is None


def test_a_column_that_has_changed_is_not_taken_from_the_cache(images, tmp_path):
    listing = images / "targets.csv"
    names = sorted(str(path.relative_to(images)) for path in images.rglob("*.jpg"))[:4]

    def targets():
        output = sophon.Output(columns=["target"])
        loader = sophon.DataLoader(listing, STEADY, batch_size=4, cache=sophon.Cache(True, tmp_path), output=output)
        (batch,) = loader
        return batch[-1]["target"].tolist(), loader.stats.cached

    try:
        for told in ([0.5, 1.5, 2.5, 3.5], [4.5, 1.5, 2.5, 3.5]):
            rows = zip(names, told, strict=True)
            listing.write_text("path,target\n" + "".join(f"{name},{target}\n" for name, target in rows))
            with pytest.warns(UserWarning, match="not used as a label"):
                assert targets() == (told, 0)
            with pytest.warns(UserWarning, match="not used as a label"):
                assert targets() == (told, 4)
    finally:
        listing.unlink()


@pytest.mark.parametrize("header", [b"[]", b"{}", b'{"columns": {}}', b'{"columns": 3, "label": 1}'])
def test_a_header_that_is_none_is_as_good_as_no_file(tmp_path, header):
    cache = PrefixCache(tmp_path, sophon.Cut(1), 1 << 20)
    cache.put(0, Reply(0, sophon.Cut(1), b"payload", 3, columns={"one": 1}))
    assert cache.get(0, ("one",)).label == 3
    body = struct.pack("<I", len(header)) + header + b"payload"
    (tmp_path / "0" / "0").write_bytes(b"SPC1" + struct.pack("<I", zlib.crc32(body)) + body)
    assert cache.get(0, ("one",)) is None
