"""How much memory and time it takes to list many files, measured in a process of its own."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is measured on Linux")
MB = 1_000_000
# ru_maxrss of a child counts what its parent had before exec on Linux; the kernel's own high-water mark does not.
_CHILD = """
import json, re, sys, time
from sophon.store import open_store
def peak(): return int(re.search(r"VmHWM:\\s*(\\d+) kB", open("/proc/self/status").read())[1]) * 1024
before, start = peak(), time.perf_counter()
store = open_store(sys.argv[1], cache_dir=sys.argv[2])
first, middle = time.perf_counter() - start, time.perf_counter()
out = {"before_bytes": before, "peak_bytes": peak(), "first_s": first, "samples": len(store)}
fingerprint = store.manifest.fingerprint
del store
again = open_store(sys.argv[1], cache_dir=sys.argv[2])
assert again.manifest.fingerprint == fingerprint
print(json.dumps(out | {"again_s": time.perf_counter() - middle, "again_peak_bytes": peak()}))
"""


def _make_empty_files(root: Path, classes: int, count: int) -> None:
    """Make empty pictures named like ImageNet's, in class folders or, with no classes, in the root.

    Most are hard links: a name each, which is what listing deals with, without the minutes that a million inodes take.
    """
    for number in range(max(1, classes)):
        folder = root / f"n{number:08d}" if classes else root
        folder.mkdir(parents=True)
        handle = os.open(folder, os.O_RDONLY)
        for file in range(count):
            name = f"n{number:08d}_{file}.JPEG"
            if file % 10_000 == 0:  # ext4 allows 65,000 links to one file
                first = name
                os.close(os.open(first, os.O_CREAT | os.O_WRONLY, 0o600, dir_fd=handle))
            else:
                os.link(first, name, src_dir_fd=handle, dst_dir_fd=handle)
        os.close(handle)
    for folder in (root, *(path for path in root.iterdir() if path.is_dir())):
        os.utime(folder, (1e9, 1e9))


def _measure(folder: Path, classes: int, count: int) -> dict[str, float]:
    """List that many files in a child process; return its times and its peak of memory."""
    try:
        _make_empty_files(folder / "data", classes, count)
        run = [sys.executable, "-c", _CHILD, str(folder / "data"), str(folder / "cache")]
        return json.loads(subprocess.run(run, check=True, capture_output=True, text=True).stdout)
    finally:
        shutil.rmtree(folder / "data")  # pytest would keep it for three runs


@pytest.mark.parametrize(("classes", "count"), [(40, 500), (0, 20_000)])
def test_twenty_thousand_files_take_few_bytes_each(tmp_path, classes, count):
    found = _measure(tmp_path, classes, count)
    assert found["samples"] == 20_000
    # A million files may take 300 MB, some 75 MB of which are Python, NumPy and Arrow: 225 bytes for each file, and
    # 25 MB for what does not grow with their number (Arrow's functions, its allocator's first pages).
    assert found["peak_bytes"] - found["before_bytes"] < 20_000 * 225 + 25 * MB
    assert found["again_peak_bytes"] < found["peak_bytes"] + 20_000 * 225


@pytest.mark.slow
@pytest.mark.parametrize(("classes", "count"), [(1000, 1000), (0, 1_000_000)])
def test_a_million_files_are_listed_in_less_than_300_mb(tmp_path, classes, count):
    found = _measure(tmp_path, classes, count)
    assert found["samples"] == 1_000_000
    assert max(found["peak_bytes"], found["again_peak_bytes"]) < 300 * MB
    assert found["again_s"] < found["first_s"] / 2
