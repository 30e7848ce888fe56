"""Memory of server and trainer stays flat over many epochs."""

import platform
import subprocess
import sys
from pathlib import Path

import pytest

import sophon
from tests.support.servers import RECIPE, make_images, serve

MB = 1e6


def _rss_bytes(pid="self"):
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no VmRSS")


@pytest.mark.parametrize(("policy", "workers"), [("none", 2), ("2:webp", 2), ("all", 0)])
def test_memory_of_server_and_trainer_stays_flat_over_twenty_epochs(tmp_path, policy, workers):
    with serve(make_images(tmp_path / "train", 120), cores=1) as server:
        loader = sophon.DataLoader(server.url, RECIPE, batch_size=16, shuffle=True, policy=policy, num_workers=workers)
        sizes = []
        for _ in range(20):
            for _ in loader:
                pass
            sizes.append((_rss_bytes(), _rss_bytes(server.pid)))
    for here in (0, 1):
        settled, last = (max(row[here] for row in part) for part in (sizes[3:8], sizes[15:]))
        # 2,400 samples went by, 66 MB of tensors and 15 MB of files: a leak of one in twenty would show.
        assert last < settled + max(0.02 * settled, 4 * MB), [row[here] / MB for row in sizes]


BLOATED = """
import ctypes
from pathlib import Path
from sophon.loader import memory

libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
libc.free.argtypes = [ctypes.c_void_p]

def rss_bytes():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

def bloat():
    blocks = []
    for _ in range(2000):
        blocks.append(libc.malloc(100_000))
        ctypes.memset(blocks[-1], 1, 100_000)
        libc.malloc(1000)  # in between, and kept: the holes that stay are not at the end of anything
    for block in blocks:
        libc.free(block)

bloat()
before = rss_bytes()
memory.give_back()
after = rss_bytes()
assert after < before - 150e6, (before, after)
bloat()
memory.give_back()
assert rss_bytes() > after + 150e6, "not again so soon: it takes time, which grows with the heap"
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="asks glibc")
def test_what_threads_have_freed_is_given_back_now_and_then():
    subprocess.run([sys.executable, "-c", BLOATED], check=True)
