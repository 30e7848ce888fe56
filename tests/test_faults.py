"""What is promised under which fault: real processes, real sockets, real files.

Each row of the table is a fault, the moment it strikes, and what must come of it: the same batches as without it
(nothing lost, repeated or reordered, equal bits), or a clear error within the deadline.
"""

import contextlib
import os
import re
import shutil
import signal
import subprocess
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import torch

import sophon
from sophon.bench.children import children_of
from sophon.bench.proxy import Proxy
from sophon.errors import ConfigError, ProtocolError, RetryableError, StoreError
from sophon.loader.cuts import OffloadWarning
from sophon.loader.order import epoch_order
from sophon.pipeline import Key
from tests.support.network import can_make_links, far_server
from tests.support.other_release import WHAT
from tests.support.servers import RECIPE, digest, make_images, serve

REPOSITORY = str(Path(__file__).parents[1])
COUNT, BATCH, SEED = 60, 5, 5
SLOWLY = ("--limit", "5mbit")  # so that an epoch lasts about a second and a fault can strike in the middle of it
POLICIES = (pytest.param("none", marks=pytest.mark.slow), "2:webp")


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    return make_images(tmp_path_factory.mktemp("faults") / "train", COUNT)


@pytest.fixture(scope="module")
def expected(images):
    """Two epochs, computed the plain way: no loader, no server, one sample after the other."""
    store = sophon.open_store(images)
    batches = []
    for epoch in range(2):
        samples = epoch_order(COUNT, SEED, epoch, shuffle=True)
        for start in range(0, COUNT, BATCH):
            part = samples[start : start + BATCH].tolist()
            tensors = [RECIPE.run(store.read(i), Key(SEED, epoch, i)) for i in part]
            labels = torch.tensor([int(store.manifest.labels[i]) for i in part])
            batches.append((torch.from_numpy(np.stack(tensors)), labels))
    return digest(batches)


class Struck:
    """Two epochs of a loader during which something happens.

    Args:
        url: Of the data set.
        fault: What happens; called in a thread of its own, while the loader goes on.
        moment: "opening", "first batch", "mid-stream" or "between epochs".
        settings: Of the loader.
    """

    def __init__(self, url, fault, moment, **settings):
        self._fault, self._moment = fault, moment
        self._striker = threading.Thread(target=fault)
        if moment == "opening":
            self._striker.start()
        arguments = {"batch_size": BATCH, "shuffle": True, "seed": SEED, "num_workers": 2, "buffer_bytes": 1 << 18}
        self.loader = sophon.DataLoader(url, RECIPE, **(arguments | settings))

    def batches(self):
        for epoch in range(2):
            for number, batch in enumerate(self.loader):
                if (self._moment, epoch, number) in (("first batch", 0, 0), ("mid-stream", 0, 4)):
                    self._striker.start()
                yield batch
            if (self._moment, epoch) == ("between epochs", 0):
                self._striker.start()
        self._striker.join()

    def digest(self):
        return digest(self.batches())


MOMENTS = ("opening", "first batch", "mid-stream", "between epochs")


# --- the node ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("moment", MOMENTS)
def test_killed_and_started_again(images, expected, moment, policy):
    with serve(images, options=SLOWLY) as server:

        def fault():
            server.kill()
            server.start()

        assert Struck(server.url, fault, moment, policy=policy).digest() == expected


@pytest.mark.parametrize("policy", POLICIES)
def test_stopped_for_five_seconds(images, expected, policy):
    with serve(images, options=SLOWLY) as server:

        def fault():
            os.kill(server.pid, signal.SIGSTOP)
            time.sleep(5)
            os.kill(server.pid, signal.SIGCONT)

        assert Struck(server.url, fault, "mid-stream", policy=policy).digest() == expected


@pytest.mark.parametrize("moment", ["first batch", "mid-stream"])
def test_drained_and_started_again(images, expected, moment):
    codes = []
    with serve(images, options=SLOWLY) as server:

        def fault():
            codes.append(server.stop())
            server.start()

        struck = Struck(server.url, fault, moment, policy="2:webp")
        assert struck.digest() == expected
    assert codes == [0], "what was under way was ended, and no more taken"


def test_a_worker_process_killed_time_and_again(images, expected):
    with serve(images, cores=2, options=SLOWLY) as server:
        kills = []

        def fault():
            for _ in range(5):
                for child in children_of(server.pid):
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(child, signal.SIGKILL)
                        kills.append(child)
                time.sleep(0.3)

        struck = Struck(server.url, fault, "first batch", policy="2:webp")
        with warnings_allowed():
            assert struck.digest() == expected
        assert len(kills) >= 2
        os.kill(server.pid, 0)


@contextlib.contextmanager
def warnings_allowed():
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", OffloadWarning)  # many smaller cuts are worth a warning, and expected here
        yield


def test_gone_for_good(images):
    with serve(images, options=SLOWLY) as server:
        struck = Struck(server.url, server.kill, "mid-stream", deadline_s=3)
        start_s = time.monotonic()
        with pytest.raises(
            RetryableError, match=r"no answer for 3 s, after \d+ tries.*Is `sophon serve` running there"
        ):
            struck.digest()
        assert time.monotonic() - start_s < 20


# --- the way there ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("moment", MOMENTS)
def test_connections_reset(images, expected, moment, policy):
    with serve(images, options=SLOWLY) as server, Proxy(server.port) as proxy:
        url = server.url.replace(str(server.port), str(proxy.port))
        struck = Struck(url, proxy.reset, moment, policy=policy)
        assert struck.digest() == expected


@pytest.mark.parametrize("after_bytes", [1, 100, 1_000, 20_000, 100_000])
def test_reset_in_the_middle_of_a_frame_time_and_again(images, expected, after_bytes):
    with serve(images) as server, Proxy(server.port) as proxy:
        url = server.url.replace(str(server.port), str(proxy.port))

        def fault():
            for _ in range(4):
                proxy.reset_after(after_bytes)
                time.sleep(0.2)

        assert Struck(url, fault, "first batch").digest() == expected
        assert proxy.resets >= 1


@pytest.mark.parametrize("policy", POLICIES)
def test_nothing_passes_for_three_seconds(images, expected, policy):
    with serve(images, options=SLOWLY) as server, Proxy(server.port) as proxy:
        url = server.url.replace(str(server.port), str(proxy.port))

        def fault():
            proxy.pause()
            time.sleep(3)
            proxy.resume()

        assert Struck(url, fault, "mid-stream", policy=policy).digest() == expected


def test_nothing_passes_any_more(images):
    with serve(images, options=SLOWLY) as server, Proxy(server.port) as proxy:
        url = server.url.replace(str(server.port), str(proxy.port))
        struck = Struck(url, proxy.pause, "mid-stream", deadline_s=3)
        start_s = time.monotonic()
        with pytest.raises(RetryableError, match="no answer for 3 s"):
            struck.digest()
        assert time.monotonic() - start_s < 20


@pytest.fixture
def linked(images, tmp_path):
    """A server at the other end of a link of its own."""
    if not can_make_links():
        pytest.skip("needs root, and ip")
    with far_server(images, tmp_path, SLOWLY) as (link, url):
        yield link, url


@pytest.mark.parametrize("seconds", [1, 4])
def test_the_link_is_cut_and_restored(linked, expected, seconds):
    link, url = linked

    def fault():
        link.cut()
        time.sleep(seconds)
        link.restore()

    assert Struck(url, fault, "mid-stream", policy="2:webp").digest() == expected


def test_the_link_is_cut_for_good(linked):
    link, url = linked
    struck = Struck(url, link.cut, "mid-stream", deadline_s=3)
    start_s = time.monotonic()
    with pytest.raises(RetryableError, match="no answer for 3 s"):
        struck.digest()
    assert time.monotonic() - start_s < 20


# --- files ------------------------------------------------------------------------------------------------------------


def _remove(path):
    path.unlink()


def _cut_short(path):
    path.write_bytes(path.read_bytes()[:-10])


def _folder(path):
    path.unlink()
    path.mkdir()


def _dangle(path):
    path.unlink()
    path.symlink_to("/nowhere/at/all")


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("damage", [_remove, _cut_short, _folder, _dangle])
def test_a_file_is_lost_in_the_middle_of_an_epoch(tmp_path, damage, policy):
    images = make_images(tmp_path / "train", 20)
    with serve(images) as server:
        loader = sophon.DataLoader(server.url, RECIPE, batch_size=2, num_workers=1, policy=policy, buffer_bytes=1)
        store = sophon.open_store(images)
        victim = images / store.manifest.ids[15].as_py()
        good = victim.read_bytes()
        batches = iter(loader)
        next(batches)
        damage(victim)
        with pytest.raises(StoreError, match=re.escape(victim.name)):
            list(batches)
        if victim.is_dir() and not victim.is_symlink():
            victim.rmdir()
        victim.unlink(missing_ok=True)
        victim.write_bytes(good)
        assert len(list(loader)) == 10, "the server lives on, and so does the sample when its file is back"


@pytest.fixture
def full_disk(tmp_path):
    """A file system without room for anything."""
    place = tmp_path / "full"
    place.mkdir()
    made = os.geteuid() == 0 and (
        subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=4k", "tmpfs", str(place)], check=False, capture_output=True
        ).returncode
        == 0
    )
    if not made:
        pytest.skip("needs root, and tmpfs")
    (place / "ballast").write_bytes(b"x" * 4096)
    yield place
    subprocess.run(["umount", str(place)], check=True)


def test_no_room_for_caches(images, expected, full_disk, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(full_disk))
    server = sophon.LocalServer(images, options=("--cache-dir", str(full_disk / "manifests")))
    with server:
        loader = Struck(server.url, lambda: None, "first batch", policy="2:webp")
        assert loader.digest() == expected
    with sophon.LocalServer(images, options=("--cache-dir", str(full_disk))) as server:
        assert len(sophon.RemoteDataset(server.url, RECIPE)) == COUNT
    assert [path.name for path in full_disk.rglob("*") if path.is_file()] == ["ballast"], "nothing is left half written"


# --- another node under the same address ------------------------------------------------------------------------------


def test_started_again_with_other_files(tmp_path):
    images = make_images(tmp_path / "train", 20)
    with serve(images) as server:

        def fault():
            server.kill()
            for path in sorted(images.rglob("*.*"))[:3]:
                shutil.copy(path, path.with_name(f"new-{path.name}"))
            server.start()

        struck = Struck(server.url, fault, "first batch", buffer_bytes=1, deadline_s=30)
        with pytest.raises(ConfigError, match="the files have changed: start the run anew"):
            struck.digest()
        struck._striker.join()


def test_started_again_with_another_name(tmp_path):
    images = make_images(tmp_path / "train", 20)
    with serve(images) as server:

        def fault():
            server.kill()
            server._command[server._command.index("--name") + 1] = "another"
            server.start()

        struck = Struck(server.url, fault, "first batch", buffer_bytes=1, deadline_s=30)
        with pytest.raises(ConfigError, match="no data set 'data' here; there is another"):
            struck.digest()
        struck._striker.join()


def _started_again_as_another_release(server, what):
    server.kill()
    server._command += ["--import", "tests.support.other_release"]
    os.environ[WHAT] = what
    try:
        server.start()
    finally:
        del os.environ[WHAT]


def test_started_again_with_a_release_that_speaks_otherwise(images, monkeypatch):
    monkeypatch.chdir(REPOSITORY)
    with serve(images, options=SLOWLY) as server:
        struck = Struck(
            server.url, lambda: _started_again_as_another_release(server, "protocol"), "first batch", deadline_s=30
        )
        with pytest.raises(ProtocolError, match="install the same sophon release on trainer and storage node"):
            struck.digest()
        struck._striker.join()


def test_started_again_with_a_release_that_has_another_version_of_an_op(images, expected, monkeypatch):
    monkeypatch.chdir(REPOSITORY)
    with serve(images, options=SLOWLY) as server:
        struck = Struck(
            server.url, lambda: _started_again_as_another_release(server, "op"), "first batch", policy="2:webp"
        )
        with warnings_allowed():
            assert struck.digest() == expected
        assert struck.loader.stats.cuts["0:raw"] > COUNT / 2


def test_nothing_that_waits_looks_at_the_clock_on_the_wall():
    """A clock that jumps moves no deadline: the loader, the server and its workers count monotonic seconds."""
    source = Path(sophon.__file__).parent
    for room in ("loader", "server", "codec", "pipeline"):
        for path in (source / room).rglob("*.py"):
            assert not re.search(r"\btime\.time(_ns)?\(|datetime\.(now|utcnow)\(", path.read_text()), path
