"""gRPC gets no more threads than it was allowed, tells the others to come again, and goes on as before."""

import subprocess
import sys

import pytest

from sophon.server.call_threads import kernel

# A process of its own: the bound holds for a whole process, and for good.
SCRIPT = """
import threading, time
from collections import Counter
from pyarrow import flight
from sophon.errors import RetryableError
from sophon.link.flight import typed_errors
from sophon.server.call_threads import _SPARE, bound_call_threads, kernel

assert bound_call_threads(0)
go_on = threading.Event()

class Server(flight.FlightServerBase):
    def do_action(self, context, action):
        go_on.wait(60)
        yield b"done"

server, results = Server("grpc://127.0.0.1:0"), Counter()
clients = [flight.connect(f"grpc://127.0.0.1:{server.port}") for _ in range(4)]

def call(client):
    try:
        with typed_errors("a node"):
            results[list(client.do_action("wait"))[0].body.to_pybytes()] += 1
    except RetryableError:
        results["again"] += 1

callers = [threading.Thread(target=call, args=(clients[number % 4],)) for number in range(3 * _SPARE)]
for caller in callers:
    caller.start()
end_s = time.monotonic() + 60
while results["again"] < 2 * _SPARE and time.monotonic() < end_s:
    time.sleep(0.01)
most = kernel.running()
go_on.set()
for caller in callers:
    caller.join()
assert most <= _SPARE, most
assert 2 * _SPARE <= results["again"] <= 3 * _SPARE - 8, results
assert kernel.refused() == results["again"], (kernel.refused(), results)
assert sum(results.values()) == 3 * _SPARE, results
others = threading.Thread(target=lambda: results.clear())  # Python's own threads are not bounded
others.start()
others.join()
call(clients[0])
assert results == {b"done": 1}, results
while kernel.running() > 4 and time.monotonic() < end_s:
    time.sleep(0.01)
assert kernel.running() <= 4, "threads that have ended do not count"
server.shutdown()
"""


@pytest.mark.skipif(kernel is None, reason="the extension was not built")
def test_calls_beyond_the_bound_are_told_to_try_again():
    ran = subprocess.run([sys.executable, "-c", SCRIPT], check=False, capture_output=True, text=True, timeout=120)
    assert (ran.returncode, ran.stderr) == (0, "")
