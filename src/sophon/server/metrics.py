"""What the server counts, and the HTTP port where it can be read.

`/metrics` speaks Prometheus' text format, `/health` answers 200 while requests are accepted and 503 while draining.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Gauge, generate_latest

_IDLE_S = 10.0  # that a connection may say nothing; each has a thread and a descriptor, which requests need too


class Metrics:
    """The server's counters."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = self._counter("requests", "Requests accepted")
        self.samples = self._counter("samples", "Samples sent, by the cut really made", ["dataset", "cut"])
        self.payload_bytes = self._counter("payload_bytes", "Bytes of payload sent", ["dataset"])
        self.op_cpu_s = self._counter("op_cpu_seconds", "CPU seconds spent on ops and codecs", ["dataset"])
        self.smaller_cuts = self._counter("smaller_cuts", "Samples sent with a smaller cut than asked for", ["reason"])
        self.errors = self._counter("errors", "Samples and requests that failed", ["type"])
        self.in_flight = Gauge("sophon_requests_in_flight", "Requests being answered", registry=self.registry)
        self.in_flight_bytes = Gauge("sophon_in_flight_bytes", "Bytes read and not sent yet", registry=self.registry)
        self.backlog_s = Gauge("sophon_backlog_seconds", "Wait for a core", registry=self.registry)

    def _counter(self, name: str, text: str, labels: list[str] | None = None) -> Counter:
        return Counter(f"sophon_{name}", text, labels or [], registry=self.registry)


def serve_metrics(metrics: Metrics, host: str, port: int, healthy: Callable[[], bool]) -> ThreadingHTTPServer:
    """Start answering on a port of its own; close with `shutdown`."""

    class Handler(BaseHTTPRequestHandler):
        timeout = _IDLE_S

        def do_GET(self) -> None:
            if self.path == "/metrics":
                self._answer(200, CONTENT_TYPE_LATEST, generate_latest(metrics.registry))
            elif self.path in ("/health", "/healthz"):
                fine = healthy()
                self._answer(200 if fine else 503, "text/plain", b"ok\n" if fine else b"draining\n")
            else:
                self._answer(404, "text/plain", b"there is /metrics and /health\n")

        def _answer(self, status: int, kind: str, body: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            """Say nothing: a scrape every few seconds is not news."""

    server = ThreadingHTTPServer((host, port), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, name="sophon-metrics", daemon=True).start()
    return server
