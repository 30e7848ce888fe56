"""An op that does what no op should do. Nobody knows it unless it is registered: see `plugin_ops`."""

from __future__ import annotations

import os
import socket
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from PIL import Image

from sophon.pipeline.op import Op
from sophon.pipeline.spec import Kind, Spec
from sophon.server.isolation import frames

NODE = "SOPHON_TEST_NODE"  # set where they are to misbehave
DOZE_S = "SOPHON_TEST_DOZE_S"  # how long to doze
GO = "SOPHON_TEST_GO"  # file that is waited for
BEGUN = "SOPHON_TEST_BEGUN"  # file that is made, if it is named, when something suffers
PROBE_WIDTH = 320  # of the built-in picture


@dataclass(frozen=True)
class Misbehave(Op):
    """Does to pictures of a given width what no op should do, and nothing to others.

    Args:
        how: abort, exit, hang, sleep, doze, wait, eat, raise, boast, fork or nothing.
        width: Of the pictures that suffer; 0 for all.
    """

    how: str
    width: int = 0
    takes: ClassVar[Kind] = Kind.IMAGE

    def output(self, spec: Spec) -> Spec:
        self._check_kind(spec)
        return spec

    def apply(self, value: Image.Image, params: Any) -> Image.Image:  # noqa: ARG002 - part of the contract
        if NODE in os.environ and self.width in (0, value.width):
            if BEGUN in os.environ:
                Path(os.environ[BEGUN]).touch()
            _MISDEEDS[self.how]()
        return value


def _hang() -> None:
    while True:
        pass


def _wait() -> None:
    while not Path(os.environ[GO]).exists():
        time.sleep(0.02)


def _eat() -> None:
    bytearray(8 << 30)


def _boast() -> None:
    """Answer in the worker's place that a giant picture took a thousand years, as a decoder that was taken over may."""
    line = int(sys.argv[sys.argv.index("--line") + 1])
    with socket.socket(fileno=os.dup(line)) as server:
        frames.send(server, frames.Kind.PAYLOAD, frames.Costs(3e10, (2**32 - 1, 2**32 - 1)).pack(), b"payload")
    os._exit(0)


def _fork() -> None:
    """Leave a child behind that has the line to the server too, and fall."""
    if os.fork() == 0:
        time.sleep(1000)
        os._exit(0)
    os.abort()


def _raise() -> None:
    raise ZeroDivisionError("on purpose")


_MISDEEDS = {
    "abort": os.abort,
    "exit": lambda: os._exit(0),
    "hang": _hang,
    "sleep": lambda: time.sleep(1000),
    "doze": lambda: time.sleep(float(os.environ[DOZE_S])),
    "wait": _wait,
    "eat": _eat,
    "raise": _raise,
    "boast": _boast,
    "fork": _fork,
    "nothing": lambda: None,
}
