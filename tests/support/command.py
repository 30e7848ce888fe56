"""The `sophon` command in this process: as long as it takes to say no, without the second that a process takes."""

from __future__ import annotations

import contextlib
import io
import sys
from unittest import mock

import pytest

from sophon.cli.main import main


def refusal(*words: str) -> str:
    """Run a command that cannot work; return what it says, which is no traceback, and fail if it ends well."""
    said = io.StringIO()
    with (
        mock.patch.object(sys, "argv", ["sophon", *words]),
        contextlib.redirect_stderr(said),
        pytest.raises(SystemExit) as end,
    ):
        main()
    assert end.value.code != 0
    return said.getvalue()
