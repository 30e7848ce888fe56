"""A real browser for tests: Chromium by its own DevTools protocol, over the two pipes it offers for that.

Limits: one page, one caller, no network.
"""

from __future__ import annotations

import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

_FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update",
    "--disable-sync", "--no-first-run", "--hide-scrollbars", "--remote-debugging-pipe",
)  # fmt: skip
# Chromium reads commands from descriptor 3 and writes answers to 4; copies first, lest one overwrite the other.
_WIRE = (
    "import os, sys\n"
    "copies = [os.dup(os.dup(int(number))) for number in sys.argv[1:3]]\n"
    "os.dup2(copies[0], 3); os.dup2(copies[1], 4)\n"
    "os.execv(sys.argv[3], sys.argv[3:])"
)
_PATIENCE_S = 60.0


def find_browser() -> str | None:
    """Return a Chromium of this machine, or None."""
    return next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


class Page:
    """One page of a running browser."""

    def __init__(self, reads: int, writes: int) -> None:
        self._reads, self._writes = reads, writes
        self._id, self._rest, self._session = 0, b"", None
        self.complaints: list[str] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Send a command and return its result; what the page complains of meanwhile is kept."""
        self._id += 1
        message = {"id": self._id, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._writes, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._read()
            if answer.get("id") == self._id:
                assert "error" not in answer, answer
                return answer["result"]
            self._note(answer)

    def open(self, path: Path, width: int, *, dark: bool = False) -> None:
        """Load a file at this width and wait until it is there."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.call("Page.navigate", url=path.as_uri())
        while (answer := self._read()).get("method") != "Page.loadEventFired":
            self._note(answer)

    def ask(self, expression: str) -> Any:
        """Return the value of a JavaScript expression."""
        found = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def _note(self, answer: dict[str, Any]) -> None:
        method, params = answer.get("method"), answer.get("params", {})
        if method == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning", "assert"):
            self.complaints.append(str(params["args"]))
        elif method == "Runtime.exceptionThrown":
            self.complaints.append(str(params["exceptionDetails"]))
        elif method == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
            self.complaints.append(params["entry"]["text"])
        elif method == "Network.requestWillBeSent" and not params["request"]["url"].startswith(
            ("file:", "data:", "about:")
        ):
            self.complaints.append(f"asked for {params['request']['url']}")

    def _read(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._reads], [], [], _PATIENCE_S)
            more = os.read(self._reads, 1 << 16) if ready else b""
            assert more, "the browser ended or says nothing"
            self._rest += more
        text, _, self._rest = self._rest.partition(b"\0")
        return json.loads(text)


@contextmanager
def browser() -> Iterator[Page]:
    """Run a browser while the block lasts."""
    found = find_browser()
    assert found is not None
    from_us, to_us = os.pipe(), os.pipe()
    with tempfile.TemporaryDirectory(prefix="sophon-browser-", ignore_cleanup_errors=True) as home:
        process = subprocess.Popen(
            [sys.executable, "-c", _WIRE, str(from_us[0]), str(to_us[1]), found, *_FLAGS, f"--user-data-dir={home}"],
            pass_fds=(from_us[0], to_us[1]),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "HOME": home},
        )
        os.close(from_us[0])
        os.close(to_us[1])
        try:
            yield Page(to_us[0], from_us[1])
        finally:
            process.terminate()
            process.wait(_PATIENCE_S)
            os.close(to_us[0])
            os.close(from_us[1])
