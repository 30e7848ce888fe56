"""Own code runs in worker processes, never in the training loop; a process that dies is an error with a name."""

import os
import signal

import numpy as np
import pytest
import torch
from PIL import Image

import sophon
from sophon.errors import WorkerError
from sophon.pipeline import Pipeline, ops
from tests.support.servers import RECIPE, make_images
from tests.support.settings import grouped


def _marked(tensor):
    return torch.full((2,), float(os.getpid()))


def _pid_of(label):
    return os.getpid()


def _collate(samples):
    return [[int(value[0]) for value, _ in samples], [target for _, target in samples], os.getpid()]


@pytest.mark.parametrize("settings", [{}, {"order": "relaxed"}, {"num_workers": "auto"}])
def test_no_own_code_runs_in_the_training_process(images, settings):
    settings = {"num_workers": 2, **settings}
    loader = sophon.DataLoader(
        images,
        [*RECIPE.ops, _marked],
        **grouped(batch_size=4, collate_fn=_collate, target_transform=_pid_of, **settings),
    )
    seen = set()
    for steps, targets, collated in loader:
        seen |= {*steps, *targets, collated}
    assert seen
    assert os.getpid() not in seen


def test_what_takes_the_place_of_a_bad_sample_is_finished_by_a_worker_too(tmp_path):
    folder = make_images(tmp_path / "train", 6, classes=1)
    (folder / "class_0" / "0003.jpg").write_bytes(b"not a picture")
    loader = sophon.DataLoader(
        folder,
        [*RECIPE.ops, _marked],
        batch_size=6,
        num_workers=1,
        collate_fn=_collate,
        target_transform=_pid_of,
        on_error=sophon.OnError("substitute", 1),
    )
    ((steps, targets, collated),) = list(loader)
    assert len(steps) == 6
    assert os.getpid() not in {*steps, *targets, collated}
    assert len(loader.bad_samples) == 1


def test_without_workers_own_code_runs_in_the_thread_that_iterates(images):
    loader = sophon.DataLoader(
        images, [*RECIPE.ops, _marked], batch_size=41, collate_fn=_collate, target_transform=_pid_of
    )
    ((steps, targets, collated),) = list(loader)
    assert {*steps, *targets, collated} == {os.getpid()}


class _Deadly:
    """Dies in a worker at one picture; the trial when a loader opens runs in this process and is let through."""

    def __init__(self, how):
        self._how = how
        self._home = os.getpid()

    def __call__(self, picture):
        if os.getpid() != self._home and picture.size == (33, 33):
            if self._how == "exit":
                os._exit(3)
            os.kill(os.getpid(), signal.SIGKILL)
        return picture


@pytest.mark.parametrize(("how", "words"), [("exit", "exited with code 3"), ("kill", "was ended by SIGKILL")])
def test_a_worker_that_dies_is_an_error_that_names_its_sample(tmp_path, how, words):
    folder = make_images(tmp_path / "train", 8, classes=1)
    victim = sorted(folder.rglob("*.*"))[5]
    Image.new("RGB", (33, 33)).save(victim)
    pipeline = Pipeline([ops.Decode(), _Deadly(how), ops.Resize((16, 16)), ops.ToTensor()])
    loader = sophon.DataLoader(folder, pipeline, batch_size=2, num_workers=1)
    with pytest.raises(WorkerError, match=rf"{words} while it finished sample 5 of .*{victim.name}"):
        list(loader)


def _half(tensor):
    return tensor / 2


def test_a_batch_that_is_kept_does_not_change_while_others_are_made_and_freed(images):
    settings = {"batch_size": 4, "seed": 5}
    loader = sophon.DataLoader(images, [*RECIPE.ops, _half], **grouped(num_workers=2, **settings))
    rows = []
    for number, (tensors, _) in enumerate(loader):
        if number % 3 == 0:
            rows.append(tensors[0])  # a part of a batch keeps the whole
    assert len(list(loader)) == 11  # another epoch in the memory that was freed
    expected = [tensors[0] for tensors, _ in sophon.DataLoader(images, [*RECIPE.ops, _half], **grouped(**settings))][
        ::3
    ]
    assert [row.numpy().tobytes() for row in rows] == [row.numpy().tobytes() for row in expected]


def _as_array(value):
    return np.asarray(value)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("step", [_as_array, torch.as_tensor, lambda value: np.ma.masked_less(np.asarray(value), 0.5)])
def test_collate_fn_is_given_what_the_step_before_it_returns(images, step, workers):
    expected = type(step(np.zeros(2, np.float32)))
    types = {"collate_fn": lambda items: [type(value) for value, _ in items]}
    loader = sophon.DataLoader(images, [*RECIPE.ops, step], batch_size=4, num_workers=workers, **types)
    assert {kind for kinds in loader for kind in kinds} == {expected}
    assert type(sophon.RemoteDataset(images, [*RECIPE.ops, step])[0][0]) is expected
