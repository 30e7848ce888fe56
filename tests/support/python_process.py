"""A Python process of its own, which finds the code beside these tests."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.support.waiting import HANG_S

ROOT = Path(__file__).parents[2]
PATHS = f"{ROOT / 'src'}:{ROOT}"


def run_python(*words: str, timeout_s: float = 3 * HANG_S) -> subprocess.CompletedProcess[str]:
    """Run it to its end, apart from the terminal's signals; whoever calls looks at how it ended."""
    return subprocess.run(
        [sys.executable, *words],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": PATHS},
        capture_output=True,
        text=True,
        timeout=timeout_s,
        start_new_session=True,
        check=False,
    )
