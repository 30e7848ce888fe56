"""The example trains on a CPU, and does the same to the last digit from a folder and from a storage node."""

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from sophon.bench.torchvision_import import import_torchvision
from tests.support.servers import make_images, serve

EXAMPLE = Path(__file__).parents[2] / "examples" / "imagenet.py"
TINY = ["--epochs", "3", "--batch-size", "8", "--size", "32", "--lr", "0.02", "--workers", "1"]
_LINE = re.compile(r"^epoch (\d+): (loss \S+, accuracy \S+), [\d,]+ samples/s; (validation .*)$", re.MULTILINE)


@pytest.fixture(scope="module")
def example():
    spec = importlib.util.spec_from_file_location("imagenet_example", EXAMPLE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    return make_images(tmp_path_factory.mktemp("data") / "train", 30)


@pytest.fixture(autouse=True)
def _one_thread():
    # Sums of several threads may be added up in another order; the losses are compared to the last digit.
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def losses(history):
    return [{name: value for name, value in row.items() if name != "samples_per_s"} for row in history]


def test_losses_are_the_same_from_a_folder_and_from_a_server_whatever_the_policy(example, images):
    folder = losses(example.main(["--data", str(images), "--val", str(images), *TINY]))
    assert len(folder) == 3
    assert len({row["loss"] for row in folder}) == 3
    with serve(images) as server:
        for policy in ("none", "all", "2:webp", "optimal"):
            given = ["--data", server.url, "--val", server.url, "--policy", policy]
            assert losses(example.main([*given, *TINY])) == folder, policy


@pytest.mark.slow
def test_as_a_command_it_says_what_training_and_loader_did(images, tmp_path):
    command = [sys.executable, str(EXAMPLE), *TINY, "--val", str(images)]
    alone = {**os.environ, "OMP_NUM_THREADS": "1"}
    with serve(images) as server:
        text = subprocess.run(
            [*command, "--data", server.url], check=True, capture_output=True, text=True, cwd=tmp_path, env=alone
        ).stdout
    assert len(_LINE.findall(text)) == 3
    assert "loader: 90 samples, " in text
    assert "the model waited" in text


def test_a_resumed_run_goes_on_as_if_it_had_never_stopped(example, images, tmp_path):
    given = ["--data", str(images), *TINY[2:], "--checkpoint", str(tmp_path / "run.pt")]
    # The schedule depends on the number of epochs, so the run is stopped by taking its checkpoint away in between.
    whole = losses(example.main([*given, "--epochs", "3"]))
    (tmp_path / "run.pt").unlink()
    stopped = losses(_stop_after_one(example, [*given, "--epochs", "3"]))
    resumed = losses(example.main([*given, "--epochs", "3", "--resume"]))
    assert stopped + resumed == whole


def _stop_after_one(example, arguments):
    rows = []

    class _StoppedError(Exception):
        pass

    train = example.train_epoch

    def once(*given):
        if rows:
            raise _StoppedError
        rows.append(train(*given))
        return rows[-1]

    example.train_epoch = once
    try:
        example.main(arguments)
    except _StoppedError:
        return rows
    finally:
        example.train_epoch = train
    raise AssertionError("it was not stopped")


def test_models_of_torchvision_are_known_by_name(example):
    if import_torchvision() is None:
        pytest.skip("torchvision is not installed")
    assert example.make_model("resnet18", 7)(torch.zeros(1, 3, 64, 64)).shape == (1, 7)
    with pytest.raises(SystemExit, match="no such model"):
        example.make_model("resnet17", 7)


def test_wrong_use_ends_with_words(example, images, tmp_path):
    with pytest.raises(SystemExit, match="one folder per class"):
        example.main(["--data", str(make_images(tmp_path / "flat", 4, classes=0)), *TINY])
    with pytest.raises(SystemExit, match="--checkpoint FILE"):
        example.main(["--data", str(images), "--resume", *TINY])
