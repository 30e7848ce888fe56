"""A registry and the nodes that announce themselves to it: real processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from sophon.link.registry import RegistryClient
from tests.support.waiting import HANG_S, wait_until
from tests.support.warm import popen


class Registry:
    """`sophon registry` on this machine while a ``with`` block lasts; started again on the same port."""

    def __init__(self, folder: Path, *options: str, settle: str = "0.2") -> None:
        self._folder = folder
        self._options = ["--settle", settle, *options]
        self._process: subprocess.Popen[bytes] | None = None
        self.port = 0
        self.url = ""

    def start(self) -> Registry:
        ready = self._folder / "registry.json"
        ready.unlink(missing_ok=True)
        command = [sys.executable, "-m", "sophon", "registry", "--port", str(self.port), "--ready-file", str(ready)]
        with (self._folder / "registry.log").open("ab") as log:
            self._process = popen(
                [*command, *self._options], stdout=log, stderr=subprocess.STDOUT, start_new_session=True
            )
        wait_until(lambda: ready.exists() or self._process.poll() is not None, "the registry does not start")
        assert ready.exists(), (self._folder / "registry.log").read_text()
        said = json.loads(ready.read_bytes())
        self.port, self.url = said["port"], said["url"]
        return self

    def end(self, how: signal.Signals = signal.SIGTERM) -> int:
        assert self._process is not None
        os.kill(self._process.pid, how)
        return self._process.wait(HANG_S)

    def status(self, credentials: Any = None) -> dict[str, Any]:
        return json.loads(RegistryClient(self.url, credentials).action("status"))

    def wait_for(self, nodes: int, credentials: Any = None) -> None:
        def there() -> int:
            return sum(node["state"] == "well" for node in self.status(credentials)["nodes"])

        wait_until(lambda: there() == nodes, f"expected {nodes} nodes")

    def __enter__(self) -> Registry:
        return self.start()

    def __exit__(self, *_: object) -> None:
        if self._process is not None and self._process.poll() is None:
            self.end(signal.SIGKILL)
