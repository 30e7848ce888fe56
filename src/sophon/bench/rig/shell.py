"""Calls the system's own tools."""

from __future__ import annotations

import os
import shutil
import subprocess

from sophon.errors import Error

_PATH = os.pathsep.join((os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"))  # where iproute2 is often installed
_TIMEOUT_S = 30.0


class ToolError(Error):
    """Raised when a system tool fails or is missing."""


def tool(name: str) -> str | None:
    """Return the path of a tool, if it is installed."""
    return shutil.which(name, path=_PATH)


def call(*command: str) -> str:
    """Run a tool and return its output.

    Raises:
        ToolError: The tool is missing or has failed.
    """
    path = tool(command[0])
    if path is None:
        raise ToolError(
            f"{command[0]} is not installed; install iproute2 and util-linux, or do without (--shape server)"
        )
    done = subprocess.run([path, *command[1:]], capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    if done.returncode:
        said = done.stderr.strip() or f"exit code {done.returncode}"
        raise ToolError(f"`{' '.join(command)}` failed: {said}; try again with --shape server")
    return done.stdout
