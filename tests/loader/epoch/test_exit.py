"""A process may end in the middle of an epoch: at once, and without a word."""

import pytest

from tests.support.python_process import run_python
from tests.support.servers import make_images

SCRIPT = "import sys; from tests.support.exit_main import main; kept = main(*sys.argv[1:])"


@pytest.mark.parametrize(
    ("how", "kind"), [("kept", "threads"), ("daemon", "threads"), ("kept", "processes"), ("kept", "persistent")]
)
@pytest.mark.matrix(every=4)
def test_a_process_that_ends_while_a_worker_holds_a_lock_does_end(tmp_path, how, kind):
    # A daemon thread is stopped for good where it next asks for Python's lock, whatever else it holds.
    images = make_images(tmp_path / "images", 80)
    done = run_python("-c", SCRIPT, str(images), how, kind)
    assert (done.returncode, done.stderr) == (0, "")
