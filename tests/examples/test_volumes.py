"""The example of 3-D segmentation trains on a CPU, with the same losses from a folder and from a node."""

import pytest
import torch

import sophon
from tests.examples.test_targets import example
from tests.support.volumes import data_set


@pytest.fixture(autouse=True)
def _one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.parametrize(
    "policies", [("0:window",), pytest.param(("none", "4:zstd", "all", "optimal"), marks=pytest.mark.slow)]
)
def test_losses_are_the_same_from_a_folder_and_from_a_node_whatever_the_policy(policies, tmp_path):
    path = data_set(tmp_path / "scans", 4)
    more = ["--epochs", "2", "--crop", "12", "--workers", "1"]
    main = example("volumes").main
    folder = main(["--data", path, *more])
    assert [len(losses) for losses in folder] == [2, 2]
    assert sum(folder[1]) < sum(folder[0])
    with sophon.LocalServer(path, 1) as server:
        for policy in policies:
            assert main(["--data", server.url, "--policy", policy, *more]) == folder, policy
