"""The example of sounds trains on a CPU, with the same losses from a folder and from a storage node."""

import importlib.util
from pathlib import Path

import pytest
import torch

from tests.support.servers import serve
from tests.support.sounds import make_sounds

EXAMPLE = Path(__file__).parents[2] / "examples" / "audio.py"
TINY = ["--epochs", "2", "--batch-size", "4", "--rate", "4000", "--seconds", "0.5", "--bands", "16", "--workers", "1"]


@pytest.fixture(scope="module")
def example():
    spec = importlib.util.spec_from_file_location("audio_example", EXAMPLE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(autouse=True)
def _one_thread():
    # Sums of several threads may be added up in another order; the losses are compared to the last digit.
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def test_losses_are_the_same_from_a_folder_and_from_a_node_whatever_the_policy(example, tmp_path):
    sounds = make_sounds(tmp_path / "train", 10)
    folder = example.main(["--data", str(sounds), *TINY])
    assert [len(losses) for losses in folder] == [3, 3]
    assert len({loss for losses in folder for loss in losses}) == 6
    with serve(sounds) as server:
        for policy in ("0:window", "optimal"):
            assert example.main(["--data", server.url, "--policy", policy, *TINY]) == folder, policy
