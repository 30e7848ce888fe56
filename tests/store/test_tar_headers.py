"""The tar format, against Python's own tarfile."""

import io
import os
import tarfile
import tempfile
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sophon.errors import StoreError
from sophon.store.shards import pread
from sophon.store.tar_headers import Archive, Member
from tests.store.datasets import write_tar
from tests.support.effort import least_cpu_s

FORMATS = [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT]
segments = st.text(alphabet="ab.é-_ \n=", min_size=1, max_size=130).filter(
    lambda part: part.strip(".") and part[-1] != " "
)
paths = st.lists(segments, min_size=1, max_size=3).map("/".join)
contents = st.binary(max_size=1500)


def _list(path: Path) -> tuple[list[Member], bool]:
    fd = os.open(path, os.O_RDONLY)
    try:
        archive = Archive(partial(pread, fd), path.stat().st_size, f"shard {path.name}")
        return list(archive.members()), archive.ended
    finally:
        os.close(fd)


def _oracle(path: Path) -> list[tuple[str, int, int]]:
    with tarfile.open(path) as archive:
        return [(m.name, m.offset_data, m.size) for m in archive if m.isreg()]


def _assert_like_tarfile(path: Path) -> None:
    members, ended = _list(path)
    assert [(m.name.decode("utf-8", "surrogateescape"), m.offset, m.size) for m in members] == _oracle(path)
    assert ended


@given(members=st.lists(st.tuples(paths, contents), max_size=6), form=st.sampled_from(FORMATS))
@settings(max_examples=150, deadline=None)
def test_members_are_where_tarfile_finds_them(members, form):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x.tar"
        try:
            write_tar(path, members, form)
        except ValueError:
            return  # a name that this form cannot hold
        _assert_like_tarfile(path)
        data = path.read_bytes()
        assert [data[m.offset : m.offset + m.size] for m in _list(path)[0]] == [content for _, content in members]


@pytest.mark.parametrize("form", FORMATS)
def test_folders_links_and_devices_are_passed_over(tmp_path, form):
    path = tmp_path / "x.tar"
    with tarfile.open(path, "w", format=form) as archive:
        for name, kind in (
            ("d", tarfile.DIRTYPE),
            ("s", tarfile.SYMTYPE),
            ("h", tarfile.LNKTYPE),
            ("f", tarfile.FIFOTYPE),
        ):
            info = tarfile.TarInfo(name)
            info.type = kind
            info.linkname = "x" * 90
            archive.addfile(info)
            file = tarfile.TarInfo(f"{name}.jpg")
            file.size = 3
            archive.addfile(file, io.BytesIO(b"abc"))
    assert [m.name for m in _list(path)[0]] == [b"d.jpg", b"s.jpg", b"h.jpg", b"f.jpg"]
    _assert_like_tarfile(path)


def test_long_links_global_headers_and_pax_sizes_are_understood(tmp_path):
    path = tmp_path / "x.tar"
    with tarfile.open(path, "w", format=tarfile.PAX_FORMAT, pax_headers={"comment": "for all"}) as archive:
        info = tarfile.TarInfo("long/" + "n" * 300 + ".jpg")
        info.size = 5
        info.pax_headers = {"mtime": "1.5", "size": "5"}
        archive.addfile(info, io.BytesIO(b"12345"))
    with tarfile.open(path, "a", format=tarfile.GNU_FORMAT) as archive:
        link = tarfile.TarInfo("link")
        link.type, link.linkname = tarfile.SYMTYPE, "t" * 300
        archive.addfile(link)
        archive.addfile(tarfile.TarInfo("last.jpg"))
    _assert_like_tarfile(path)
    assert len(_list(path)[0]) == 2


def test_sizes_in_base_256_are_understood(tmp_path):
    path = write_tar(tmp_path / "x.tar", [("a.jpg", b"x" * 700), ("b.jpg", b"y")])
    data = bytearray(path.read_bytes())
    data[124:136] = b"\x80" + (700).to_bytes(11, "big")
    data[148:156] = b"%06o\0 " % (sum(data[:148]) + 256 + sum(data[156:512]))
    path.write_bytes(data)
    _assert_like_tarfile(path)


def test_an_archive_without_an_end_mark_is_read_and_says_so(tmp_path):
    path = write_tar(tmp_path / "x.tar", [("a.jpg", b"abc")])
    path.write_bytes(path.read_bytes()[:1024])
    members, ended = _list(path)
    assert (len(members), ended) == (1, False)


@pytest.mark.parametrize("size", [1, 511, 513, 700, 1023, 1025, 1500, 2047])
def test_a_truncated_archive_is_refused(tmp_path, size):
    path = write_tar(tmp_path / "x.tar", [("a.jpg", b"a" * 512), ("b.jpg", b"b" * 512)])
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(StoreError, match=r"shard x\.tar .*(Copy or pack the shard again)"):
        _list(path)


def _patched(path: Path, at: int, new: bytes) -> None:
    """Change a header and mend its checksum."""
    data = bytearray(path.read_bytes())
    data[at : at + len(new)] = new
    start = at // 512 * 512
    data[start + 148 : start + 156] = b" " * 8
    data[start + 148 : start + 156] = b"%06o\0 " % sum(data[start : start + 512])
    path.write_bytes(data)


@pytest.mark.parametrize(
    ("at", "new", "message"),
    [
        (124, b"77777777777\0", "extends beyond its end"),
        (124, b"\x80" + b"\xff" * 11, "extends beyond its end"),
        (124, b"\xff" * 12, "negative size"),
        (124, b"12x45678901\0", "no valid size"),
        (156, b"S", "sparse"),
        (156, b"x", "does not consist of records"),
    ],
)
def test_headers_that_make_no_sense_are_refused(tmp_path, at, new, message):
    path = write_tar(tmp_path / "x.tar", [("a.jpg", b"a" * 600), ("b.jpg", b"b")])
    _patched(path, at, new)
    with pytest.raises(StoreError, match=message):
        _list(path)


@pytest.mark.parametrize(
    "records",
    [b"5 a=\n", b"99 path=x\n", b"path=x\n", b"0 a=b\n", b"-5 a=b\n", b"10 size=x\n", b"11 size=-1\n", b"7 a=b\nx"],
)
def test_pax_records_that_make_no_sense_are_refused_or_passed_over(tmp_path, records):
    path = write_tar(tmp_path / "x.tar", [("pax", records), ("b.jpg", b"b")])
    _patched(path, 156, b"x")
    if records == b"5 a=\n":
        assert [m.name for m in _list(path)[0]] == [b"b.jpg"]
        return
    with pytest.raises(StoreError, match="pax header"):
        _list(path)


def test_a_huge_extended_header_is_refused_before_it_is_read(tmp_path):
    path = write_tar(tmp_path / "x.tar", [("a", b"")])
    _patched(path, 156, b"L")
    _patched(path, 124, b"00020000000\0")
    with path.open("ab") as file:
        file.truncate(1 << 24)
    with pytest.raises(StoreError, match="extended header"):
        _list(path)


@given(data=st.data())
@settings(max_examples=400, deadline=None)
def test_damaged_archives_give_typed_errors_only(data):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x.tar"
        members = [("a" * 150 + ".jpg", b"1" * 600), ("b.cls", b"1"), ("é.json", b"{}")]
        write_tar(path, members, data.draw(st.sampled_from(FORMATS[1:])))
        content = bytearray(path.read_bytes())
        for at in data.draw(st.lists(st.integers(0, 4000), min_size=1, max_size=4)):
            content[at] = data.draw(st.integers(0, 255))
        path.write_bytes(content[: data.draw(st.integers(0, len(content)))])
        try:
            found = _list(path)[0]
        except StoreError:
            return
        assert all(m.offset + m.size <= path.stat().st_size for m in found)


def test_many_pax_records_take_time_in_proportion_to_their_number(tmp_path):
    records = b"".join(b"11 %06x=\n" % number for number in range(90_000))  # as much as one header may hold
    few, many = (
        write_tar(tmp_path / f"{count}.tar", [("pax", records), *((f"{number}.jpg", b"") for number in range(count))])
        for count in (2, 200)
    )
    for path in (few, many):
        _patched(path, 156, b"g")
    assert len(_list(many)[0]) == 200
    # Not once for each member that they hold for.
    assert least_cpu_s(lambda: _list(many)) < 5 * least_cpu_s(lambda: _list(few))
