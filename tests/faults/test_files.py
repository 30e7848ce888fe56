"""Files: a sample that is lost, a disk without room, a node that may open no more of them."""

import os
import re
import resource
import subprocess

import pytest

import sophon
from sophon.errors import ConfigError, StoreError
from tests.faults.struck import COUNT, POLICIES, SLOWLY, Struck
from tests.support.marks import slow
from tests.support.servers import RECIPE, make_images, serve
from tests.support.waiting import wait_until


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
@pytest.mark.parametrize("damage", [_remove, *slow(_cut_short, _folder, _dangle)])
def test_a_file_is_lost_in_the_middle_of_an_epoch(tmp_path, damage, policy):
    images = make_images(tmp_path / "train", 20)
    with serve(images) as server:
        loader = sophon.DataLoader(
            server.url, RECIPE, batch_size=2, num_workers=sophon.Workers(1, buffer_bytes=1), policy=policy
        )
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


@pytest.mark.parametrize("policy", ["2:webp", *slow("none")])
def test_a_node_may_open_no_file_for_a_while(images, expected, policy):
    with serve(images, options=SLOWLY) as server:
        limit = resource.prlimit(server.pid, resource.RLIMIT_NOFILE)
        assert limit[0] == limit[1], "it has taken all that it may have"

        def fault():
            resource.prlimit(server.pid, resource.RLIMIT_NOFILE, (3, limit[1]))
            wait_until(lambda: struck.loader.stats.retries)
            resource.prlimit(server.pid, resource.RLIMIT_NOFILE, limit)

        struck = Struck(server.url, fault, "mid-stream", policy=policy)
        assert struck.digest() == expected
        assert struck.loader.stats.retries > 0
        assert not struck.loader.bad_samples


@pytest.fixture
def full_disk(tmp_path):
    """A file system without room for anything."""
    place = tmp_path / "full"
    place.mkdir()
    made = os.geteuid() == 0 and (
        subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=4k,mode=0700", "tmpfs", str(place)], check=False, capture_output=True
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


def test_no_room_for_a_profile(images, full_disk, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(full_disk))
    with serve(images) as server:
        loader = sophon.DataLoader(server.url, RECIPE, batch_size=COUNT, num_workers=1)
        for _ in range(2):
            assert len(list(loader)) == 1
        assert loader.profile is not None
        with pytest.raises(ConfigError, match=r"the profile cannot be saved to .*No space left"):
            list(
                sophon.DataLoader(
                    server.url,
                    RECIPE,
                    batch_size=COUNT,
                    num_workers=1,
                    policy=sophon.Planning(profile=full_disk / "mine"),
                )
            )
    assert [path.name for path in full_disk.rglob("*") if path.is_file()] == ["ballast"], "nothing is left half written"
