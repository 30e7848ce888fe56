"""The child's side of a process that takes commands as lines of JSON; see `processes.Trainer` for the parent's side.

Imports neither torch nor NumPy: a child may bring its own versions of both.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from typing import Any, TextIO

from sophon.errors import Error

_output: list[TextIO] = []  # for answers; what libraries print goes to the log


def answer(commands: object) -> None:
    """Call the named method for each line of the input and write its result, until the input ends."""
    _output.append(os.fdopen(os.dup(sys.stdout.fileno()), "w"))
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    for line in sys.stdin:
        arguments = json.loads(line)
        try:
            say({"result": getattr(commands, arguments.pop("do"))(**arguments)})
        except Error as error:
            say({"error": str(error)})
        except Exception as error:  # noqa: BLE001 - the edge of the process: the other side must hear of it
            traceback.print_exc()
            say({"error": repr(error)})


def say(message: dict[str, Any]) -> None:
    """Write one line."""
    output = _output[0] if _output else sys.stdout
    output.write(json.dumps(message) + "\n")
    output.flush()
