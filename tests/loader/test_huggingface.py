"""Data sets of Hugging Face's `datasets` give the loader their own pictures and labels.

The package brings pandas, which pyarrow imports wherever it finds it; so it lies in a folder of its own, and these
tests run in a process of their own that has it.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGES = Path(sys.prefix) / "datasets"  # requirements/pins-datasets.txt, installed by the Makefile
CASES = Path(__file__).with_name("huggingface_cases.py")


@pytest.mark.slow
@pytest.mark.skipif(not PACKAGES.is_dir(), reason="needs requirements/hashed-datasets.txt in .venv/datasets")
def test_the_cases_hold_with_the_real_package(tmp_path):
    paths = [str(PACKAGES), os.environ.get("PYTHONPATH", "")]
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        "HF_HOME": str(tmp_path / "hf"),
        "HF_HUB_OFFLINE": "1",
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
    }
    command = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", str(CASES)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=CASES.parents[2], check=False)
    assert done.returncode == 0, done.stdout + done.stderr
