"""Worker processes: what they give is what one thread gives, and their death is an error and never a hang."""

import contextlib
import ctypes
import faulthandler
import gc
import multiprocessing
import os
import random
import resource
import signal
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import sophon
from sophon.loader.epoch.workers import Workers
from sophon.pipeline import Key, Pipeline
from sophon.process.children import children_of
from tests.support.open_files import open_files
from tests.support.python_process import run_python
from tests.support.servers import RECIPE, digest, make_images
from tests.support.settings import grouped
from tests.support.waiting import HANG_S, wait_until

MAIN = os.getpid()
collate = torch.utils.data.default_collate


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    return make_images(tmp_path_factory.mktemp("data") / "train", 23)


def _same(value):
    return torch.as_tensor(value) + 0


def _loader(images, *steps, batch_size=4, workers=2, **settings):
    pipeline = Pipeline([*RECIPE.ops, *(steps or (_same,))])
    return sophon.DataLoader(images, pipeline, **grouped(batch_size=batch_size, num_workers=workers, **settings))


def _is_worker():
    return os.getpid() != MAIN


@pytest.fixture(autouse=True)
def _nothing_is_left():
    yield
    gc.collect()
    end_s = time.monotonic() + HANG_S  # what the garbage collector ends is not waited for
    while multiprocessing.active_children() and time.monotonic() < end_s:
        time.sleep(0.001)
    assert multiprocessing.active_children() == []
    assert not any(thread.name.startswith("sophon-f") for thread in threading.enumerate())


# --- death ------------------------------------------------------------------------------------------------------------


class _Deadly:
    """Ends its process in some way when it is called so many times there."""

    def __init__(self, how, calls=3):
        self.how, self.calls = how, calls

    def __call__(self, value):
        if _is_worker():
            self.calls -= 1
            if self.calls == 0:
                WAYS[self.how]()
        return value


WAYS = {
    "SIGKILL": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "SIGSEGV": lambda: (faulthandler.disable(), ctypes.string_at(0)),
    "code 3": lambda: os._exit(3),
    "code 4": lambda: sys.exit(4),
}


@pytest.mark.parametrize(
    ("where", "how"),
    [
        pytest.param(where, how, marks=pytest.mark.slow if (number + order) % 2 else ())
        for number, where in enumerate(("step", "target_transform", "collate_fn"))
        for order, how in enumerate(WAYS)
    ],
)
@pytest.mark.matrix(every=3)
def test_a_worker_that_dies_is_an_error_that_says_how_and_over_what(images, where, how):
    deadly = _Deadly(how)
    settings = {} if where == "step" else {where: deadly if where != "collate_fn" else lambda x: collate(deadly(x))}
    loader = _loader(images, *((_same, deadly) if where == "step" else ()), **settings)
    over = "made the batch at position" if where == "collate_fn" else r"finished sample .* The sample is class_\d/"
    with pytest.raises(sophon.WorkerError, match=f"{how} while it {over}"):
        list(loader)


@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.matrix(every=2)
def test_the_next_epoch_has_new_workers_in_place_of_those_that_died(images, persistent, tmp_path):
    is_cured = tmp_path / "cured"

    def step(value):
        if _is_worker() and not is_cured.exists():
            os._exit(1)
        return value

    loader = _loader(images, step, persistent_workers=persistent)
    for _ in range(2):
        with pytest.raises(sophon.WorkerError):
            list(loader)
    is_cured.touch()
    loader.set_epoch(0)
    assert digest(loader) == digest(_loader(images, step, workers=0))


@pytest.mark.parametrize("policy", ["substitute", "skip"])
@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.matrix(every=4)
def test_a_worker_that_dies_while_a_bad_sample_is_mended_is_no_bad_sample(images, persistent, policy):
    calls = []

    def target(label):
        calls.append(label)
        if len(calls) > 4:
            os._exit(7)
        raise ValueError("bad")

    loader = _loader(
        images, workers=1, target_transform=target, on_error=policy, budget=23, persistent_workers=persistent
    )
    with pytest.raises(sophon.WorkerError, match=r"code 7 .* The sample is class_"):
        list(loader)


def test_a_worker_that_is_killed_while_nobody_waits_is_found_dead(images):
    loader = _loader(images, batch_size=2, buffer_bytes=1)
    batches = iter(loader)
    next(batches)
    for pid in children_of(os.getpid()):
        os.kill(pid, signal.SIGKILL)
    with pytest.raises(sophon.WorkerError, match="SIGKILL"):
        list(batches)


def test_workers_that_wait_end_when_their_parent_is_killed(images):
    script = (
        "import os, signal, sys, time; from tests.loader.epoch.test_workers import _loader, children_of\n"
        "batches = iter(_loader(sys.argv[1], buffer_bytes=1)); next(batches)\n"
        "print(*children_of(os.getpid()), flush=True); os.kill(os.getpid(), signal.SIGKILL)"
    )
    done = run_python("-c", script, str(images))
    assert done.returncode == -signal.SIGKILL, done.stderr
    pids = done.stdout.split()
    assert len(pids) == 2
    wait_until(lambda: not any(_is_alive(pid) for pid in pids), "they wait for ever")


def _is_alive(pid):
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    return False


@pytest.mark.parametrize("method", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
def test_workers_that_are_closed_while_they_start_end_without_a_word(images, method, capfd):
    finishing = _loader(images).dataset.finishing
    for _ in range(10 if method == "fork" else 1):
        Workers(2, method, finishing, None, 1 << 20).close()
    assert capfd.readouterr().err == ""


def test_epochs_leave_no_file_open_until_the_garbage_collector_comes(images):
    loader = _loader(images)
    list(loader)
    gc.collect()
    gc.disable()
    try:
        before = len(open_files())
        for _ in range(3):
            list(loader)
        assert len(open_files()) == before
    finally:
        gc.enable()


def test_persistent_workers_are_gone_with_their_loader(images):
    loader = _loader(images, persistent_workers=True)
    list(loader)
    pids = {child.pid for child in multiprocessing.active_children()}
    assert len(pids) == 2
    del loader
    assert not pids & set(children_of(os.getpid())), "nor are they left for others to wait for"


def test_a_process_that_may_have_no_children_is_told_so(images):
    class Nested(torch.utils.data.Dataset):
        def __len__(self):
            return 1

        def __getitem__(self, index):
            with pytest.raises(sophon.ConfigError, match=r"itself a worker process.* use num_workers=0"):
                _loader(images)
            return len(list(_loader(images, workers=0)))

    assert list(torch.utils.data.DataLoader(Nested(), num_workers=1)) == [6]


# --- the same batches -------------------------------------------------------------------------------------------------


def _parity(value):
    return int(abs(float(value.sum())) * 1000) % 2


def _negative(value):
    return np.asarray(value)[:, ::-1]


RESULTS = {
    "tensor": _same,
    "array": lambda value: np.asarray(value) * 2,
    "array with steps backwards": _negative,
    "array that may not be written to": lambda value: np.broadcast_to(np.float32(_parity(value)), (3, 2)),
    "array of big-endian numbers": lambda value: np.asarray(value).astype(">f4"),
    "another size": lambda value: torch.as_tensor(value).reshape(-1)[: 9 + _parity(value)],
    "another dtype": lambda value: torch.as_tensor(value).to(torch.float64 if _parity(value) else torch.float32),
    "now an array, now a tensor": lambda value: torch.as_tensor(value) if _parity(value) else np.asarray(value),
    "a number as a tensor": lambda value: torch.as_tensor(value).sum(),
    "a number as an array": lambda value: np.array(float(value.sum()), np.float32),
    "a number of NumPy's": lambda value: np.float32(float(value.sum())),
    "nothing in it": lambda _: torch.zeros(0, 3),
    "bfloat16": lambda value: torch.as_tensor(value).bfloat16(),
    "boolean": lambda value: torch.as_tensor(value) > 0,
    "conjugate": lambda value: torch.complex(torch.as_tensor(value), torch.as_tensor(value)).conj(),
    "transposed": lambda value: torch.as_tensor(value).transpose(0, 2),
    "expanded": lambda value: torch.as_tensor(value).sum().expand(2, 3),
    "with a gradient": lambda value: torch.as_tensor(value).clone().requires_grad_(),
    "sparse": lambda value: torch.as_tensor(value)[0].to_sparse(),
    "dict": lambda value: {"a": torch.as_tensor(value), "b": np.asarray(value)[0], "c": "text", "d": 3},
    "tuple": lambda value: (torch.as_tensor(value), 1.5, [torch.ones(2)]),
    "the same twice": lambda value: (value, value),
    "picture": lambda value: Image.new("RGB", (4, 4), (_parity(value), 2, 3)),
    "text": lambda value: f"{_parity(value)}",
    "None": lambda _: None,
    "bytes": lambda _: b"123" * 20_000,
}
SETTINGS = {
    "as torch does": {},
    "as arrays": {"output": "numpy"},
    "one by one": {"collate_fn": list},
    "with more": {
        "columns": ("id",),
        "target_transform": lambda label: {"y": torch.tensor([label]), "z": (label, "t")},
    },
}


def _described(value):
    """Return all that a user could see of a value."""
    if isinstance(value, torch.Tensor):
        dense = value.detach().to_dense() if value.is_sparse else value.detach().resolve_conj()
        numbers = dense.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes() if dense.numel() else b""
        return type(value), value.dtype, tuple(value.shape), value.requires_grad, numbers
    if isinstance(value, np.ndarray):
        return type(value), value.dtype.str, value.shape, value.tobytes()  # what came from elsewhere may be written to
    if isinstance(value, dict):
        return {name: _described(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return type(value), [_described(part) for part in value]
    if isinstance(value, Image.Image):
        return value.mode, value.size, value.tobytes()
    return type(value), value


def _outcome(loader):
    """Return all batches, or the error that there is instead."""
    try:
        return [_described(batch) for batch in loader]
    except Exception as error:  # noqa: BLE001 - default_collate raises various ones
        return type(error), str(error)


@pytest.mark.parametrize("what", RESULTS)
@pytest.mark.parametrize(
    "setting", [pytest.param(s, marks=pytest.mark.slow if s != "one by one" else ()) for s in SETTINGS]
)
@pytest.mark.matrix(every=5)
def test_results_of_every_kind_are_batched_as_one_thread_batches_them(images, what, setting):
    settings = {**SETTINGS[setting], "batch_size": 3, "drop_last": True}
    expected = _outcome(_loader(images, RESULTS[what], workers=0, **settings))
    assert _outcome(_loader(images, RESULTS[what], **settings)) == expected


@pytest.mark.slow
@pytest.mark.parametrize("what", ["tensor", "array", "a number as an array", "another size", "dict"])
def test_results_of_every_kind_are_batched_in_relaxed_order_too(images, what):
    settings = {"batch_size": 23, "collate_fn": None}
    try:
        ((value, _),) = list(_loader(images, RESULTS[what], workers=0, **settings))
    except RuntimeError:  # of sizes that cannot be stacked
        with pytest.raises(RuntimeError, match=r"equal size|resize"):
            list(_loader(images, RESULTS[what], order="relaxed", **settings))
        return
    ((relaxed, _),) = list(_loader(images, RESULTS[what], order="relaxed", **settings))
    value, relaxed = (part["a"] if isinstance(part, dict) else part for part in (value, relaxed))
    assert sorted(map(_digest, relaxed)) == sorted(map(_digest, value))


def _digest(tensor):
    return tensor.numpy().tobytes()


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize(
    "what",
    ["dict", *(pytest.param(w, marks=pytest.mark.slow) for w in ("array", "a number as a tensor", "another size"))],
)
@pytest.mark.matrix(every=2)
def test_results_of_most_kinds_are_batched_in_every_way(images, what, setting):
    test_results_of_every_kind_are_batched_as_one_thread_batches_them(images, what, setting)


def test_what_cannot_be_sent_is_an_error_that_says_so(images):
    with pytest.raises(TypeError, match="cannot pickle") as caught:
        list(_loader(images, lambda value: (one for one in value) if _is_worker() else None))
    assert any("cannot be sent from a worker process" in note for note in caught.value.__notes__)


def _unreadable():
    if not _is_worker():
        raise RuntimeError("not here")
    return 1


class _Unreadable:
    def __reduce__(self):
        return _unreadable, ()


def test_what_cannot_be_read_is_an_error_of_its_sample_or_batch(images):
    loader = _loader(images, target_transform=lambda _: _Unreadable(), on_error="skip", budget=1)
    with pytest.raises(sophon.BudgetError, match="not here"):
        list(loader)
    with pytest.raises(RuntimeError, match="not here"):
        list(_loader(images, collate_fn=lambda _: _Unreadable()))


def test_a_worker_sees_the_users_objects_as_they_are_when_an_epoch_begins(images):
    seen = {"epoch": 0}
    loader = _loader(images, target_transform=lambda _: seen["epoch"])
    for epoch in range(3):
        seen["epoch"] = epoch
        assert {int(label) for _, labels in loader for label in labels} == {epoch}


def test_the_global_generators_of_the_training_loop_are_not_touched(images):
    def step(value):
        return value + random.random() + np.random.rand() + torch.rand(1)

    before = random.getstate(), str(np.random.get_state()), torch.get_rng_state()
    list(_loader(images, step, collate_fn=collate))
    assert random.getstate() == before[0]
    assert str(np.random.get_state()) == before[1]
    assert torch.equal(torch.get_rng_state(), before[2])


# --- memory -----------------------------------------------------------------------------------------------------------


def test_batches_that_are_kept_never_change_while_others_are_made_and_freed(images):
    loader = _loader(images, buffer_bytes=500_000)
    holders = [lambda x: x[2], lambda x: x.numpy()[1:], lambda x: x.view(-1)[7:], memoryview, lambda x: x.unbind()[0]]
    kept = []
    for epoch in range(4):
        for number, (batch, _) in enumerate(loader):
            hold = holders[(number + epoch) % len(holders)]
            part = hold(batch.numpy()) if hold is memoryview else hold(batch)
            kept.append((part, np.asarray(part).copy()))
            del part
    for part, copy in kept:
        assert np.array_equal(np.asarray(part), copy)


def test_a_batch_that_a_forked_child_holds_does_not_change(images):
    batches = iter(_loader(images, buffer_bytes=300_000))
    for _ in range(3):
        batch, _ = next(batches)
    copy = batch.clone()
    there, go = os.pipe()
    pid = os.fork()
    if pid == 0:  # pragma: no cover - the child
        os.read(there, 1)
        os._exit(0 if torch.equal(batch, copy) else 1)
    del batch
    list(batches)
    os.write(go, b"!")
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    for file in (there, go):
        os.close(file)


@pytest.mark.parametrize(
    "settings",
    [{}, *(pytest.param(more, marks=pytest.mark.slow) for more in ({"collate_fn": collate}, {"output": "numpy"}))],
)
def test_thousands_of_batches_may_be_kept_by_who_may_open_few_files(images, settings):
    loader = _loader(images, batch_size=2, persistent_workers=True, **settings)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(open_files()) + 160, hard))
    try:
        kept = [batch for _ in range(30) for batch in loader]
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert len(kept) == 360


def _mapped():
    return Path("/proc/self/maps").read_text().count("memfd:sophon")


def test_many_small_batches_that_wait_to_be_taken_take_no_shared_memory(images):
    before = _mapped()
    batches = iter(_loader(images, lambda _: torch.zeros(3), batch_size=1))
    next(batches)
    (engine,) = sophon.loader.epoch.leaving.running
    wait_until(lambda: engine._machine.ready >= 23)
    mapped = _mapped() - before
    batches.close()
    assert mapped == 0


def test_what_a_dict_holds_counts_against_the_bytes_that_are_read_ahead(images):
    dataset = _loader(images, lambda value: {"big": torch.zeros(1_000_000), "first": value[0]}).dataset
    ((_, reply),) = dataset.samples.fetch(0, [0], dataset.stats)
    workers = Workers(1, None, dataset.finishing, None, 1 << 20)
    made = workers[0].make(reply, Key(0, 0, 0), None, wants_trace=False)
    workers.close()
    assert 4_000_000 < made.size_bytes < 4_100_000


def test_sparse_tensors_are_samples_like_others(images):
    for workers in (0, 2):
        assert len(list(_loader(images, RESULTS["sparse"], workers=workers, collate_fn=list))) == 6


# --- ways to start, and company ---------------------------------------------------------------------------------------


def _double(value):
    return torch.as_tensor(value) * 2


@pytest.mark.slow
@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_workers_that_are_started_anew_give_the_same_batches(images, method):
    loader = _loader(images, _double, collate_fn=collate, multiprocessing_context=method)
    assert digest(loader) == digest(_loader(images, _double, workers=0, collate_fn=collate))


@pytest.mark.parametrize(
    "settings", [{}, {"target_transform": lambda label: label}, {"collate_fn": lambda items: items}]
)
def test_a_lambda_that_would_have_to_be_pickled_is_an_error_with_a_remedy(images, settings):
    step = _same if settings else lambda value: value
    loader = _loader(images, step, multiprocessing_context="forkserver", **settings)
    with pytest.raises(sophon.ConfigError, match="Define it at the top level of a module"):
        list(loader)


def test_an_epoch_for_validation_in_the_middle_of_one_for_training(images):
    expected = digest(_loader(images, workers=0))
    training = _loader(images, persistent_workers=True)
    batches = []
    for number, batch in enumerate(training):
        batches.append(batch)
        if number in (1, 3):
            assert digest(_loader(images)) == expected
    assert digest(batches) == expected


def test_two_loaders_in_two_threads(images):
    expected, found = digest(_loader(images, workers=0)), []
    threads = [threading.Thread(target=lambda: found.append(digest(_loader(images)))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [expected] * 3


@pytest.mark.parametrize("policy", ["substitute", "skip"])
def test_bad_samples_are_mended_as_one_thread_mends_them(images, policy):
    def step(value):
        if _parity(value):
            raise ValueError("odd")
        return torch.as_tensor(value) + 0

    settings = {"on_error": policy, "budget": 23}
    expected = _outcome(_loader(images, step, workers=0, **settings))
    loader = _loader(images, step, **settings)
    assert _outcome(loader) == expected
    assert len(loader.bad_samples) > 3
    with_own = _loader(images, step, collate_fn=collate, **settings)
    assert _outcome(with_own) == _outcome(_loader(images, step, workers=0, collate_fn=collate, **settings))


def test_an_epoch_begun_by_processes_goes_on_with_another_number_and_kind_of_workers(images):
    whole = [_described(batch) for batch in _loader(images, workers=0, shuffle=True)]
    loader = _loader(images, shuffle=True)
    batches = iter(loader)
    got = [_described(next(batches)) for _ in range(2)]
    state = loader.state_dict()
    batches.close()
    for workers in (1, 0, 3):
        other = _loader(images, workers=workers, shuffle=True)
        other.load_state_dict(state)
        assert got + [_described(batch) for batch in other] == whole


def test_a_relaxed_epoch_of_processes_is_replayed_by_one_thread(images):
    loader = _loader(images, order="relaxed", shuffle=True)
    batches = [_described(batch) for batch in loader]
    again = _loader(images, workers=0, shuffle=True, order=sophon.Replay(loader.log))
    assert [_described(batch) for batch in again] == batches


def test_batches_are_pinned_for_the_device_of_the_consumer_and_not_in_its_thread(images, monkeypatch):
    device = threading.local()
    pinned = []

    def pin(tensor):
        pinned.append((getattr(device, "index", 0), threading.current_thread()))
        return tensor

    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(torch.accelerator, "current_device_index", lambda: getattr(device, "index", 0))
    monkeypatch.setattr(torch.accelerator, "set_device_index", lambda index: setattr(device, "index", index))
    monkeypatch.setattr(torch.Tensor, "pin_memory", pin)
    torch.accelerator.set_device_index(5)
    assert len(list(_loader(images, pin_memory=True))) == 6
    assert len(pinned) == 12
    assert {index for index, _ in pinned} == {5}
    assert threading.current_thread() not in {thread for _, thread in pinned}


def test_a_consumer_that_turns_to_another_device_keeps_it_when_a_batch_is_mended_and_pinned(images, monkeypatch):
    turned = []
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(torch.accelerator, "current_device_index", lambda: 5)
    monkeypatch.setattr(torch.accelerator, "set_device_index", lambda _: turned.append(threading.current_thread().name))
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: tensor)

    def step(value):
        if _parity(value):
            raise ValueError("odd")
        return torch.as_tensor(value) + 0

    list(_loader(images, step, pin_memory=True, on_error="skip", budget=23))
    assert threading.current_thread().name not in turned
