import json
import os
import signal
import subprocess
import sys
import threading
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from sophon import artifact
from sophon.artifact import Header, load, replacing, require_fingerprints, save
from sophon.errors import ArtifactError
from sophon.version import __version__
from tests.support.waiting import HANG_S

HEADER = Header("thing", 3, {"pipeline": "abc"}, {"made": "by hand", "list": [1, 2.5, None]})
COLUMNS = {
    "small": np.arange(1000, dtype=np.uint8) % 7,
    "real": np.linspace(0, 1, 1000, dtype=np.float32),
    "mark": np.arange(1000) % 3 == 0,
}
TYPES = {"small": pa.uint8(), "real": pa.float32(), "mark": pa.bool_()}


def names_in(folder):
    return sorted(each.name for each in folder.iterdir())


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), RuntimeError("a bug"), KeyboardInterrupt()])
def test_an_error_in_the_middle_leaves_the_old_file_and_nothing_else(tmp_path, error):
    path = tmp_path / "a"
    path.write_bytes(b"old")

    def write():
        with replacing(path) as file:
            file.write(b"half of the ne")
            file.flush()
            assert len(names_in(tmp_path)) == 2
            raise error

    with pytest.raises(type(error)):
        write()
    assert path.read_bytes() == b"old"
    assert names_in(tmp_path) == ["a"]


def test_a_process_that_is_killed_in_the_middle_leaves_the_old_file_and_is_in_nobodys_way(tmp_path):
    path = tmp_path / "a"
    path.write_bytes(b"old")
    script = f"""
import os, signal
from sophon.artifact import replacing
with replacing({str(path)!r}) as file:
    file.write(b"half of the ne")
    file.flush()
    os.kill(os.getpid(), signal.SIGKILL)
"""
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == -signal.SIGKILL
    assert path.read_bytes() == b"old"
    with replacing(path) as file:
        file.write(b"new")
    assert path.read_bytes() == b"new"


def test_of_two_writers_at_once_the_last_one_wins_and_neither_sees_the_other(tmp_path):
    path, both_write, first_is_done = tmp_path / "a", threading.Barrier(2), threading.Event()

    def write(letter, is_first):
        with replacing(path) as file:
            file.write(letter * 50_000)
            both_write.wait(HANG_S)
            file.write(letter * 50_000)
            if not is_first:
                assert first_is_done.wait(HANG_S)
                assert path.read_bytes() == b"a" * 100_000
        if is_first:
            first_is_done.set()

    with ThreadPoolExecutor(2) as pool:
        for task in (pool.submit(write, b"a", True), pool.submit(write, b"b", False)):
            task.result(HANG_S)
    assert path.read_bytes() == b"b" * 100_000
    assert names_in(tmp_path) == ["a"]


def test_a_new_file_has_the_permissions_that_the_umask_leaves_and_follows_no_link(tmp_path):
    precious, path = tmp_path / "precious", tmp_path / ("n" * 255)  # the longest name that there can be
    precious.write_bytes(b"precious")
    path.symlink_to(precious)
    before = os.umask(0o027)
    try:
        with replacing(path, sync=True) as file:
            file.write(b"new")
    finally:
        os.umask(before)
    assert path.stat().st_mode & 0o777 == 0o640
    assert (path.is_symlink(), path.read_bytes(), precious.read_bytes()) == (False, b"new", b"precious")


def read_back(path):
    with load(path, format="thing", version=3) as file:
        file.require_columns(TYPES)
        found = {name: np.empty(file.rows, COLUMNS[name].dtype) for name in COLUMNS}
        for name, out in found.items():
            file.read(name, out)
        return file.header, found


@pytest.fixture
def path(tmp_path):
    save(tmp_path / "a.parquet", HEADER, COLUMNS)
    return tmp_path / "a.parquet"


def test_what_was_saved_is_loaded(path):
    header, found = read_back(path)
    assert (header.format, header.version, header.fingerprints) == ("thing", 3, {"pipeline": "abc"})
    assert header.provenance == HEADER.provenance
    assert header.packages["sophon"] == __version__
    for name, values in COLUMNS.items():
        assert (found[name] == values).all()


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="counts threads where Linux shows them")
def test_loading_starts_no_threads(path):
    # They would outlive the call, and may abort a command that ends right after it.
    script = f"""
import os, numpy as np
from sophon.artifact import load
before = os.listdir("/proc/self/task")
with load({str(path)!r}, format="thing", version=3) as file:
    file.read("real", np.empty(file.rows, np.float32))
assert os.listdir("/proc/self/task") == before
"""
    subprocess.run([sys.executable, "-c", script], check=True)


def test_the_same_content_gives_the_same_bytes(path, tmp_path):
    save(tmp_path / "b.parquet", HEADER, COLUMNS)
    assert path.read_bytes() == (tmp_path / "b.parquet").read_bytes()


def test_many_row_groups_are_one_column(tmp_path, monkeypatch):
    monkeypatch.setattr(artifact, "_ROW_GROUP_ROWS", 64)
    save(tmp_path / "a.parquet", HEADER, COLUMNS)
    assert (read_back(tmp_path / "a.parquet")[1]["real"] == COLUMNS["real"]).all()


def test_any_parquet_reader_reads_the_columns(path):
    assert pq.read_table(path).column_names == list(COLUMNS)


def test_a_failed_save_leaves_the_old_file_and_nothing_else(path, monkeypatch):
    before = path.read_bytes()

    def broken(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(artifact.os, "fsync", broken)
    with pytest.raises(ArtifactError, match="No space left on device"):
        save(path, HEADER, {"small": np.zeros(3, np.uint8)})
    assert path.read_bytes() == before
    assert [each.name for each in path.parent.iterdir()] == [path.name]


def test_a_folder_that_is_not_there_is_an_artifact_error(tmp_path):
    with pytest.raises(ArtifactError, match="choose a folder that exists"):
        save(tmp_path / "none" / "a.parquet", HEADER, COLUMNS)
    with pytest.raises(ArtifactError, match="cannot be read"):
        read_back(tmp_path / "none.parquet")


def test_another_format_and_another_version_are_named(path, tmp_path):
    with (
        pytest.raises(ArtifactError, match="the file is a thing; expected a plan: give the right file"),
        load(path, format="plan", version=3),
    ):
        pass
    with (
        pytest.raises(
            ArtifactError, match=f"the file is thing version 3, written by sophon {__version__}.*reads version 4"
        ),
        load(path, format="thing", version=4),
    ):
        pass


def test_other_columns_are_refused(path):
    with load(path, format="thing", version=3) as file:
        for types in ({"small": pa.uint8()}, {**TYPES, "real": pa.float64()}, {**TYPES, "more": pa.uint8()}):
            with pytest.raises(ArtifactError, match="were expected; recreate the file"):
                file.require_columns(types)


def rewritten(path, table, metadata):
    with pq.ParquetWriter(path, table.schema, store_schema=False) as writer:
        writer.write_table(table)
        writer.add_key_value_metadata(metadata)


def signed(fields):
    text = json.dumps(fields).encode()
    return {b"sophon": text, b"sophon.crc32": b"%08x" % zlib.crc32(text)}


GOOD = {"format": "thing", "version": 3, "fingerprints": {}, "provenance": {}, "packages": {}}


@pytest.mark.parametrize(
    "metadata",
    [
        {},
        {b"sophon": b"{}"},
        {b"sophon": b"{}", b"sophon.crc32": b"00000000"},
        signed([]),
        signed("thing"),
        signed({**GOOD, "version": "3"}),
        signed({**GOOD, "fingerprints": {"pipeline": 7}}),
        signed({**GOOD, "packages": []}),
        signed({**GOOD, "provenance": 1}),
        signed({**GOOD, "more": 1}),
        {b"sophon": b"[" * 100_000, b"sophon.crc32": b"%08x" % zlib.crc32(b"[" * 100_000)},
    ],
)
def test_a_header_that_is_not_ours_is_refused(tmp_path, metadata):
    rewritten(tmp_path / "a.parquet", pa.table({"small": pa.array([1], pa.uint8())}), metadata)
    with pytest.raises(ArtifactError), load(tmp_path / "a.parquet", format="thing", version=3):
        pass


def test_holes_are_refused(tmp_path):
    columns = {"small": pa.array([1, None], pa.uint8())}
    rewritten(tmp_path / "a.parquet", pa.table(columns), signed(GOOD))
    with (
        load(tmp_path / "a.parquet", format="thing", version=3) as file,
        pytest.raises(ArtifactError, match="has nulls"),
    ):
        file.read("small", np.empty(2, np.uint8))


def test_too_many_rows_and_columns_are_refused_before_reading(path, monkeypatch):
    monkeypatch.setattr(artifact, "MAX_ROWS", 999)
    with pytest.raises(ArtifactError, match="the file claims 1000 rows × 3 columns; at most 999"):
        read_back(path)
    monkeypatch.setattr(artifact, "MAX_ROWS", 2**28)
    monkeypatch.setattr(artifact, "MAX_COLUMNS", 2)
    with pytest.raises(ArtifactError, match="the file claims"):
        read_back(path)


def test_a_header_too_long_to_be_read_back_is_not_saved(tmp_path, monkeypatch):
    monkeypatch.setattr(artifact, "MAX_HEADER_BYTES", 50)
    with pytest.raises(ArtifactError, match="shorten the provenance"):
        save(tmp_path / "a.parquet", HEADER, COLUMNS)


@pytest.mark.parametrize(
    "data", [b"", b"PAR1", b"PAR1" * 3, b"PAR1\xff\xff\xff\x7fPAR1", b"x" * 100, b"PAR1" + bytes(90)]
)
def test_bytes_that_are_no_parquet_are_refused(tmp_path, data):
    (tmp_path / "a.parquet").write_bytes(data)
    with pytest.raises(ArtifactError):
        read_back(tmp_path / "a.parquet")


def test_every_flipped_byte_is_found_or_harmless(path):
    good = path.read_bytes()
    rng = np.random.default_rng(0)
    refused = 0
    for _ in range(600):
        data = bytearray(good)
        for place in rng.integers(0, len(data), rng.integers(1, 4)):
            data[place] ^= int(rng.integers(1, 256))
        path.write_bytes(data)
        try:
            header, found = read_back(path)
        except ArtifactError:
            refused += 1
            continue
        assert header.provenance == HEADER.provenance
        for name, values in COLUMNS.items():
            assert (found[name] == values).all()
    assert refused > 300


def test_every_shortened_file_is_refused(path):
    good = path.read_bytes()
    for length in range(0, len(good), 37):
        path.write_bytes(good[:length])
        with pytest.raises(ArtifactError):
            read_back(path)


def test_fingerprints_that_differ_are_both_shown():
    require_fingerprints("the plan", {"pipeline": "aa"}, {"pipeline": "aa", "dataset": None}, "Plan anew.")
    with pytest.raises(
        ArtifactError, match=r"belongs to another pipeline: it carries 'aa', this job has 'bb'. Plan anew."
    ):
        require_fingerprints("the plan", {"pipeline": "aa"}, {"pipeline": "bb"}, "Plan anew.")
