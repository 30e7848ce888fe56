"""Temporary folders, also those of killed processes."""

import signal
import subprocess
import sys
import tempfile

from sophon.process.scratch import remove_abandoned, scratch_folder
from tests.support.waiting import HANG_S

HOLDER = """
import time
from sophon.process.scratch import scratch_folder
with scratch_folder("demo") as folder:
    (folder / "photo").write_bytes(b"x")
    print(folder, flush=True)
    time.sleep(1000)
"""


def test_a_folder_is_gone_after_its_block(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with scratch_folder("bench") as folder:
        assert folder.name.startswith("sophon-bench-")
        (folder / "file").touch()
        assert remove_abandoned() == []
    assert not list(tmp_path.iterdir())


def test_that_of_a_killed_process_is_removed_by_the_next_one_and_others_are_not(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    (tmp_path / "sophon-foreign").mkdir()  # without a lock: not one of ours
    command = [sys.executable, "-c", HOLDER]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={"TMPDIR": str(tmp_path)}) as process:
        left = process.stdout.readline().strip()
        with scratch_folder() as folder:
            assert len(list(tmp_path.iterdir())) == 3  # it lives, and so does its folder
        process.send_signal(signal.SIGKILL)
        process.wait(HANG_S)
    with scratch_folder() as folder:
        assert sorted(path.name for path in tmp_path.iterdir()) == sorted(["sophon-foreign", folder.name]), left
