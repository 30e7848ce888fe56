"""Reading only the rows of a picture that a crop needs: the oracle is a loader on a folder of the same files."""

import hashlib
import io
import os
import pickle
import random
import subprocess
import sys
import warnings

import numpy as np
import pytest
from PIL import Image

import sophon
from sophon.codec.window.bands import bands_of, make_entry, span
from sophon.codec.window.blocks import needed
from sophon.codec.window.header import parse
from sophon.codec.window.jpeg import Index, available, cut
from sophon.codec.window.object_index import open_index, write_index
from sophon.codec.window.pages import PAGE_SAMPLES, Entry, Pages, finish, pack_page
from sophon.errors import ArtifactError
from sophon.loader.sources.local import open_path
from sophon.pipeline import Key
from sophon.store import open_store
from sophon.store.bucket.account import ACCOUNT
from tests.store.bucket.test_stores import upload
from tests.store.bucket.test_training import as_kind, epochs, photos
from tests.support.pictures import encode, scene
from tests.support.servers import RECIPE, digest, serve

pytestmark = pytest.mark.skipif(not available(), reason="the window extension was not built")


def portraits(folder, count=21, smaller=1):
    """Write pictures that are large enough for a band to be worth it."""
    folder.mkdir()
    forms = ("jpeg 4:2:0", "jpeg 4:4:4", "jpeg gray", "jpeg rotated", "jpeg 4:2:0", "jpeg progressive", "png")
    for number in range(count):
        form = forms[number % len(forms)]
        ending = "png" if form == "png" else "jpg"
        home = folder / f"class_{number % 2}"
        home.mkdir(exist_ok=True)
        data = encode(scene((200 + 7 * number) // smaller, (420 - 3 * number) // smaller, seed=number), form)
        (home / f"{number:03}.{ending}").write_bytes(data)
    return folder


@pytest.mark.parametrize("restarts", [0, 1, 7])
def test_a_band_gives_the_same_window_as_the_whole_file(restarts):
    rng = random.Random(restarts)
    for number, form in enumerate(("4:2:0", "4:2:2", "4:4:4")):
        out = io.BytesIO()
        scene(311, 277, seed=number).save(
            out, "JPEG", quality=70 + 9 * number, subsampling=form, restart_marker_blocks=restarts
        )
        data = out.getvalue()
        entry = make_entry(b"12345678", data)
        header, index = parse(data), Index.from_bytes(entry.points)
        for _ in range(40):
            left, top = rng.randrange(header.width), rng.randrange(header.height)
            box = (left, top, rng.randint(left + 1, header.width), rng.randint(top + 1, header.height))
            start, end = span(header, index, needed(header, box).mcus)
            sparse = bytearray(os.urandom(len(data)))  # what was not read must not matter
            sparse[start : end + 8] = data[start : end + 8]
            assert cut(sparse, box, index, header, trusted=True) == cut(data, box)


def test_the_header_in_the_index_has_no_metadata_and_says_the_same():
    import zlib

    exif = Image.Exif()
    exif[0x0112] = 6
    exif[0x010E] = "secret" * 1000
    out = io.BytesIO()
    scene(64, 80).save(out, "JPEG", exif=exif.tobytes(), comment=b"secret" * 500)
    data = out.getvalue()
    entry = make_entry(b"12345678", data)
    bare = zlib.decompress(entry.header)
    assert b"secret" in data
    assert b"secret" not in bare
    assert parse(bare).scan_start == parse(data).scan_start
    assert len(entry.header) < 1000


def test_an_index_of_another_object_is_not_used(tmp_path, seaweedfs, use):
    use(seaweedfs)
    root = portraits(tmp_path / "data", 6)
    address = upload(seaweedfs, root, tmp_path.name)
    write_index(open_store(address, cache_dir=tmp_path / "one"), cache_dir=tmp_path / "one")
    changed = next(root.rglob("*.jpg"))
    key = f"{tmp_path.name}/{changed.relative_to(root)}"
    seaweedfs.put({key: encode(scene(200, 420, seed=99), "jpeg 4:2:0")})
    store = open_store(address, cache_dir=tmp_path / "two")  # listed anew
    assert open_index(store, tmp_path / "two") == 6
    at = store.manifest.ids.to_pylist().index(str(changed.relative_to(root)))
    windows = [bands_of(store).window(sample, RECIPE, Key(1, 0, sample)) for sample in range(6)]
    assert windows[at] is None
    assert any(window is not None for window in windows)


def test_a_damaged_index_is_refused_or_not_used():
    entries = [Entry(bytes([number] * 8), b"h" * number, b"p" * number) for number in range(PAGE_SAMPLES)]
    page = pack_page(entries)
    import zlib

    data = page + finish([(0, len(page), zlib.crc32(page))], PAGE_SAMPLES)

    def opened(data):
        return Pages(lambda offset, size: data[offset : offset + size], len(data), "x")

    assert opened(data).entry(5) == entries[5]
    rng = np.random.default_rng(0)
    for at in rng.integers(0, len(data), 300):
        broken = bytearray(data)
        broken[at] ^= 0x41
        with pytest.raises(ArtifactError):
            opened(bytes(broken)).entry(5)
    for size in range(0, len(data), 97):
        with pytest.raises(ArtifactError):
            opened(data[:size]).entry(5)


def test_bands_give_the_same_bits_for_fewer_bytes(tmp_path, seaweedfs, use):
    use(seaweedfs)
    root = portraits(tmp_path / "data")
    address = upload(seaweedfs, root, tmp_path.name)
    expected = epochs(root, "none", 0)
    start = ACCOUNT.get_bytes
    assert epochs(address, "none", 0) == expected
    whole_bytes = ACCOUNT.get_bytes - start
    with open_store(address) as store:
        assert whole_bytes == 2 * store.manifest.sizes.sum()
        written = write_index(store)
    assert written.place == f"{address}.sophon-index"
    start = ACCOUNT.get_bytes
    assert epochs(address, None, 0) == expected
    assert ACCOUNT.get_bytes - start < 0.95 * whole_bytes
    assert ACCOUNT.index_bytes > 0


@pytest.mark.parametrize("is_named", [False, True])
@pytest.mark.matrix(every=2)
def test_a_spawned_process_reads_bands_too(tmp_path, seaweedfs, use, is_named):
    use(seaweedfs)
    root = portraits(tmp_path / "data", 7)
    address = upload(seaweedfs, root, tmp_path.name)
    write_index(open_store(address), out=tmp_path / "index" if is_named else None)
    transport = open_path(f"{address}?index={tmp_path / 'index'}" if is_named else address)
    packed = pickle.dumps((transport, RECIPE))
    code = """if True:
        import hashlib, pickle, sys
        from sophon.codec.window.bands import bands_of
        from sophon.pipeline import Key
        transport, recipe = pickle.load(sys.stdin.buffer)
        for sample in range(7):
            window = bands_of(transport.store).window(sample, recipe, Key(1, 0, sample))
            print(None if window is None else hashlib.sha256(window).hexdigest(), flush=True)
    """
    done = subprocess.run([sys.executable, "-c", code], input=packed, capture_output=True, check=True)
    windows = [bands_of(transport.store).window(sample, RECIPE, Key(1, 0, sample)) for sample in range(7)]
    assert any(window is not None for window in windows)
    expected = [None if window is None else hashlib.sha256(window).hexdigest() for window in windows]
    assert done.stdout.decode().split() == list(map(str, expected))


def test_indexing_goes_on_where_it_was_interrupted(tmp_path, seaweedfs, use, monkeypatch):
    use(seaweedfs)
    root = portraits(tmp_path / "data", 3 * PAGE_SAMPLES, smaller=4)
    address = upload(seaweedfs, root, tmp_path.name)
    store = open_store(address, cache_dir=tmp_path)

    def stop(done, _):
        if done >= 2 * PAGE_SAMPLES:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_index(store, cache_dir=tmp_path, on_progress=stop)
    read, count = store.read, []
    monkeypatch.setattr(store, "read", lambda sample: count.append(sample) or read(sample))
    written = write_index(store, out=tmp_path / "index", cache_dir=tmp_path)
    assert written.kept == 2 * PAGE_SAMPLES
    assert sorted(count) == list(range(2 * PAGE_SAMPLES, 3 * PAGE_SAMPLES))
    whole = write_index(store, out=tmp_path / "again", cache_dir=tmp_path)
    assert (tmp_path / "index").read_bytes() == (tmp_path / "again").read_bytes()
    assert whole.kept == 0
    loader = sophon.DataLoader(f"{address}?index={tmp_path / 'index'}", RECIPE, batch_size=5, seed=3, shuffle=True)
    with loader:
        assert loader.dataset.opened.has_bands
        assert digest(loader) == epochs(root, "none", 0)[0]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["folder", "listing", "tar"])
@pytest.mark.parametrize("name", ["seaweedfs", "rclone"])
def test_bands_of_all_kinds_give_the_same_bits(request, use, tmp_path, name, kind):
    server = use(request.getfixturevalue(name))
    root = photos(tmp_path / "data", 40)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        data = as_kind(kind, root, tmp_path / kind)
        address = upload(server, data, f"{tmp_path.name}/{kind}")
        expected = epochs(root, "none", 0)
        write_index(open_store(address))
        for workers in (0, 2):
            assert epochs(address, "band", workers) == expected
        with serve(address, options=("--cache-dir", str(tmp_path / "cache"))) as node:
            for policy in ("0:window", "1:raw", "2:webp", "all", "optimal"):
                assert epochs(node.url, policy, 0) == expected, policy


def test_a_node_makes_cuts_before_the_crop_of_whole_objects(tmp_path, seaweedfs, use):
    use(seaweedfs)
    root = tmp_path / "data" / "class_0"
    root.mkdir(parents=True)
    for number in range(4):
        (root / f"{number}.jpg").write_bytes(encode(scene(300, 420, seed=number), "jpeg 4:2:0"))
    address = upload(seaweedfs, root.parent, tmp_path.name)
    write_index(open_store(address))
    expected = digest(sophon.DataLoader(root.parent, RECIPE, batch_size=2, seed=1))
    with serve(address) as server:
        for asked in ("0:zstd", "1:raw", "1:zstd", "1:webp", "2:webp"):
            loader = sophon.DataLoader(server.url, RECIPE, batch_size=2, seed=1, policy=asked)
            assert digest(loader) == expected
            assert dict(loader.stats.to_dict()["cuts"]) == {asked: 4}, "not the file instead"
