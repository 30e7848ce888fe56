"""What another release of sophon would be to this one: imported into a server with ``--import``."""

from __future__ import annotations

import os

from sophon.link import wire
from sophon.pipeline import ops
from sophon.server import executor

WHAT = "SOPHON_TEST_RELEASE"  # protocol, earlier or op


def _as_earlier(describe):
    """Return what opens data sets as the release did that spoke version 1 only."""

    def described(*args, **named):
        return {name: value for name, value in describe(*args, **named).items() if name not in ("protocols", "fields")}

    return described


if os.environ.get(WHAT) == "protocol":
    wire.PROTOCOLS = executor.PROTOCOLS = (99,)
elif os.environ.get(WHAT) == "earlier":
    wire.PROTOCOLS = (1,)
    executor.Executor.describe = _as_earlier(executor.Executor.describe)
elif os.environ.get(WHAT) == "op":
    ops.RandomResizedCrop.version = 99
