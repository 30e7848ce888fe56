"""The HTTP port: what it answers, whom it drops, and that nobody has to wait for anybody."""

import gzip
import socket
import urllib.error
import urllib.request

import pytest

from sophon.server.metrics import Metrics, serve_metrics
from tests.support.waiting import HANG_S


@pytest.fixture
def http():
    metrics = Metrics()
    metrics.requests.inc(3)
    server = serve_metrics(metrics, "127.0.0.1", 0, lambda: server.is_healthy)
    server.is_healthy = True
    yield server
    server.shutdown()
    server.server_close()


def _ask(http, path, method="GET", **headers):
    request = urllib.request.Request(f"http://127.0.0.1:{http.server_port}{path}", headers=headers, method=method)
    try:
        with urllib.request.urlopen(request, timeout=HANG_S) as answer:
            return answer.status, dict(answer.headers), answer.read()
    except urllib.error.HTTPError as refused:
        with refused:
            return refused.code, dict(refused.headers), refused.read()


def test_metrics_come_in_prometheus_own_format(http):
    status, headers, body = _ask(http, "/metrics")
    assert status == 200
    assert headers["Content-Type"].startswith("text/plain; version=")
    assert b"sophon_requests_total 3.0" in body


def test_metrics_come_as_the_caller_asks_for_them(http):
    _, headers, body = _ask(http, "/metrics", **{"Accept-Encoding": "gzip"})
    assert headers["Content-Encoding"] == "gzip"
    assert b"sophon_requests_total 3.0" in gzip.decompress(body)
    _, headers, body = _ask(http, "/metrics", Accept="application/openmetrics-text; version=1.0.0")
    assert headers["Content-Type"].startswith("application/openmetrics-text")
    assert body.endswith(b"# EOF\n")
    _, _, body = _ask(http, "/metrics?name[]=sophon_requests_total")
    assert b"sophon_requests_total 3.0" in body
    assert b"sophon_backlog_seconds" not in body


def test_health_tells_whether_requests_are_accepted(http):
    assert _ask(http, "/health")[::2] == (200, b"ok\n")
    http.is_healthy = False
    assert _ask(http, "/healthz")[::2] == (503, b"draining\n")


@pytest.mark.parametrize("path", ["/", "/secrets", "/metrics/", "/metrics/../etc/passwd", "/favicon.ico"])
def test_there_is_nothing_else(http, path):
    assert _ask(http, path)[::2] == (404, b"there is /metrics and /health\n")


@pytest.mark.parametrize("path", ["/metrics", "/health", "/secrets"])
@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE"])
def test_nothing_can_be_changed(http, path, method):
    assert _ask(http, path, method)[0] == 405


def test_whoever_says_nothing_keeps_nobody_waiting_and_leaves_no_word(http, capfd):
    silent = [socket.create_connection(("127.0.0.1", http.server_port)) for _ in range(4)]
    silent[0].sendall(b"GET /metrics HTTP/1.1\r\nX: ")
    assert _ask(http, "/health")[0] == 200
    for connection in silent:
        connection.close()
    assert _ask(http, "/health")[0] == 200
    assert capfd.readouterr().err == ""


def test_whoever_says_nothing_is_dropped_without_a_word(monkeypatch, capfd):
    monkeypatch.setattr("sophon.server.metrics._IDLE_S", 0.2)
    http = serve_metrics(Metrics(), "127.0.0.1", 0, lambda: True)
    for said in (b"", b"GET", b"GET /health HTTP/1.1\r\nX: "):
        with socket.create_connection(http.server_address, timeout=HANG_S) as silent:
            silent.sendall(said)
            assert silent.recv(1) == b""
    http.shutdown()
    http.server_close()
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("said", [b"\x00\xff" * 100 + b"\r\n\r\n", b"GET /" + b"x" * 70_000 + b" HTTP/1.1\r\n\r\n"])
def test_nonsense_is_refused(http, said):
    with socket.create_connection(http.server_address, timeout=HANG_S) as connection:
        connection.sendall(said)
        answer = b"".join(iter(lambda: connection.recv(4096), b""))
        assert b"400" in answer or b"414" in answer
    assert _ask(http, "/health")[0] == 200
