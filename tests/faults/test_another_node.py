"""Another node under the same address: other files, another name, another release."""

import os
import shutil
from pathlib import Path

import pytest

from sophon.errors import ConfigError, ProtocolError
from tests.faults.struck import COUNT, SLOWLY, Struck, warnings_allowed
from tests.support.other_release import WHAT
from tests.support.servers import make_images, serve

REPOSITORY = str(Path(__file__).parents[2])


def test_started_again_with_other_files(tmp_path):
    images = make_images(tmp_path / "train", 20)
    with serve(images) as server:

        def fault():
            server.kill()
            for path in sorted(images.rglob("*.*"))[:3]:
                shutil.copy(path, path.with_name(f"new-{path.name}"))
            server.start()

        struck = Struck(server.url, fault, "first batch", buffer_bytes=1)
        with pytest.raises(ConfigError, match="the files have changed: start the run again"):
            struck.digest()
        struck.join()


def test_started_again_with_another_name(tmp_path):
    images = make_images(tmp_path / "train", 20)
    with serve(images) as server:

        def fault():
            server.kill()
            server._command[server._command.index("--name") + 1] = "another"
            server.start()

        struck = Struck(server.url, fault, "first batch", buffer_bytes=1)
        with pytest.raises(ConfigError, match="no data set 'data' here; available: another"):
            struck.digest()
        struck.join()


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
        struck = Struck(server.url, lambda: _started_again_as_another_release(server, "protocol"), "first batch")
        with pytest.raises(ProtocolError, match="releases of the trainer and the storage node are too far apart"):
            struck.digest()
        struck.join()


def test_started_again_with_a_release_that_has_another_version_of_an_op(images, expected, monkeypatch):
    monkeypatch.chdir(REPOSITORY)
    with serve(images, options=SLOWLY) as server:
        struck = Struck(
            server.url, lambda: _started_again_as_another_release(server, "op"), "first batch", policy="2:webp"
        )
        with warnings_allowed():
            assert struck.digest() == expected
        assert struck.loader.stats.cuts["0:raw"] > COUNT / 2
