"""The examples of segmentation and detection train on a CPU, with the same losses from a folder and from a node."""

import importlib.util
from pathlib import Path

import pytest
import torch

import sophon
from tests.support.torchvision_import import import_torchvision

import_torchvision()

from tests.support.joint_data import make_data  # noqa: E402

EXAMPLES = Path(__file__).parents[2] / "examples"
TINY = {
    "segmentation": ("images=images&masks=masks", ["--classes", "21", "--crop", "48"]),
    "detection": ("images=images&boxes=boxes.json", ["--classes", "90", "--size", "64"]),
}


def example(name):
    spec = importlib.util.spec_from_file_location(f"{name}_example", EXAMPLES / f"{name}.py")
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


@pytest.mark.parametrize(
    "policies", [("2:webp",), pytest.param(("none", "0:window", "all", "optimal"), marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("name", TINY)
def test_losses_are_the_same_from_a_folder_and_from_a_node_whatever_the_policy(name, policies, tmp_path):
    make_data(tmp_path)
    options, more = TINY[name]
    more = [*more, "--epochs", "2", "--batch-size", "5", "--workers", "1"]
    main = example(name).main
    folder = main(["--data", f"{tmp_path}?{options}", *more])
    assert [len(losses) for losses in folder] == [3, 3]
    assert len({loss for losses in folder for loss in losses}) == 6
    with sophon.LocalServer(f"{tmp_path}?{options}", 1) as server:
        for policy in policies:
            assert main(["--data", server.url, "--policy", policy, *more]) == folder, policy


def test_training_lessens_the_losses(tmp_path):
    make_data(tmp_path, 6)
    for name, (options, more) in TINY.items():
        history = example(name).main(["--data", f"{tmp_path}?{options}", *more, "--epochs", "6", "--batch-size", "3"])
        assert sum(history[-1]) < sum(history[0]), name
