"""The same data set as a folder on disk and in a bucket: the oracle is the store of files."""

import os
import pickle
from pathlib import Path

import pytest

from sophon.errors import ConfigError, StoreError
from sophon.store import STORES, open_store
from sophon.store.address import Address, parse_address
from tests.store.datasets import make, picture, write_files, write_tar

SERVERS = ("seaweedfs", pytest.param("rclone", marks=pytest.mark.slow))


def upload(server, root: Path, prefix: str) -> str:
    """Put a folder, or a file, into a bucket; return its address."""
    if root.is_file():
        server.put({f"{prefix}/{root.name}": root.read_bytes()})
        return f"s3://bucket/{prefix}/{root.name}"
    files = {f"{prefix}/{file.relative_to(root)}": file.read_bytes() for file in root.rglob("*") if file.is_file()}
    server.put(files)
    return f"s3://bucket/{prefix}"


def same(one, two) -> None:
    assert one.manifest.fingerprint == two.manifest.fingerprint
    assert one.manifest.classes == two.manifest.classes
    assert one.manifest.columns.equals(two.manifest.columns)
    assert [one.read(i) for i in range(len(one))] == [two.read(i) for i in range(len(two))]
    space = bytearray(int(two.manifest.sizes.sum()))
    ends, failed = two.read_run(range(len(two)), memoryview(space))
    assert not failed
    assert ends[-1] == len(space)
    assert bytes(space) == b"".join(one.read(i) for i in range(len(one)))


@pytest.fixture
def server(request, use):
    return use(request.getfixturevalue(request.param))


@pytest.mark.parametrize("server", SERVERS, indirect=True)
@pytest.mark.parametrize("kind", STORES)
def test_a_bucket_gives_what_a_folder_gives(tmp_path, server, kind):
    data = make(kind, tmp_path / "data")
    address = upload(server, data if data.is_dir() else data.parent, f"{kind}-{tmp_path.name}")
    if data.is_file():
        address += f"/{data.name}"
    with open_store(data) as files, open_store(address, cache_dir=tmp_path / "cache") as objects:
        same(files, objects)
        same(files, pickle.loads(pickle.dumps(objects)))
        with open_store(address, cache_dir=tmp_path / "cache") as again:
            same(files, again)


@pytest.mark.parametrize("server", SERVERS, indirect=True)
def test_classes_and_order_are_those_of_a_folder(tmp_path, server):
    names = [
        "b/1.jpg",
        "a-b/x.jpg",
        "a/z.JPG",
        "a/deep/er/1.png",
        "a/deep.jpg",
        "a/é ü+&?.jpeg",
        "b/notes.txt",
        "top.jpg",
    ]
    root = write_files(tmp_path / "data", {name: picture(number) for number, name in enumerate(names)})
    address = upload(server, root, tmp_path.name)
    with pytest.warns(UserWarning, match="next to the class folders"):
        files = open_store(root)
    with pytest.warns(UserWarning, match="next to the class folders"):
        objects = open_store(address, cache_dir=tmp_path / "cache")
    assert objects.manifest.ids.to_pylist() == files.manifest.ids.to_pylist()
    same(files, objects)


@pytest.mark.parametrize("server", SERVERS, indirect=True)
def test_a_changed_or_missing_object_is_an_error_with_its_key(tmp_path, server):
    root = write_files(tmp_path / "data", {f"{number}.jpg": picture(number) for number in range(3)})
    address = upload(server, root, tmp_path.name)
    store = open_store(address, cache_dir=tmp_path / "cache")
    assert store.read(1) == picture(1)
    server.put({f"{tmp_path.name}/1.jpg": picture(1)[::-1]})  # as many bytes
    with pytest.raises(StoreError, match=rf"{tmp_path.name}/1.jpg.* has changed since it was listed"):
        store.read(1)
    import obstore

    from sophon.bench.rig.object_server import raw_store

    obstore.delete(raw_store(server.endpoint), f"{tmp_path.name}/2.jpg")
    with pytest.raises(StoreError, match=rf"{tmp_path.name}/2.jpg.* does not exist"):
        store.read(2)
    assert store.read(0) == picture(0)


def test_a_changed_shard_is_an_error(tmp_path, seaweedfs, use):
    use(seaweedfs)
    members = [(f"{number}.jpg", picture(number)) for number in range(5)]
    address = upload(seaweedfs, write_tar(tmp_path / "a.tar", members), tmp_path.name)
    store = open_store(address, cache_dir=tmp_path / "cache")
    assert store.read(3) == picture(3)
    upload(seaweedfs, write_tar(tmp_path / "a.tar", members[::-1]), tmp_path.name)
    with pytest.raises(StoreError, match=r"a\.tar cannot be read: .*has changed since it was listed"):
        store.read(3)


def _child(read) -> int:
    """Run something in a forked child; return its exit code."""
    pid = os.fork()
    if pid == 0:
        os._exit(0 if read() else 1)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_child_reads_though_its_parent_has_read_before(tmp_path, seaweedfs, use):
    use(seaweedfs)
    root = write_files(tmp_path / "data", {f"{number}.jpg": picture(number) for number in range(3)})
    store = open_store(upload(seaweedfs, root, tmp_path.name), cache_dir=tmp_path / "cache")
    assert store.read(0) == picture(0)
    assert _child(lambda: store.read(1) == picture(1)) == 0
    assert _child(lambda: _child(lambda: store.read(2) == picture(2)) == 0) == 0
    assert store.read(1) == picture(1)


def test_nothing_is_listed_twice(tmp_path, seaweedfs, use):
    from sophon.store.bucket.account import ACCOUNT

    use(seaweedfs)
    root = write_files(tmp_path / "data", {f"c/{number}.jpg": picture(number) for number in range(3)})
    address = upload(seaweedfs, root, tmp_path.name)
    open_store(address, cache_dir=tmp_path / "cache")
    lists = ACCOUNT.lists
    assert lists > 0
    assert open_store(address, cache_dir=tmp_path / "cache").read(0) == picture(0)
    assert ACCOUNT.lists == lists


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("s3://bucket/nowhere", "there is nothing below s3://bucket/nowhere"),
        ("s3://no-such-bucket/x", "cannot access s3://no-such-bucket/x|there is nothing"),
        ("s3:///x", "expected an address such as s3://bucket/train"),
        ("s3://bucket/a//b", "empty parts"),
        ("https://user:hunter2@host/x.tar", "a password or signature in"),
        ("https://host/x.tar?X-Amz-Signature=hunter2", "a password or signature in"),
    ],
)
def test_what_is_wrong_with_an_address_is_said_without_secrets(tmp_path, seaweedfs, use, text, message):
    use(seaweedfs)
    with pytest.raises((ConfigError, StoreError), match=message) as caught:
        open_store(text, cache_dir=tmp_path)
    assert "hunter2" not in str(caught.value)


def test_an_address_is_not_a_path():
    assert parse_address("s3://b/k/x.tar/") == Address("s3", "b", "k/x.tar")
    assert str(parse_address("s3://b")) == "s3://b"
    assert parse_address("gs://b/k").parent == Address("gs", "b", "")
