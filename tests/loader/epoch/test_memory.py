"""Memory of server and trainer stays flat over many epochs."""

import os
import platform
import subprocess
import sys
import traceback
import weakref
from pathlib import Path

import pytest

import sophon
from sophon import ops
from tests.support.marks import slow
from tests.support.servers import RECIPE, make_images, serve

MB = 1e6


def _rss_bytes(pid="self"):
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) * 1024
    raise AssertionError("no VmRSS")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("policy", "workers"),
    [("2:webp", 2), *slow(("none", 2), ("all", 0))],
)
def test_memory_of_server_and_trainer_stays_flat_over_twenty_epochs(tmp_path, policy, workers):
    with serve(make_images(tmp_path / "train", 120), cores=1) as server:
        loader = sophon.DataLoader(server.url, RECIPE, batch_size=16, shuffle=True, policy=policy, num_workers=workers)
        # The C library may take another few megabytes once, in any epoch; a leak goes on, and grows in every round.
        rounds = [_twenty_epochs(loader, server)]
        while len(rounds) < 3 and not _is_flat(rounds[-1]):
            rounds.append(_twenty_epochs(loader, server))
    assert _is_flat(rounds[-1]), rounds


def _twenty_epochs(loader, server):
    """Return the megabytes of trainer and server after each of twenty epochs."""
    sizes = []
    for _ in range(20):
        for _ in loader:
            pass
        sizes.append((_rss_bytes() / MB, _rss_bytes(server.pid) / MB))
    return sizes


def _is_flat(sizes):
    """Return whether neither has grown: 2,400 samples went by, 66 MB of tensors, and one in twenty would show."""
    for here in (0, 1):
        settled, last = (max(row[here] for row in part) for part in (sizes[3:8], sizes[15:]))
        if last >= settled + max(0.02 * settled, 4):
            return False
    return True


ARENAS = """
import ctypes, sys, threading
from sophon.process.arenas import bound_arenas

if sys.argv[1] == "bounded":
    bound_arenas()
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
everybody = threading.Barrier(12)

def work():
    libc.malloc(1000)
    everybody.wait()

threads = [threading.Thread(target=work) for _ in range(12)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
libc.malloc_stats()
"""


def _arenas(how, **environment):
    run = subprocess.run(
        [sys.executable, "-c", ARENAS, how], check=True, stderr=subprocess.PIPE, text=True, env=os.environ | environment
    )
    return run.stderr.count("Arena ")


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="asks glibc")
def test_threads_share_as_many_arenas_as_there_are_cores(monkeypatch):
    monkeypatch.delenv("MALLOC_ARENA_MAX", raising=False)
    cores = len(os.sched_getaffinity(0))
    assert _arenas("bounded") <= cores
    assert _arenas("as it is") > min(cores, 8)
    assert _arenas("bounded", MALLOC_ARENA_MAX="1") == 1, "who sets it has decided otherwise"


class _Large:
    """What an op works on."""


def test_a_bad_sample_that_waits_for_its_turn_does_not_keep_what_was_worked_on(images, monkeypatch):
    kept = []

    def crop(self, value, params):
        large = _Large()
        kept.append(weakref.ref(large))
        raise ValueError("no good")

    monkeypatch.setattr(ops.CenterCrop, "apply", crop)
    pipeline = sophon.Pipeline([ops.Decode(), ops.CenterCrop(16), ops.ToTensor()])
    with pytest.raises(sophon.OpError, match="no good") as caught:
        next(iter(sophon.DataLoader(images, pipeline, batch_size=4, num_workers=1)))
    assert "in crop" in "".join(traceback.format_exception(caught.value))
    assert len(kept) > 1
    assert not any(ref() for ref in kept)
