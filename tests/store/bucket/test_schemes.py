"""Object stores that are not S3: Azure's, by its emulator, and plain HTTP."""

import subprocess
import time

import pytest

from sophon.bench.rig.object_server import free_ports, program_of
from sophon.errors import ConfigError, StoreError
from sophon.store import STORES, open_store
from tests.store.bucket.test_stores import same
from tests.store.datasets import make, picture, write_files, write_tar
from tests.support import azurite as azurite_support
from tests.support.waiting import HANG_S


@pytest.fixture(scope="module")
def azure(tmp_path_factory):
    pytest.importorskip("obstore")
    if azurite_support.program() is None:
        pytest.skip("Azurite is not installed here (npm install azurite; SOPHON_AZURITE names it)")
    with azurite_support.azurite(tmp_path_factory.mktemp("azurite")) as environment:
        yield environment


@pytest.mark.slow
@pytest.mark.parametrize("kind", STORES)
def test_azure_gives_what_a_folder_gives(azure, tmp_path, monkeypatch, kind):
    from obstore import put
    from obstore.store import AzureStore

    for name, value in azure.items():
        monkeypatch.setenv(name, value)
    data = make(kind, tmp_path / "data")
    root = data if data.is_dir() else data.parent
    container = AzureStore("bucket", client_options={"allow_http": True})
    for file in root.rglob("*"):
        if file.is_file():
            put(container, f"{kind}/{file.relative_to(root)}", file.read_bytes())
    address = f"az://bucket/{kind}" + (f"/{data.name}" if data.is_file() else "")
    with open_store(data) as files, open_store(address, cache_dir=tmp_path / "cache") as objects:
        same(files, objects)
        if kind == "folder":
            put(container, f"{kind}/{objects.manifest.ids[0].as_py()}", picture(0)[::-1])
            with pytest.raises(StoreError, match="has changed since it was listed"):
                objects.read(0)


@pytest.fixture
def web(tmp_path):
    pytest.importorskip("obstore")
    program = program_of("rclone")
    if program is None:
        pytest.skip("rclone is not installed here")
    (tmp_path / "web").mkdir()
    port = free_ports(1)[0]
    process = subprocess.Popen(
        [program, "serve", "http", str(tmp_path / "web"), "--addr", f"127.0.0.1:{port}", "--dir-cache-time", "0"],
        stderr=subprocess.DEVNULL,
        env={"HOME": str(tmp_path)},
    )
    import socket

    until_s = time.monotonic() + HANG_S
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=5).close()
            break
        except OSError:
            assert time.monotonic() < until_s
            time.sleep(0.05)
    yield tmp_path / "web", f"http://127.0.0.1:{port}"
    process.kill()
    process.wait()


def test_listings_and_shards_are_read_over_http(web, tmp_path):
    folder, url = web
    names = {f"pictures/{n} ü.jpg": picture(n) for n in range(5)}
    write_files(folder, names)
    (folder / "labels.csv").write_text("path,label\n" + "".join(f"{name},{n % 2}\n" for n, name in enumerate(names)))
    for shard in range(2):
        write_tar(folder / f"a-0{shard}.tar", [(f"{shard}{n}.jpg", picture(10 * shard + n)) for n in range(5)])
    with open_store(folder / "labels.csv") as files, open_store(f"{url}/labels.csv", cache_dir=tmp_path) as objects:
        same(files, objects)
    with open_store(folder / "a-*.tar") as files, open_store(f"{url}/a-{{00..01}}.tar", cache_dir=tmp_path) as objects:
        same(files, objects)
    with pytest.raises(ConfigError, match="an HTTP server cannot be listed"):
        open_store(f"{url}/pictures", cache_dir=tmp_path)


def test_a_file_that_was_changed_on_a_web_server_is_an_error(web, tmp_path):
    folder, url = web
    write_tar(folder / "a.tar", [(f"{n}.jpg", picture(n)) for n in range(5)])
    store = open_store(f"{url}/a.tar", cache_dir=tmp_path)
    assert store.read(3) == picture(3)
    time.sleep(1.1)  # the time of a file on the web has seconds
    write_tar(folder / "a.tar", [(f"{n}.jpg", picture(n)[::-1]) for n in range(5)])
    with pytest.raises(StoreError, match="has changed since it was listed"):
        store.read(3)
