"""A proxy before an object store that does what networks and clouds do: 503s, resets, late answers, expired keys."""

from __future__ import annotations

import http.client
import re
import socket
import struct
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from tests.support.waiting import HANG_S

_KEY = re.compile(r"Credential=([^/]+)/")
_ERROR = '<?xml version="1.0"?><Error><Code>{code}</Code><Message>no</Message></Error>'


class ObjectProxy:
    """Passes requests on, until told otherwise.

    Args:
        port: Of the object store on this machine.

    Attributes:
        requests: What was asked for: method, path and headers of each request.
    """

    def __init__(self, port: int) -> None:
        self.target = port
        self.requests: list[tuple[str, str, dict[str, str]]] = []
        self.fault: Callable[[str, str], str | tuple[int, str] | None] = lambda *_: None
        self.expired: set[str] = set()
        self.release = threading.Event()  # answers that are held are sent
        self._lock = threading.Lock()
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            timeout = 30

            def handle_one_request(self) -> None:
                try:
                    super().handle_one_request()
                except OSError:
                    self.close_connection = True

            def do_GET(self) -> None:
                proxy.answer(self)

            do_HEAD = do_PUT = do_DELETE = do_GET  # noqa: N815

            def log_message(self, *_: object) -> None:
                pass

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            request_queue_size = 256

            def handle_error(self, *_: object) -> None:
                pass

        self._server = Server(("127.0.0.1", 0), Handler)
        self.port = int(self._server.server_address[1])
        threading.Thread(target=self._server.serve_forever, name="object-proxy", daemon=True).start()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def count(self, *kinds: str) -> int:
        """Return how many requests of some kinds came."""
        return sum(method in kinds for method, _, _ in self.requests)

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        with self._lock:
            self.requests.append((handler.command, handler.path, dict(handler.headers)))
            what = self.fault(handler.command, handler.path)
        body = handler.rfile.read(int(handler.headers.get("Content-Length") or 0))
        key = _KEY.search(handler.headers.get("Authorization", ""))
        if key is not None and key[1] in self.expired:
            what = (400, "ExpiredToken")
        if isinstance(what, tuple):
            self._fail(handler, *what)
            return
        if what == "held":
            self.release.wait(HANG_S)
        if what == "reset":
            _reset(handler)
            return
        connection = http.client.HTTPConnection("127.0.0.1", self.target, timeout=HANG_S)
        try:
            connection.request(handler.command, handler.path, body or None, dict(handler.headers))
            found = connection.getresponse()
            data = found.read()
        except (OSError, http.client.HTTPException):
            _reset(handler)
            return
        finally:
            connection.close()
        handler.send_response(found.status)
        for name, value in found.getheaders():
            if name.lower() not in ("connection", "transfer-encoding", "content-length"):
                handler.send_header(name, value)
        length = found.headers.get("Content-Length") if handler.command == "HEAD" else str(len(data))
        handler.send_header("Content-Length", length or "0")
        handler.end_headers()
        if what == "cut":  # in the middle of the answer
            handler.wfile.write(data[: len(data) // 2])
            handler.wfile.flush()
            _reset(handler)
            return
        handler.wfile.write(data)

    def _fail(self, handler: BaseHTTPRequestHandler, status: int, code: str) -> None:
        body = _ERROR.format(code=code).encode()
        handler.send_response(status)
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        if handler.command != "HEAD":
            handler.wfile.write(body)

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


def _reset(handler: BaseHTTPRequestHandler) -> None:
    handler.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    handler.close_connection = True
    handler.connection.close()
