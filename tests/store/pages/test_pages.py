"""Files of pages: rows come back whatever is in memory, and whatever is done to a file, never other rows."""

import json
import os
import pickle
import subprocess
import sys
import tempfile
import threading
import tracemalloc
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sophon.errors import ArtifactError, Error, StoreError
from sophon.link.listing import piece_of, received
from sophon.store.manifest import Manifest, sources_table
from sophon.store.pages import file as pages
from sophon.store.pages.columns import TextSpans, texts_of
from sophon.store.pages.file import PAGE_ROWS

ROWS = 2 * PAGE_ROWS + 77
IN_PAGES = -1  # bytes up to which a file is held


def _manifest(rows: int = ROWS, kept: bool = False) -> Manifest:
    numbers = np.arange(rows)
    rng = np.random.default_rng(3)
    texts = [f"ü/{'x' * (number % 7)}{number}.jpg" for number in range(rows)]
    locations = {"etag": pa.array([f'"{number}"'.encode() for number in range(rows)], pa.large_binary())}
    if kept:
        locations["data/boxes"] = pa.array([bytes([number % 251]) * (number % 5) for number in range(rows)])
    kinds = pa.chunked_array(
        [
            pa.array(part, pa.string()).dictionary_encode()
            for part in (["a"] * (rows // 2), ["b", "a"] * (rows - rows // 2))
        ]
    ).slice(0, rows)
    return Manifest(
        kind="bucket",
        ids=pa.array(texts, pa.large_string()),
        sizes=rng.integers(0, 1 << 40, rows),
        labels=numbers % 10,
        classes=tuple("abcdefghij"),
        columns=pa.table({"kind": kinds, "boxes": [[float(number)] * (number % 3) for number in range(rows)]}),
        locations=pa.table(locations),
        sources=sources_table(["s/"], [-1], [0]),
    )


def _same(one: Manifest, two: Manifest) -> None:
    assert (one.fingerprint, one.columns_digest, one.classes) == (two.fingerprint, two.columns_digest, two.classes)
    assert one.ids.to_pylist() == two.ids.to_pylist()
    assert one.columns.column_names == two.columns.column_names
    for name in one.columns.column_names:
        assert one.columns[name].to_pylist() == two.columns[name].to_pylist()
    for name in one.locations.column_names:
        assert one.locations[name].to_pylist() == two.locations[name].to_pylist()
    for name in ("sizes", "labels", "kept"):
        assert np.array_equal(getattr(one, name), getattr(two, name)), name


@pytest.mark.parametrize("held_bytes", [IN_PAGES, 1 << 30])
@pytest.mark.parametrize("rows", [0, 1, PAGE_ROWS, ROWS])
def test_what_was_saved_comes_back_in_pages_and_in_memory(tmp_path, rows, held_bytes):
    manifest = _manifest(rows, kept=True)
    digest = manifest.save(tmp_path / "m.arrow")
    loaded = Manifest.load(tmp_path / "m.arrow", held_bytes=held_bytes, digest=digest)
    assert (loaded.file is None) == (held_bytes > 0)
    _same(manifest, loaded)
    _same(manifest, pickle.loads(pickle.dumps(loaded)))
    loaded.save(tmp_path / "again.arrow")
    _same(manifest, Manifest.load(tmp_path / "again.arrow", held_bytes=held_bytes))


def test_single_rows_some_rows_and_pieces_are_those_of_the_whole(tmp_path):
    manifest = _manifest()
    manifest.save(tmp_path / "m.arrow")
    paged = Manifest.load(tmp_path / "m.arrow", held_bytes=IN_PAGES)
    rows = np.random.default_rng(0).integers(0, ROWS, 300)
    for row in [*rows.tolist(), 0, -1, ROWS - 1]:
        assert paged.ids[row] == manifest.ids[row]
        assert paged.locations["etag"][row] == manifest.locations["etag"][row]
        assert paged.values(row, ["id", "kind", "boxes"]) == manifest.values(row, ["id", "kind", "boxes"])
    for column in (manifest.ids, manifest.ids.slice(3), paged.ids, manifest.locations["etag"], paged.locations["etag"]):
        values, text_of = column.to_pylist(), texts_of(column)
        assert [text_of(row) for row in (0, 5, 300)] == [
            value if isinstance(value, bytes) else value.encode() for value in (values[0], values[5], values[300])
        ]
        for row in (len(column), -len(column) - 1):
            with pytest.raises(IndexError):
                text_of(row)
    for owner in (manifest, manifest.select(rows), paged):
        spans = pickle.loads(pickle.dumps(TextSpans(owner, "ids")))
        for some in (rows[rows < len(owner.ids)], rows[:0]):
            starts, ends, text = spans.of(some)
            found = [bytes(text[start:end]).decode() for start, end in zip(starts, ends, strict=True)]
            assert found == [owner.ids[row].as_py() for row in some.tolist()]
    assert paged.ids.take(pa.array(rows)).equals(manifest.ids.take(pa.array(rows)))
    for start, length in ((0, 5), (250, 20), (ROWS - 3, 50), (ROWS, 1)):
        assert paged.ids.slice(start, length).equals(manifest.ids.slice(start, length))
    for row in (ROWS, -ROWS - 1):
        with pytest.raises(IndexError):
            paged.ids[row]
    with pytest.raises(IndexError):
        paged.ids.take(np.array([0, ROWS]))
    _same(manifest.select(rows), paged.select(rows))
    assert received(lambda start: piece_of(paged, start), ROWS, manifest.fingerprint).ids.equals(manifest.ids)


@given(data=st.data())
@settings(max_examples=200, deadline=None)
def test_damaged_files_give_the_same_rows_or_a_typed_error(data):
    manifest = _manifest()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "m.arrow"
        manifest.save(file)
        content = bytearray(file.read_bytes())
        if data.draw(st.booleans(), "cut"):
            del content[data.draw(st.integers(0, len(content) - 1), "at") :]
        else:
            for at in data.draw(st.lists(st.integers(0, len(content) - 1), min_size=1, max_size=4), "at"):
                content[at] = data.draw(st.integers(0, 255), "to")
        file.write_bytes(content)
        held_bytes = data.draw(st.sampled_from([IN_PAGES, 1 << 30]))
        try:
            loaded = Manifest.load(file, held_bytes=held_bytes)
            _same(manifest, loaded)
        except ArtifactError:
            pass
        except StoreError:
            assert held_bytes == IN_PAGES  # one that is held is looked at when it is opened


@pytest.mark.parametrize("what", ["cut", "emptied", "other rows", "zeros"])
def test_a_file_that_is_changed_while_it_is_open_gives_no_other_rows(tmp_path, what):
    file = tmp_path / "m.arrow"
    manifest, other = _manifest(), _manifest()
    manifest.save(file)
    paged = Manifest.load(file, held_bytes=IN_PAGES)
    size = file.stat().st_size
    other = Manifest(
        **{name: getattr(other, name) for name in ("kind", "labels", "classes", "columns", "locations", "sources")},
        ids=pa.array(reversed(manifest.ids.to_pylist()), pa.large_string()),
        sizes=manifest.sizes,
    )
    other.save(tmp_path / "other.arrow")
    with file.open("r+b") as opened:  # the very file, not another one in its place
        if what == "cut":
            opened.truncate(size // 2)
        elif what == "emptied":
            opened.truncate(0)
        elif what == "zeros":
            opened.write(bytes(size))
        else:
            opened.write((tmp_path / "other.arrow").read_bytes())
    refused = []
    for row in range(ROWS):
        try:
            assert paged.ids[row] == manifest.ids[row]
        except StoreError as error:
            refused.append(str(error))
    assert len(refused) >= ROWS - PAGE_ROWS  # half a file still has whole pages
    assert all("has changed since it was opened" in error for error in refused)


def test_hashes_that_were_made_to_fit_other_rows_do_not_fit_the_fingerprint(tmp_path):
    file = tmp_path / "m.arrow"
    _manifest().save(file)
    data = file.read_bytes()
    length = pages._FOOTER.unpack(data[-pages._FOOTER.size :])[0]
    end = len(data) - pages._FOOTER.size
    said = json.loads(data[end - length : end])
    for changes in ({"fingerprint": "0" * 32}, {"format": 3}, {"rows": 5}, {"page_rows": 128}, {"notes": 7}):
        directory = json.dumps(said | changes).encode()
        digest = pages.hashlib.sha256(directory).digest()
        file.write_bytes(data[: end - length] + directory + pages._FOOTER.pack(len(directory), digest, pages._MAGIC))
        with pytest.raises(ArtifactError, match=r"m\.arrow is not a readable manifest.*Delete the file"):
            Manifest.load(file)


def test_another_process_opens_the_same_file_again_even_if_its_name_is_gone(tmp_path):
    file = tmp_path / "m.arrow"
    manifest = _manifest()
    manifest.save(file)
    paged = Manifest.load(file, held_bytes=IN_PAGES)
    packed = pickle.dumps(paged)
    assert len(packed) < 1000
    code = "import pickle, sys; m = pickle.load(sys.stdin.buffer); print(m.fingerprint, m.ids[300].as_py())"

    def asked() -> str:
        env = os.environ | {"PYTHONIOENCODING": "utf-8"}
        done = subprocess.run([sys.executable, "-c", code], input=packed, capture_output=True, check=True, env=env)
        return done.stdout.decode().strip()

    expected = f"{manifest.fingerprint} {manifest.ids[300].as_py()}"
    assert asked() == expected
    _manifest(5).save(file)  # replaced
    assert asked() == expected
    file.unlink()
    assert asked() == expected
    del paged
    with pytest.raises(Error):
        pickle.loads(packed)


def test_threads_and_a_forked_child_read_rows_at_once(tmp_path):
    manifest = _manifest()
    manifest.save(tmp_path / "m.arrow")
    paged = Manifest.load(tmp_path / "m.arrow", held_bytes=IN_PAGES)
    expected, wrong = manifest.ids.to_pylist(), []
    paged.file._most = 1  # every other read throws a page out

    def look(seed: int) -> None:
        rows = np.random.default_rng(seed).integers(0, ROWS, 200).tolist()
        wrong.extend(row for row in rows if paged.ids[row].as_py() != expected[row])

    threads = [threading.Thread(target=look, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with paged.file._lock:  # held at the moment of the fork
        child = os.fork()
        if not child:
            look(9)
            os._exit(bool(wrong))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert not wrong


def test_pages_in_memory_are_bounded(tmp_path, monkeypatch):
    rows = 100 * PAGE_ROWS
    _manifest(rows).save(tmp_path / "m.arrow")
    monkeypatch.setattr(pages, "HELD_BYTES", 200_000)
    paged = Manifest.load(tmp_path / "m.arrow", held_bytes=IN_PAGES)
    tracemalloc.start()
    before = pa.total_allocated_bytes()
    for row in range(0, rows, PAGE_ROWS):
        paged.ids[row]
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert held + pa.total_allocated_bytes() - before < 600_000 < (tmp_path / "m.arrow").stat().st_size
