"""What another release of sophon would be to this one: imported into a server with ``--import``."""

from __future__ import annotations

import os

from sophon.link import wire
from sophon.pipeline import ops

WHAT = "SOPHON_TEST_RELEASE"  # protocol or op

if os.environ.get(WHAT) == "protocol":
    wire.PROTOCOL = 99
elif os.environ.get(WHAT) == "op":
    ops.RandomResizedCrop.version = 99
