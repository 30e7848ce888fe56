"""The server's counters, and the HTTP port where they can be read.

`/metrics` is answered by Prometheus' own library, in the format and with the compression that the caller asks for.
`/health` answers 200 while requests are accepted and 503 while the server drains.

Concurrency: a thread for each connection, which ends when the other side has been silent for `_IDLE_S`.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable
from socketserver import ThreadingMixIn
from typing import TYPE_CHECKING, Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client import CollectorRegistry, Counter, Gauge, make_wsgi_app
from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector

from sophon.store.bucket.account import ACCOUNT, Prices

if TYPE_CHECKING:
    from wsgiref.types import StartResponse, WSGIEnvironment

_IDLE_S = 10.0  # how long a connection may be silent; each takes a thread and a descriptor, which requests need too


class Metrics:
    """The server's counters."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = self._counter("requests", "Requests accepted")
        self.samples = self._counter("samples", "Samples sent, by the cut actually made", ["dataset", "cut"])
        self.payload_bytes = self._counter("payload_bytes", "Bytes of payload sent", ["dataset"])
        self.op_cpu_s = self._counter("op_cpu_seconds", "CPU seconds spent on ops and codecs", ["dataset"])
        self.reads = self._counter("reads", "Samples read from the store", ["dataset"])
        self.read_bytes = self._counter("read_bytes", "Bytes of the samples read", ["dataset"])
        self.read_s = self._counter("read_seconds", "Seconds spent reading, summed over concurrent reads", ["dataset"])
        self.smaller_cuts = self._counter("smaller_cuts", "Samples sent with a smaller cut than requested", ["reason"])
        self.errors = self._counter("errors", "Samples and requests that failed", ["type"])
        self.in_flight = Gauge("sophon_requests_in_flight", "Requests being answered", registry=self.registry)
        self.in_flight_bytes = Gauge("sophon_in_flight_bytes", "Bytes read but not sent yet", registry=self.registry)
        self.reads_under_way = Gauge("sophon_reads_under_way", "Concurrent reads", registry=self.registry)
        self.backlog_s = Gauge("sophon_backlog_seconds", "Wait for a core", registry=self.registry)

    def price_buckets(self, prices: Prices) -> None:
        """Export the requests to object stores and their cost."""
        self.registry.register(_Buckets(prices))

    def _counter(self, name: str, text: str, labels: list[str] | None = None) -> Counter:
        return Counter(f"sophon_{name}", text, labels or [], registry=self.registry)


class _Buckets(Collector):
    """The requests of this process to object stores.

    Args:
        prices: Prices of the requests.
    """

    def __init__(self, prices: Prices) -> None:
        self._prices = prices

    def collect(self) -> Iterable[CounterMetricFamily]:
        """Return the sums."""
        sums = ACCOUNT.now()
        for name, text in _BUCKET_SUMS.items():
            yield CounterMetricFamily(f"sophon_bucket_{name}", text, sums[name])
        gets, size_bytes = int(sums["gets"] + sums["hedges"]), int(sums["get_bytes"] + sums["hedge_bytes"])
        yield CounterMetricFamily(
            "sophon_bucket_price", "Cost of the requests to object stores", self._prices.of(gets, size_bytes)
        )


_BUCKET_SUMS = {
    "gets": "Requests to object stores that were answered",
    "get_bytes": "Bytes returned by object stores",
    "index_bytes": "Bytes of window indexes returned by object stores",
    "retries": "Repeated requests to object stores",
    "slow_downs": "How often an object store asked for fewer requests",
    "hedges": "Second requests to object stores for late answers",
}


def serve_metrics(metrics: Metrics, host: str, port: int, healthy: Callable[[], bool]) -> WSGIServer:
    """Start answering on a separate port; close with `shutdown` and `server_close`."""
    prometheus = make_wsgi_app(metrics.registry)

    def answer(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        path, status, body = environ["PATH_INFO"], "404 Not Found", b"there is /metrics and /health\n"
        if environ["REQUEST_METHOD"] != "GET":
            status, body = "405 Method Not Allowed", b"there is nothing but GET\n"
        elif path == "/metrics":
            return prometheus(environ, start_response)  # type: ignore[no-any-return]  # it has no types
        elif path in ("/health", "/healthz"):
            status, body = ("200 OK", b"ok\n") if healthy() else ("503 Service Unavailable", b"draining\n")
        start_response(status, [("Content-Type", "text/plain"), ("Allow", "GET")])
        return [body]

    server = make_server(host, port, answer, _Server, _Handler)
    threading.Thread(target=server.serve_forever, name="sophon-metrics", daemon=True).start()
    return server


class _Server(ThreadingMixIn, WSGIServer):
    """Gives every connection a thread, so that a silent one does not block the others."""

    daemon_threads = True


class _Handler(WSGIRequestHandler):
    """Answers one connection, or drops it if it stays silent."""

    def setup(self) -> None:
        """Limit how long to wait for the other side."""
        super().setup()
        self.connection.settimeout(_IDLE_S)

    def handle(self) -> None:
        """Answer; a silent or vanished caller is not worth a traceback."""
        with contextlib.suppress(TimeoutError, ConnectionError):
            super().handle()

    def log_message(self, *_: Any) -> None:
        """Log nothing: a scrape every few seconds is not news."""
