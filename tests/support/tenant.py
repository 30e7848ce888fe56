"""A tenant of a node, as a process of its own: an honest one that counts its samples, or one that means ill.

``python -m tests.support.tenant HOW PORT TOKEN SECONDS`` prints "go" when it begins, and an honest one when each of its
batches came.
"""

from __future__ import annotations

import contextlib
import json
import secrets
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

from pyarrow import flight

import sophon
from sophon.codec.cut import Cut
from sophon.link.wire import Request
from sophon.pipeline import Pipeline, ops
from tests.support.no_torch import RECIPE

BATCH = 8
SLOW = [ops.Decode(), ops.Resize((1500, 1500)), *[ops.GaussianBlur(51, (20.0, 20.0))] * 10]  # takes seconds


def say(text: str) -> None:
    """Tell whoever started this process."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


class Tenant:
    """Talks to a node.

    Args:
        port: Of the node.
        token: What to show.
        seconds: How long to go on; an honest one from its first batch.
    """

    def __init__(self, port: int, token: str, seconds: float) -> None:
        self.port, self.token, self.seconds = port, token, seconds
        self.begin()
        self.call = flight.FlightCallOptions(headers=[(b"authorization", f"Bearer {token}".encode())])

    def begin(self) -> None:
        """Count the seconds from now on."""
        self.end_s = time.monotonic() + self.seconds

    @property
    def goes_on(self) -> bool:
        """Whether there is time left."""
        return time.monotonic() < self.end_s

    def client(self) -> Any:
        """Return a connection."""
        return flight.connect(f"grpc://127.0.0.1:{self.port}")

    def in_threads(self, number: int, work: Callable[[], None]) -> None:
        """Do something again and again in many threads at once, whatever comes of it."""

        def loop() -> None:
            while self.goes_on:
                with contextlib.suppress(Exception):
                    work()

        threads = [threading.Thread(target=loop, daemon=True) for _ in range(number)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(max(0.0, self.end_s - time.monotonic()) + 1)

    def ticket(self, recipe: Pipeline | dict[str, Any], cut: str, samples: range = range(16)) -> flight.Ticket:
        """Return a request."""
        spec = recipe if isinstance(recipe, dict) else recipe.to_spec()
        asked = Request("data", spec, 0, 0, tuple(samples), (Cut.parse(cut),) * len(samples), patience_s=60.0)
        return flight.Ticket(asked.to_bytes())


def honest(tenant: Tenant) -> None:
    """Get batches, and say when each came."""
    credentials = sophon.Credentials(token=tenant.token)
    loader = sophon.DataLoader(
        f"grpc://127.0.0.1:{tenant.port}/data",
        RECIPE,
        batch_size=BATCH,
        policy="2:zstd",
        num_workers=1,
        output="numpy",
        credentials=credentials,
    )
    begun = False
    while tenant.goes_on:
        for _ in loader:
            if not begun:
                tenant.begin()
                say("go")
                begun = True
            say(f"{time.monotonic():.4f}")
            if not tenant.goes_on:
                break
    cuts = {str(cut): count for cut, count in loader.stats.cuts.items()}
    say(json.dumps(cuts))


def specs(tenant: Tenant) -> None:
    """Open, and ask, with specs of a megabyte."""
    nested: dict[str, Any] = {"op": "RandomHorizontalFlip", "version": 1, "p": 0.5}
    nested = {"op": "RandomApply", "version": 1, "ops": [nested] * 60, "p": 0.5}
    many = {"format": 1, "ops": [{"op": "No"}, *[nested] * 60]}
    name = {"format": 1, "ops": [{"op": "Resiz" * 200_000, "version": 1}]}
    client = tenant.client()
    bodies = [json.dumps({"dataset": "data", "pipeline": spec}).encode()[: 1 << 20] for spec in (many, name)]

    def attack() -> None:
        for body, spec in zip(bodies, (many, name), strict=True):
            with contextlib.suppress(flight.FlightError):
                list(client.do_action(flight.Action("open", body), tenant.call))
            with contextlib.suppress(flight.FlightError):
                client.do_get(tenant.ticket(spec, "1:raw", range(1)), tenant.call).read_all()

    tenant.in_threads(8, attack)


def slow(tenant: Tenant) -> None:
    """Ask for what takes seconds, in thirty requests at once."""
    client = tenant.client()
    ticket = tenant.ticket(Pipeline(SLOW), f"{len(SLOW)}:raw")
    tenant.in_threads(30, lambda: client.do_get(ticket, tenant.call).read_all())


def unread(tenant: Tenant) -> None:
    """Leave sixty streams with large results unread."""
    client = tenant.client()
    ticket = tenant.ticket(Pipeline([ops.Decode(), ops.Pad(4500)]), "2:raw")
    readers = [client.do_get(ticket, tenant.call) for _ in range(60)]
    while tenant.goes_on:
        time.sleep(0.1)
    for reader in readers:
        reader.cancel()


def crash(tenant: Tenant) -> None:
    """Ask for what brings a child process down, each time with another pipeline."""
    from tests.support.misbehave import Misbehave

    client, numbers = tenant.client(), iter(range(10**9))

    def attack() -> None:
        recipe = {"format": 1, "ops": [ops.Decode().to_spec(), {**Misbehave("abort", 0).to_spec()}]}
        recipe["ops"].append(ops.Resize(16 + next(numbers) % 200).to_spec())
        client.do_get(tenant.ticket(recipe, "3:raw", range(4)), tenant.call).read_all()

    tenant.in_threads(4, attack)


def lists(tenant: Tenant) -> None:
    """Ask for lists, sizes and openings without end, in calls that cost next to nothing to send."""
    client = tenant.client()
    spec = RECIPE.prefix(2).to_spec()
    (opened,) = client.do_action(flight.Action("open", b'{"dataset": "data"}'), tenant.call)
    fingerprint = json.loads(opened.body.to_pybytes())["fingerprint"]
    asked = {
        "sizes": {"dataset": "data"},
        "listing": {"dataset": "data", "fingerprint": fingerprint, "start": 0},
        "open": {"dataset": "data", "pipeline": spec},
        "list": {},
    }
    actions = [flight.Action(name, json.dumps(message).encode()) for name, message in asked.items()]

    def attack() -> None:
        for action in actions:
            with contextlib.suppress(flight.FlightError):
                list(client.do_action(action, tenant.call))

    tenant.in_threads(16, attack)


def long(tenant: Tenant) -> None:
    """Send messages of half a gigabyte, on connections on which calls were let in, and small calls beside them."""
    small, large = (flight.Action("open", body) for body in (b'{"dataset": "data"}', bytes(1 << 29)))

    def send(client: Any) -> None:
        with contextlib.suppress(flight.FlightError):
            list(client.do_action(large, tenant.call))

    def attack() -> None:
        own = [("grpc.use_local_subchannel_pool", 1)]  # a connection for each thread
        with flight.connect(f"grpc://127.0.0.1:{tenant.port}", generic_options=own) as client:
            list(client.do_action(small, tenant.call))
            beside = threading.Thread(target=send, args=(client,))
            beside.start()
            for _ in range(100):
                list(client.do_action(small, tenant.call))
            beside.join()

    tenant.in_threads(4, attack)


_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes([0, 0, 0, 4, 0, 0, 0, 0, 0])


def _connected(tenant: Tenant) -> socket.socket:
    # From another address than the honest one, as whoever is outside has.
    line = socket.create_connection(("127.0.0.1", tenant.port), timeout=5, source_address=("127.0.0.2", 0))
    line.sendall(_PREFACE)
    return line


def _head(method: bytes) -> bytes:
    """Return the headers of a call."""
    path = b"/arrow.flight.protocol.FlightService/" + method
    head = b"\x83\x86" + b"\x04" + bytes([len(path)]) + path + b"\x01\x09localhost"
    return head + b"\x0f\x10\x10application/grpc" + b"\x00\x02te\x08trailers"


def pings(tenant: Tenant) -> None:
    """Send HTTP/2 pings without end, on some connections at once."""
    ping = bytes([0, 0, 8, 6, 0, 0, 0, 0, 0]) + bytes(8)

    def attack() -> None:
        with _connected(tenant) as line:
            line.setblocking(True)
            while tenant.goes_on:
                line.sendall(ping * 1000)

    tenant.in_threads(8, attack)


def resets(tenant: Tenant) -> None:
    """Begin calls and reset them at once, without end, on some connections at once."""
    head = _head(b"DoGet")

    def attack() -> None:
        with _connected(tenant) as line:
            stream = 1
            while tenant.goes_on:
                parts = []
                for _ in range(100):
                    parts.append(struct.pack(">I", len(head))[1:] + bytes([1, 4]) + struct.pack(">I", stream) + head)
                    parts.append(bytes([0, 0, 4, 3, 0]) + struct.pack(">II", stream, 8))
                    stream += 2
                line.sendall(b"".join(parts))

    tenant.in_threads(8, attack)


def tokens(tenant: Tenant) -> None:
    """Call with one wrong token after the other, on new connections again and again."""
    body = b"\x0a\x04open\x12\x13" + b'{"dataset": "data"}'
    message = struct.pack(">BI", 0, len(body)) + body

    def call(stream: int) -> bytes:
        shown = b"Bearer " + secrets.token_hex(16).encode()
        head = _head(b"DoAction") + b"\x00\x0dauthorization" + bytes([len(shown)]) + shown
        start = struct.pack(">I", len(head))[1:] + bytes([1, 4]) + struct.pack(">I", stream) + head
        return start + struct.pack(">I", len(message))[1:] + bytes([0, 1]) + struct.pack(">I", stream) + message

    def attack() -> None:
        with contextlib.suppress(OSError), _connected(tenant) as line:
            for first in range(1, 2000, 20):
                line.sendall(b"".join(call(stream) for stream in range(first, first + 20, 2)))
                time.sleep(0.02)

    tenant.in_threads(8, attack)


def _let_in(tenant: Tenant) -> socket.socket:
    """Return a connection on which a call was admitted, at stream 1."""
    line = _connected(tenant)
    body = b"\x0a\x04open\x12\x13" + b'{"dataset": "data"}'
    message = struct.pack(">BI", 0, len(body)) + body
    head = _head(b"DoAction") + _token(tenant)
    line.sendall(_frame(1, 4, 1, head) + _frame(0, 1, 1, message))
    time.sleep(0.2)
    return line


def _token(tenant: Tenant) -> bytes:
    shown = b"Bearer " + tenant.token.encode()
    return b"\x00\x0dauthorization" + bytes([len(shown)]) + shown


def _frame(kind: int, flags: int, stream: int, data: bytes) -> bytes:
    return struct.pack(">I", len(data))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + data


def pings_let_in(tenant: Tenant) -> None:
    """Send pings without end on connections on which a call was admitted, with a few bytes of a call now and then."""
    ping, settings = _frame(6, 0, 0, bytes(8)), _frame(4, 0, 0, b"")

    def attack() -> None:
        with _let_in(tenant) as line:
            while tenant.goes_on:
                line.sendall((ping * 20 + settings) * 50)

    tenant.in_threads(8, attack)


def resets_let_in(tenant: Tenant) -> None:
    """Begin calls with a token and reset them at once, on connections on which a call was admitted."""
    head = _head(b"DoGet") + _token(tenant)

    def attack() -> None:
        with _let_in(tenant) as line:
            stream = 3
            while tenant.goes_on:
                parts = []
                for _ in range(100):
                    parts += [_frame(1, 4, stream, head), _frame(3, 0, stream, struct.pack(">I", 8))]
                    stream += 2
                line.sendall(b"".join(parts))

    tenant.in_threads(8, attack)


def streams(tenant: Tenant) -> None:
    """Begin calls with a token, and never say what is wanted."""
    head = _head(b"DoGet") + _token(tenant)

    def attack() -> None:
        with _let_in(tenant) as line:
            for first in range(3, 100_000, 200):
                line.sendall(b"".join(_frame(1, 4, stream, head) for stream in range(first, first + 200, 2)))
                time.sleep(0.01)
            while tenant.goes_on:
                time.sleep(0.1)

    tenant.in_threads(8, attack)


def unsaid(tenant: Tenant) -> None:
    """Begin as many calls as a node has threads for, on a few connections, and never say what is wanted."""
    head = _head(b"DoPut") + _token(tenant)

    def attack() -> None:
        with _let_in(tenant) as line:
            for stream in range(3, 203, 2):
                line.sendall(_frame(1, 4, stream, head))
            while tenant.goes_on:
                time.sleep(0.1)
                line.sendall(b"")

    tenant.in_threads(4, attack)


def short(tenant: Tenant) -> None:
    """Begin calls without end, each in a few bytes: headers that were said before are a number each."""
    said = b"\x40\x0dauthorization" + bytes([len(tenant.token) + 7]) + b"Bearer " + tenant.token.encode()
    path = b"/arrow.flight.protocol.FlightService/DoGet"
    said += b"\x44" + bytes([len(path)]) + path + b"\x41\x09localhost"
    said += b"\x40\x0ccontent-type\x10application/grpc" + b"\x40\x02te\x08trailers"
    first = b"\x83\x86" + said
    again = b"\x83\x86" + bytes(range(0xBE, 0xC3))  # the five latest, the last of them first

    def attack() -> None:
        with _let_in(tenant) as line:
            line.sendall(_frame(1, 4, 3, first))
            for start in range(5, 2_000_000, 2000):
                line.sendall(b"".join(_frame(1, 4, stream, again) for stream in range(start, start + 2000, 2)))
            while tenant.goes_on:
                time.sleep(0.1)

    tenant.in_threads(8, attack)


WAYS = {
    each.__name__: each
    for each in (
        honest,
        specs,
        slow,
        unread,
        crash,
        lists,
        long,
        pings,
        resets,
        tokens,
        pings_let_in,
        resets_let_in,
        streams,
        unsaid,
        short,
    )
}


def main() -> None:
    """Run as a process."""
    how, port, token, seconds = sys.argv[1:]
    tenant = Tenant(int(port), token, float(seconds))
    if how != "honest":
        say("go")
    WAYS[how](tenant)


if __name__ == "__main__":
    main()
