"""A link of its own between this machine and a network namespace, where root may make one."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from itertools import count
from pathlib import Path

from tests.support.waiting import wait_until

_numbers = count(os.getpid() % 50_000)


def can_make_links() -> bool:
    """Return whether namespaces and links can be made here."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        return False
    name = f"sophon-try-{os.getpid()}"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True, check=False).returncode == 0
    if made:
        _ip("netns", "del", name)
    return made


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True)


class Link:
    """A pair of virtual interfaces, one of them in a namespace."""

    def __init__(self) -> None:
        number = next(_numbers)
        self.namespace = f"sophon-{number}"
        self._near, self._far = f"sn{number}", f"sf{number}"
        self.near_address, self.far_address = (f"10.{200 + number % 50}.{number // 50 % 250}.{i}" for i in (1, 2))

    def __enter__(self) -> Link:
        _ip("netns", "add", self.namespace)
        try:
            _ip("link", "add", self._near, "type", "veth", "peer", "name", self._far, "netns", self.namespace)
            _ip("addr", "add", f"{self.near_address}/24", "dev", self._near)
            _ip("link", "set", self._near, "up")
            _ip("-n", self.namespace, "addr", "add", f"{self.far_address}/24", "dev", self._far)
            _ip("-n", self.namespace, "link", "set", self._far, "up")
            _ip("-n", self.namespace, "link", "set", "lo", "up")
        except BaseException:
            _ip("netns", "del", self.namespace)
            raise
        return self

    def __exit__(self, *_: object) -> None:
        _ip("netns", "del", self.namespace)  # and with it both interfaces

    def cut(self) -> None:
        """Pull the cable."""
        _ip("-n", self.namespace, "link", "set", self._far, "down")

    def restore(self) -> None:
        """Plug it in again."""
        _ip("-n", self.namespace, "link", "set", self._far, "up")


@contextlib.contextmanager
def far_server(images: Path, folder: Path, options: tuple[str, ...] = ()) -> Iterator[tuple[Link, str]]:
    """Run a server at the other end of a link of its own; yield the link, and the address of the data set."""
    with Link() as link:
        ready = folder / "ready.json"
        command = ["ip", "netns", "exec", link.namespace, sys.executable, "-m", "sophon.cli.main", "serve"]
        command += [str(images), "--name", "data", "--host", link.far_address, "--insecure", "--port", "0"]
        command += ["--ready-file", str(ready), "--cache-dir", str(folder / "cache"), *options]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
            try:
                wait_until(lambda: ready.exists() or process.poll() is not None)
                assert process.poll() is None
                yield link, json.loads(ready.read_text())["url"] + "/data"
            finally:
                process.kill()
