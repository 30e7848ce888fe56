"""Indexes in a file: found by the bytes of a sample, stale or damaged ones never used."""

import os
import shutil
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pytest

from sophon.codec import Cut, finish_payload, make_payload
from sophon.codec.window import Index, available, build_index
from sophon.codec.window import codec as window_codec
from sophon.codec.window.indexes import Indexes
from sophon.codec.window.sidecar import SUFFIX, Sidecar, find_sidecar, place_to_write, places, write_sidecar
from sophon.errors import ArtifactError, OpError
from sophon.pipeline import Key, Pipeline, ops
from sophon.store import open_store
from tests.store.datasets import LONG_AGO_NS, structs, write_files, write_parquet, write_tar
from tests.support.pictures import encode, scene
from tests.support.waiting import HANG_S

pytestmark = pytest.mark.skipif(not available(), reason="the extension was not built")

COUNT = 7
PIPELINE = Pipeline([ops.Decode(), ops.RandomResizedCrop(16, scale=(0.1, 0.3)), ops.ToTensor()])


def photo(number: int) -> bytes:
    """Return a JPEG; the last of the data set is progressive, which has no window."""
    return encode(scene(90 + number, 70, seed=number), "jpeg progressive" if number == COUNT - 1 else "jpeg 4:2:0")


@pytest.fixture
def folder(tmp_path):
    root = write_files(tmp_path / "photos", {f"{i}.jpg": photo(i) for i in range(COUNT)})
    for i in range(COUNT):
        os.utime(root / f"{i}.jpg", ns=(LONG_AGO_NS, LONG_AGO_NS + i))
    return root


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "sophon"


def _store(path, cache):
    return open_store(path, cache_dir=cache)


def test_every_kind_of_store_is_indexed_and_its_windows_end_in_the_same_bits(tmp_path, folder, cache, monkeypatch):
    tar = write_tar(tmp_path / "a.tar", [(f"{i}.jpg", photo(i)) for i in range(COUNT)])
    parquet = write_parquet(tmp_path / "a.parquet", {"image": structs([photo(i) for i in range(COUNT)])})
    for path in (folder, tar, parquet):
        with _store(path, cache) as store:
            written = write_sidecar(store, place_to_write(path), threads=2)
            assert (written.samples, written.without, written.kept, written.unreadable) == (COUNT, 1, 0, 0)
            sidecar = find_sidecar(path)
            assert (sidecar.path, len(sidecar)) == (path.with_name(path.name + SUFFIX), COUNT)
            assert sidecar.dataset_fingerprint == store.manifest.fingerprint
            assert sidecar.stale_share(store) == 0.0
            indexes = Indexes(max_bytes=0)  # nothing can be built, so what is found is from the file
            indexes.attach(sidecar)
            monkeypatch.setattr(window_codec, "INDEXES", indexes)
            for sample in range(COUNT):
                data, key = store.read(sample), Key(0, 1, sample)
                assert (indexes.find(data) is None) == (sample == COUNT - 1)
                if sample < COUNT - 1:
                    payload = make_payload(PIPELINE, data, key, Cut(0, "window"))
                    done = finish_payload(PIPELINE, payload, key, Cut(0, "window"))
                    assert done.tobytes() == PIPELINE.run(data, key).tobytes()


def test_what_has_the_same_size_and_time_is_not_read_again(folder, cache, monkeypatch):
    store, path = _store(folder, cache), place_to_write(folder)
    write_sidecar(store, path)
    first = path.read_bytes()
    os.utime(folder / "2.jpg", ns=(LONG_AGO_NS, LONG_AGO_NS + 999))
    assert Sidecar(path).stale_share(store) == pytest.approx(1 / COUNT)
    read = []
    real = type(store).read
    monkeypatch.setattr(type(store), "read", lambda self, index: read.append(index) or real(self, index))
    assert write_sidecar(store, path).kept == COUNT - 1
    assert read == [2]
    os.utime(folder / "2.jpg", ns=(LONG_AGO_NS, LONG_AGO_NS + 2))
    write_sidecar(store, path)
    assert path.read_bytes() == first


def test_a_file_that_no_decoder_may_see_has_no_index_by_which_it_would_pass(tmp_path, cache, monkeypatch):
    bomb = photo(0)[:2] + 5000 * b"\xff\xfe\x00\x03x" + photo(0)[2:]
    folder = write_files(tmp_path / "bombs", {"0.jpg": bomb})
    with _store(folder, cache) as store:
        assert write_sidecar(store, place_to_write(folder)).without == 1
    indexes = Indexes()
    indexes.attach(find_sidecar(folder))
    monkeypatch.setattr(window_codec, "INDEXES", indexes)
    for cut in (Cut(0, "window"), Cut(2)):
        with pytest.raises(OpError, match="segments"):
            make_payload(PIPELINE, bomb, Key(0, 0, 0), cut)


def test_files_that_are_added_changed_or_removed_are_noticed(folder, cache):
    write_sidecar(_store(folder, cache), place_to_write(folder))
    (folder / "0.jpg").unlink()
    (folder / "1.jpg").write_bytes(photo(30))
    (folder / "new.jpg").write_bytes(photo(40))
    store = _store(folder, cache / "other")
    sidecar = find_sidecar(folder)
    assert sidecar.stale_share(store) == pytest.approx(2 / COUNT)
    assert sidecar.find(sidecar.names.of(photo(30))) is None
    assert sidecar.find(sidecar.names.of(photo(2))) is not None
    written = write_sidecar(store, place_to_write(folder))
    assert (written.samples, written.kept) == (COUNT, COUNT - 2)
    assert find_sidecar(folder).stale_share(store) == 0.0


def test_a_file_that_cannot_be_read_has_no_entry_and_is_tried_again(folder, cache):
    store, path = _store(folder, cache), place_to_write(folder)
    kept = (folder / "3.jpg").read_bytes()
    (folder / "3.jpg").unlink()
    assert write_sidecar(store, path).unreadable == 1
    (folder / "3.jpg").write_bytes(kept)
    written = write_sidecar(store, path)
    assert (written.samples, written.unreadable, written.kept) == (COUNT, 0, COUNT - 1)


def test_a_damaged_entry_is_as_good_as_none_and_is_made_again(folder, cache):
    store, path = _store(folder, cache), place_to_write(folder)
    write_sidecar(store, path)
    whole = path.read_bytes()
    sidecar = Sidecar(path)
    entry = sidecar.find(sidecar.names.of(photo(0))).to_bytes()
    at = whole.index(entry) + len(entry) // 2
    path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
    sidecar = Sidecar(path)
    assert sidecar.find(sidecar.names.of(photo(0))) is None
    assert sidecar.find(sidecar.names.of(photo(1))) is not None
    assert write_sidecar(store, path).kept == COUNT - 1
    assert path.read_bytes() == whole


@pytest.mark.parametrize("points", [b"", b"\x7f" * 4000, b"\0" * 4000])
def test_points_that_lead_astray_are_given_up_for_the_walk(points, monkeypatch):
    data = photo(0)

    class Lying(Indexes):
        def find(self, data):
            return Index(1, len(data), 0, points)

    monkeypatch.setattr(window_codec, "INDEXES", Lying())
    key = Key(0, 0, 0)
    payload = make_payload(PIPELINE, data, key, Cut(0, "window"))
    assert finish_payload(PIPELINE, payload, key, Cut(0, "window")).tobytes() == PIPELINE.run(data, key).tobytes()


def test_a_file_that_is_cut_short_or_overwritten_in_place_has_nothing_to_find(folder, cache):
    store = _store(folder, cache)
    path = write_sidecar(store, folder.with_name("photos.sophon-windows")).path
    sidecar = Sidecar(path)
    name = sidecar.names.of(photo(0))
    assert sidecar.find(name) is not None
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.write(bytes(size))
        file.flush()
        assert sidecar.find(name) is None
        file.truncate(100)
    assert sidecar.find(name) is None
    with pytest.raises(ArtifactError, match="changed while it was being read"):
        sidecar.rows_of(store)


def test_damaged_and_foreign_files_are_refused(folder, cache, tmp_path):
    store, path = _store(folder, cache), place_to_write(folder)
    write_sidecar(store, path)
    whole = path.read_bytes()
    rng = np.random.default_rng(0)
    for turn in range(300):
        data = bytearray(whole[: rng.integers(len(whole))] if turn % 3 == 0 else whole)
        for at in rng.integers(0, max(1, len(data)), 4):
            if at < len(data):
                data[at] = rng.integers(256)
        path.write_bytes(data)
        try:
            sidecar = Sidecar(path)
        except ArtifactError:
            continue
        for number in range(COUNT):
            found = sidecar.find(sidecar.names.of(photo(number)))
            assert found is None or found == build_index(photo(number))
    foreign = tmp_path / "foreign"
    table = pa.table({"x": [1, 2]})
    with pa.OSFile(str(foreign), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    for file in (foreign, tmp_path / "missing", folder / "0.jpg"):
        with pytest.raises(ArtifactError):
            Sidecar(file)
    before = foreign.read_bytes()
    with pytest.raises(ArtifactError, match="not overwritten"):
        write_sidecar(store, foreign)
    assert foreign.read_bytes() == before


def test_it_lies_beside_the_data_or_in_the_cache_where_that_cannot_be_written_to(folder, cache, monkeypatch):
    beside, cached = places(folder)
    assert beside == folder.with_name("photos" + SUFFIX)
    assert cache in cached.parents
    assert place_to_write(folder) == beside
    assert places(folder / "*.tar") != places(folder)
    assert len(places(folder.parent / "train-*.tar")) == 1  # a pattern has no neighbour
    real = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: os.fspath(path) != str(folder.parent) and real(path, mode))
    assert place_to_write(folder) == cached
    store = _store(folder, cache)
    write_sidecar(store, cached)
    assert find_sidecar(folder).path == cached
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(ArtifactError, match="--out"):
        place_to_write(folder)


def test_a_file_attached_again_takes_its_own_place(folder, cache):
    store, path = _store(folder, cache), place_to_write(folder)
    write_sidecar(store, path)
    indexes = Indexes()
    for _ in range(3):
        indexes.attach(Sidecar(path))
    assert indexes.held_bytes == 28 * COUNT


def test_the_command_writes_it_and_a_server_picks_it_up(folder, cache, tmp_path):
    def sophon(*args):
        command = [sys.executable, "-m", "sophon.cli.main", *map(str, args)]
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=HANG_S)

    done = sophon("index", folder)
    assert done.returncode == 0, done.stderr
    assert f"wrote {folder}{SUFFIX}: {COUNT} samples" in done.stdout
    assert "1 without an index" in done.stdout
    assert f"{COUNT} as before" in sophon("index", folder).stdout
    out = tmp_path / "elsewhere"
    assert sophon("index", folder, "--out", out).returncode == 0
    assert len(Sidecar(out)) == COUNT
    # A port that is taken ends the server after it has looked at its data.
    assert f"window indexes of {COUNT} samples" in sophon("serve", folder, "--host", "203.0.113.1", "--insecure").stdout
    shutil.copy(folder / "0.jpg", f"{folder}{SUFFIX}")
    assert "window indexes are not used" in sophon("serve", folder, "--host", "203.0.113.1", "--insecure").stderr


def _forged(path, change):
    """Replace the indexes of a file by others, with checksums that are right."""
    with pa.OSFile(str(path)) as file:
        table = pa.ipc.open_file(file).read_all()
    rows = table.to_pylist()
    change(rows)
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(pa.Table.from_pylist(rows, table.schema))


def _of_another(rows):
    """Give the first sample the index of the second, which is about other bytes, as its own."""
    packed = rows[1]["index"]
    other = Index.from_bytes(packed[:-16])
    rows[0]["index"] = Index(other.stride, other.file_bytes, 0, other.points).to_bytes() + bytes(16)


def test_an_index_with_a_right_checksum_and_no_seal_of_ours_is_never_used(folder, cache):
    with _store(folder, cache) as store:
        path = write_sidecar(store, place_to_write(folder)).path
        _forged(path, _of_another)
        with pytest.raises(ArtifactError, match=f"{path.name} was not made by the user who opens it"):
            find_sidecar(folder)
        written = write_sidecar(store, path)
        assert (written.samples, written.kept) == (COUNT, 0), "nothing of it is taken over, and sealed"


def test_a_forged_entry_that_was_not_looked_at_first_is_not_found_either(folder, cache, monkeypatch):
    monkeypatch.setattr("sophon.codec.window.sidecar._TRIED", 1)
    with _store(folder, cache) as store:
        path = write_sidecar(store, place_to_write(folder)).path

    def change(rows):
        rows[0], rows[1] = rows[1], rows[0]  # so that the first is as it should be
        _of_another([rows[1], rows[0]])

    _forged(path, change)
    sidecar = find_sidecar(folder)
    assert sidecar.find(sidecar.names.of(photo(0))) is None
    assert sidecar.find(sidecar.names.of(photo(1))) is not None


def test_a_sealed_index_that_was_moved_to_the_name_of_another_picture_is_not_found(folder, cache, monkeypatch):
    monkeypatch.setattr("sophon.codec.window.sidecar._TRIED", 1)
    with _store(folder, cache) as store:
        path = write_sidecar(store, place_to_write(folder)).path
    _forged(path, lambda rows: rows[1].update(index=rows[0]["index"]))
    sidecar = find_sidecar(folder)
    assert sidecar.find(sidecar.names.of(photo(0))) is not None
    assert sidecar.find(sidecar.names.of(photo(1))) is None


def test_what_another_user_has_sealed_is_not_used(folder, cache, monkeypatch, tmp_path):
    with _store(folder, cache) as store:
        write_sidecar(store, place_to_write(folder))
    monkeypatch.setenv("SOPHON_KEY_FILE", str(tmp_path / "keys" / "another"))
    with pytest.raises(ArtifactError, match="set SOPHON_KEY_FILE to the file with the key it was made with"):
        find_sidecar(folder)


def test_a_file_that_others_can_write_to_is_not_used(folder, cache):
    with _store(folder, cache) as store:
        path = write_sidecar(store, place_to_write(folder)).path
    assert find_sidecar(folder) is not None
    path.chmod(0o666)
    with pytest.raises(ArtifactError, match="other users can write to"):
        find_sidecar(folder)


def test_a_forged_file_gives_no_wrong_tensor_and_is_named(folder, cache):
    import sophon

    recipe = Pipeline([ops.Decode(), ops.RandomResizedCrop(16, scale=(0.1, 0.3)), ops.ToTensor()])
    expected = [batch.numpy() for batch in sophon.DataLoader(str(folder), recipe, batch_size=COUNT)]
    with _store(folder, cache) as store:
        path = write_sidecar(store, place_to_write(folder)).path
    _forged(path, _of_another)
    with pytest.warns(UserWarning, match=path.name):
        found = [batch.numpy() for batch in sophon.DataLoader(str(folder), recipe, batch_size=COUNT)]
    assert all((one == other).all() for one, other in zip(expected, found, strict=True))
