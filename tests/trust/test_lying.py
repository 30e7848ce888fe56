"""A trainer trusts a node with nothing but time: what it says or sends ends soon, in few bytes, in a typed error."""

import json
import subprocess
import sys

import pytest

from tests.support.liar import (
    Liar,
    compressed_columns,
    compressed_envelopes,
    many_scans,
    of_claimed_size,
    payloads,
    png_of_chunks,
)
from tests.support.waiting import HANG_S

DEADLINE_S = 5
BUFFER_MB = 64
TRAINER = """
import json, sys, time
import sophon
from sophon import ops
recipe = sophon.Pipeline([ops.Decode(), ops.RandomResizedCrop(32), ops.ToTensor()])
begin_s, cpu_s, batches = time.monotonic(), time.process_time(), 0
try:
    faults = sophon.Faults(deadline_s=float(sys.argv[2]))
    workers = sophon.Workers(1, buffer_bytes=int(sys.argv[3]) << 20)
    for _ in sophon.DataLoader(sys.argv[1], recipe, batch_size=4, num_workers=workers, faults=faults, output="numpy"):
        batches += 1
except sophon.Error as error:
    problem = type(error).__name__ + ": " + str(error)
else:
    problem = ""
peak = next(line.split() for line in open("/proc/self/status") if line.startswith("VmHWM"))
took = time.monotonic() - begin_s, time.process_time() - cpu_s
print(json.dumps([problem, took, int(peak[1]) >> 10, batches]), flush=True)
"""


def train(liar):
    """Return what became of a trainer: its error, the seconds that it took, its memory at most in MB, and its batches.

    Seconds are wall and CPU seconds: in the default suite the machine may be busy with something else.
    """
    command = [sys.executable, "-c", TRAINER, liar.url, str(DEADLINE_S), str(BUFFER_MB)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=HANG_S, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


SAID = {
    "two thousand million samples": lambda: {"samples": 2 * 10**9},
    "ten thousand million": lambda: {"samples": 10**10},
    "fewer than none": lambda: {"samples": -5},
    "more cores than there are": lambda: {"cores": 1e300},
    "a million columns": lambda: {"columns": ["c"] * 1_000_000},
    "an earlier release": lambda: {"protocols": [1]},
    "an answer of 300 MB": lambda: {"more": "x" * (300 << 20)},
}
SENT = {
    "compressed columns": lambda: compressed_columns,
    "compressed envelopes": lambda: compressed_envelopes,
    "zeros": lambda: payloads(b"\xff\xd8\xff" + bytes(2 << 20)),
    "scans": lambda: payloads(many_scans(6000, 6000, 2000)),
    "pixels": lambda: payloads(of_claimed_size(13300, 13400)),
    "nothing": lambda: payloads(b""),
    "chunks": lambda: payloads(png_of_chunks(3_000_000), b""),
}


def _slow_but(names):
    return [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in names]


QUICK = ("two thousand million samples", "an answer of 300 MB", "compressed envelopes", "scans")


@pytest.mark.parametrize("name", _slow_but(SAID))
@pytest.mark.matrix(every=99)
def test_a_lie_at_opening(name):
    with Liar(SAID[name]()) as liar:
        problem, seconds, megabytes, batches = train(liar)
    assert problem.startswith("ProtocolError: grpc://127.0.0.1")
    assert seconds[name in QUICK] < DEADLINE_S + 2
    assert megabytes < BUFFER_MB + 500
    assert batches == 0


@pytest.mark.parametrize("name", _slow_but(SENT))
@pytest.mark.matrix(every=2)
def test_a_lie_in_a_reply(name):
    with Liar(stream=SENT[name]()) as liar:
        problem, seconds, megabytes, batches = train(liar)
    assert problem.split(":")[0] in ("ProtocolError", "OpError", "PayloadError", "TransportError", "UnavailableError")
    assert seconds[name in QUICK] < DEADLINE_S + 2
    assert megabytes < BUFFER_MB + 500
    assert batches == 0
