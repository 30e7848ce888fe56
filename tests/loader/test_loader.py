"""Invariant 1 for whole epochs: the sequence of batches depends on data, pipeline, batch size, seed and epoch only."""

import gc
import os
import signal
import threading
import time
import warnings

import numpy as np
import pytest
import torch
from torch.utils.data import BatchSampler
from torch.utils.data import DataLoader as TorchDataLoader

import sophon
from sophon.errors import ConfigError, OpError, RetryableError, StoreError
from sophon.loader.cuts import OffloadWarning
from sophon.loader.order import epoch_order
from sophon.pipeline import Key, Pipeline, ops
from tests.support.servers import RECIPE, digest, make_images, serve


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    return make_images(tmp_path_factory.mktemp("data") / "train", 41)


@pytest.fixture(scope="module")
def server(images):
    with serve(images, cores=2) as running:
        yield running


@pytest.fixture(scope="module")
def expected(images):
    """Two epochs, computed the plain way: no loader, no server, one sample after the other."""
    store = sophon.open_store(images)
    batches = []
    for epoch in range(2):
        samples = epoch_order(len(store), 5, epoch, shuffle=True)
        for start in range(0, len(samples), 8):
            part = samples[start : start + 8].tolist()
            tensors = [RECIPE.run(store.read(i), Key(5, epoch, i)) for i in part]
            batches.append(
                (torch.from_numpy(np.stack(tensors)), torch.tensor([int(store.manifest.labels[i]) for i in part]))
            )
    return digest(batches)


def _two_epochs(loader):
    return digest(batch for _ in range(2) for batch in loader)


def _random_plan(count):
    cuts = [str(cut) for cut in sophon.legal_cuts(RECIPE)]
    return [cuts[i] for i in np.random.default_rng(3).integers(0, len(cuts), count)]


POLICIES = {
    "none": {"policy": "none"},
    "all": {"policy": "all"},
    "resize": {"policy": "resize"},
    "random plan": {"plan": _random_plan(41)},
}


@pytest.mark.parametrize("workers", [0, 1, 2, 4])
@pytest.mark.parametrize("policy", POLICIES)
def test_same_batches_for_every_policy_and_number_of_threads(server, expected, policy, workers):
    loader = sophon.DataLoader(
        server.url, RECIPE, batch_size=8, shuffle=True, seed=5, num_workers=workers, **POLICIES[policy]
    )
    assert _two_epochs(loader) == expected
    assert loader.stats.samples == 82
    # No window can be cut from a PNG: the random plan asks for some, and gets the raw file.
    assert (loader.stats.smaller_cuts > 0) == (policy == "random plan")


@pytest.mark.filterwarnings("ignore:This DataLoader will create")  # four workers are more than this machine has cores
@pytest.mark.parametrize("start", ["fork", "spawn"])
@pytest.mark.parametrize(("policy", "workers"), [("none", 1), ("resize", 2), ("random plan", 4), ("all", 2)])
def test_same_batches_for_worker_processes(server, expected, policy, workers, start):
    if start == "spawn" and policy in ("none", "all"):
        pytest.skip("spawned workers take seconds to start; two policies are enough")
    loader = sophon.DataLoader(
        server.url,
        RECIPE,
        batch_size=8,
        shuffle=True,
        seed=5,
        num_workers=workers,
        workers="processes",
        multiprocessing_context=start,
        persistent_workers=start == "spawn",  # they take seconds to start
        **POLICIES[policy],
    )
    assert _two_epochs(loader) == expected


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_same_batches_under_torchs_own_loader(server, expected, workers, start):
    dataset = sophon.RemoteDataset(server.url, RECIPE, seed=5, **POLICIES["random plan"])
    sampler = sophon.EpochSampler(dataset, shuffle=True, seed=5)
    context = start if workers else None
    loader = TorchDataLoader(
        dataset,
        batch_sampler=BatchSampler(sampler, 8, False),
        num_workers=workers,
        multiprocessing_context=context,
        persistent_workers=context == "spawn",
    )
    assert _two_epochs(loader) == expected


def test_same_samples_under_torchs_own_loader_with_plain_indexes_and_set_epoch(server, images):
    dataset = sophon.RemoteDataset(server.url, RECIPE, seed=5)
    for epoch in (0, 3):
        dataset.set_epoch(epoch)
        loader = TorchDataLoader(dataset, batch_size=7, num_workers=2, persistent_workers=True)
        local = sophon.DataLoader(images, RECIPE, batch_size=7, seed=5)
        local.set_epoch(epoch)
        assert digest(loader) == digest(local)


def test_persistent_workers_learn_of_the_epoch(server, images):
    dataset = sophon.RemoteDataset(server.url, RECIPE, seed=5)
    loader = TorchDataLoader(dataset, batch_size=7, num_workers=1, persistent_workers=True)
    for epoch in range(2):
        dataset.set_epoch(epoch)
        local = sophon.DataLoader(images, RECIPE, batch_size=7, seed=5)
        local.set_epoch(epoch)
        assert digest(loader) == digest(local)


@pytest.mark.parametrize("workers", [0, 2])
def test_same_batches_in_local_mode(images, expected, workers):
    assert _two_epochs(sophon.DataLoader(images, RECIPE, 8, True, workers, seed=5)) == expected


def test_every_epoch_has_another_order_and_other_crops(images):
    loader = sophon.DataLoader(images, RECIPE, batch_size=41, shuffle=True, seed=1)
    (one,), (two,) = list(loader), list(loader)
    assert not torch.equal(one[1], two[1])
    assert sorted(one[1].tolist()) == sorted(two[1].tolist())
    loader.set_epoch(0)
    (again,) = list(loader)
    assert digest([again]) == digest([one])


def test_torchvision_transforms_are_taken_as_they_are(server):
    from tests.support.torchvision_import import import_torchvision

    transforms = import_torchvision().transforms
    recipe = transforms.Compose(
        [transforms.RandomResizedCrop(48), transforms.RandomHorizontalFlip(), transforms.ToTensor()]
    )
    images, labels = next(iter(sophon.DataLoader(server.url, recipe, batch_size=4, policy="resize")))
    assert images.shape == (4, 3, 48, 48)
    assert labels.dtype == torch.int64


def test_drop_last_and_length(images):
    assert len(sophon.DataLoader(images, RECIPE, batch_size=8)) == 6
    loader = sophon.DataLoader(images, RECIPE, batch_size=8, drop_last=True, num_workers=2)
    assert [len(batch[1]) for batch in loader] == [8] * 5 == [8] * len(loader)


def test_labels_classes_ids_and_target_transform(server, images):
    loader = sophon.DataLoader(
        server.url, RECIPE, batch_size=41, columns=("id",), target_transform=lambda label: label * 10, num_workers=1
    )
    ((_, labels, columns),) = list(loader)
    assert loader.dataset.classes == ("class_0", "class_1", "class_2")
    for label, name in zip(labels.tolist(), columns["id"], strict=True):
        assert label == 10 * int(name.split("/")[0].removeprefix("class_"))
    assert len(set(columns["id"])) == 41


def test_a_data_set_without_labels_gives_pictures_only(tmp_path):
    folder = make_images(tmp_path / "flat", 5, classes=0)
    (batch,) = list(sophon.DataLoader(folder, RECIPE, batch_size=5))
    assert isinstance(batch, torch.Tensor)
    assert batch.shape == (5, 3, 48, 48)


def test_collate_fn_gets_the_samples_one_by_one(server):
    seen = []

    def collate(samples):
        seen.extend(samples)
        return len(samples)

    loader = sophon.DataLoader(server.url, RECIPE, batch_size=10, collate_fn=collate, num_workers=2)
    assert list(loader) == [10, 10, 10, 10, 1]
    assert isinstance(seen[0][0], torch.Tensor)
    assert isinstance(seen[0][1], int)


def test_pipelines_that_end_in_something_else_than_a_tensor_of_fixed_size_work_too(images):
    pictures = Pipeline([ops.Decode(), ops.CenterCrop(8)])
    loader = sophon.DataLoader(images, pictures, batch_size=2, collate_fn=lambda samples: samples)
    assert next(iter(loader))[0][0].size == (8, 8)
    odd = Pipeline([ops.Decode(), ops.ToTensor()])
    loader = sophon.DataLoader(images, odd, batch_size=2, collate_fn=lambda samples: samples, num_workers=2)
    assert next(iter(loader))[0][0].ndim == 3


def test_stats_count_bytes_cuts_and_time(server):
    loader = sophon.DataLoader(server.url, RECIPE, batch_size=8, policy="resize", num_workers=1)
    for _ in loader:
        time.sleep(0.002)
    stats = loader.stats.to_dict()
    assert stats["cuts"] == {"2:raw": 41}
    assert stats["link_bytes"] == 41 * (16 + 48 * 48 * 3)
    assert stats["storage_cpu_s"] > 0
    assert stats["finish_cpu_s"] > 0
    assert stats["consumer_s"] >= 6 * 0.002


def test_a_loader_dropped_half_way_leaves_nothing_behind(server):
    threads, files = threading.active_count(), len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    for _ in range(3):
        for batch in sophon.DataLoader(server.url, RECIPE, batch_size=4, num_workers=2):
            assert len(batch) == 2
            break
    gc.collect()
    assert threading.active_count() <= threads
    assert len(os.listdir("/proc/self/fd")) <= files + 8  # noqa: PTH208 - gRPC keeps a few for the next connection


def test_an_exception_in_the_training_loop_leaves_nothing_behind(server):
    def train():
        for _ in sophon.DataLoader(server.url, RECIPE, batch_size=4, num_workers=2):
            raise KeyError("a bug of the user's")

    with pytest.raises(KeyError):
        train()


def test_the_buffer_is_bounded(server):
    loader = sophon.DataLoader(server.url, RECIPE, batch_size=4, num_workers=2, buffer_bytes=1)
    assert [len(batch[1]) for batch in loader] == [4] * 10 + [1]


# --- faults -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("policy", ["none", "resize"])
def test_a_server_killed_and_started_again_in_the_middle_of_an_epoch_changes_nothing(images, policy, workers, expected):
    with serve(images) as server:
        loader = sophon.DataLoader(
            server.url,
            RECIPE,
            batch_size=8,
            shuffle=True,
            seed=5,
            num_workers=workers,
            policy=policy,
            buffer_bytes=1 << 16,
        )
        batches = []
        for epoch in range(2):
            for number, batch in enumerate(loader):
                batches.append(batch)
                if (epoch, number) == (0, 1):
                    server.kill()
                    threading.Timer(0.3, server.start).start()
        assert digest(batches) == expected
        assert loader.stats.samples == 82


def test_a_server_gone_for_good_is_an_error_within_the_deadline_that_says_what_to_do(images):
    with serve(images) as server:
        loader = sophon.DataLoader(server.url, RECIPE, batch_size=4, num_workers=1, deadline_s=1.5, buffer_bytes=1)
        batches = iter(loader)
        next(batches)
        server.kill()
        start_s = time.monotonic()
        with pytest.raises(RetryableError) as caught:
            for _ in batches:
                pass
    assert time.monotonic() - start_s < 1.5 + 3
    text = str(caught.value)
    assert server.url in text
    assert "tries" in text
    assert "Is `sophon serve` running there" in text
    assert "deadline_s" in text


def test_a_server_that_never_was_is_an_error_within_the_deadline():
    start_s = time.monotonic()
    with pytest.raises(RetryableError, match=r"tries.*grpc://127\.0\.0\.1:1/data.*Is `sophon serve` running"):
        sophon.DataLoader("grpc://127.0.0.1:1/data", RECIPE, deadline_s=1.0)
    assert 1.0 <= time.monotonic() - start_s < 4.0


def test_a_trainer_may_start_before_its_server(images):
    with serve(images) as server:
        pass  # its port is known and free now
    starter = threading.Timer(0.5, server.start)
    starter.start()
    try:
        assert len(sophon.DataLoader(server.url, RECIPE, batch_size=41)) == 1
    finally:
        starter.join()
        server.stop()


def test_a_stopped_server_is_waited_for(images, expected):
    with serve(images) as server:
        loader = sophon.DataLoader(server.url, RECIPE, 8, True, 2, seed=5, buffer_bytes=1 << 16)
        batches = []
        for _ in range(2):
            for batch in loader:
                batches.append(batch)
                if len(batches) == 2:
                    os.kill(server.pid, signal.SIGSTOP)
                    threading.Timer(0.5, os.kill, (server.pid, signal.SIGCONT)).start()
    assert digest(batches) == expected


def test_sigterm_ends_what_is_under_way_and_then_the_server(images):
    server = serve(images).start()
    loader = sophon.DataLoader(server.url, RECIPE, batch_size=41, num_workers=1)
    assert len(list(loader)) == 1
    assert server.stop() == 0


@pytest.mark.parametrize("workers", [0, 2])
def test_a_server_that_falls_silent_is_an_error_within_the_deadline(images, workers):
    with serve(images) as server:
        loader = sophon.DataLoader(server.url, RECIPE, 4, num_workers=workers, deadline_s=1.5, buffer_bytes=1)
        batches = iter(loader)
        next(batches)
        os.kill(server.pid, signal.SIGSTOP)
        start_s = time.monotonic()
        try:
            with pytest.raises(RetryableError, match="no answer for"):
                list(batches)
        finally:
            os.kill(server.pid, signal.SIGCONT)
        assert time.monotonic() - start_s < 1.5 + 4


def test_a_server_with_a_client_that_does_not_read_still_ends(images):
    server = serve(images).start()
    loader = sophon.DataLoader(server.url, RECIPE, batch_size=2, num_workers=1, buffer_bytes=1)
    batches = iter(loader)
    next(batches)
    assert server.stop() in (0, 1)
    del batches


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("where", ["server", "local"])
def test_the_window_policy_sends_windows(server, images, where, workers):
    url = server.url if where == "server" else str(images)
    loader = sophon.DataLoader(url, RECIPE, batch_size=8, num_workers=workers, policy="0:window")
    plain = sophon.DataLoader(images, RECIPE, batch_size=8)
    with pytest.warns(OffloadWarning, match="samples as raw files instead of making the cut"):
        assert digest(loader) == digest(plain)
    assert loader.stats.cuts["0:window"] > 10
    assert loader.stats.cuts["0:window"] + loader.stats.cuts["0:raw"] == 41


def _noisy(tensor):
    return tensor + torch.rand(1)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_callable_and_a_training_loop_that_both_draw_do_not_disturb_each_other(images, workers):
    pipeline = Pipeline([*RECIPE.ops, _noisy])
    torch.manual_seed(3)
    batches, drawn = [], []
    for batch in sophon.DataLoader(images, pipeline, batch_size=4, num_workers=workers):
        batches.append(batch)
        drawn += [torch.rand(1).item() for _ in range(50)]
    torch.manual_seed(3)
    assert drawn == [torch.rand(1).item() for _ in range(len(drawn))]
    store = sophon.open_store(images)
    expected = [pipeline.run(store.read(i), Key(0, 0, i)) for i in range(4)]
    assert batches[0][0].numpy().tobytes() == np.stack(expected).tobytes()


def test_batches_have_the_same_types_in_threads_and_processes(tmp_path):
    folder = make_images(tmp_path / "train", 6)
    kinds = []
    for settings in ({}, {"num_workers": 1}, {"num_workers": 1, "workers": "processes"}):
        loader = sophon.DataLoader(folder, RECIPE, 6, columns=("id",), target_transform=_is_first, **settings)
        ((images, labels, columns),) = list(loader)
        kinds.append((images.dtype, labels.dtype, {name: type(values) for name, values in columns.items()}))
    assert kinds[0] == kinds[1] == kinds[2]


def _is_first(label):
    return label == 0


def test_a_sample_deleted_under_the_server_is_a_typed_error_and_the_server_lives_on(tmp_path):
    folder = make_images(tmp_path / "train", 6)
    with serve(folder) as server:
        victim = sorted(folder.rglob("*.*"))[2]
        victim.unlink()
        for policy in ("none", "resize"):
            loader = sophon.DataLoader(server.url, RECIPE, batch_size=2, policy=policy, num_workers=1)
            batches = iter(loader)
            assert len(next(batches)[1]) == 2
            with pytest.raises(StoreError, match=victim.name):
                next(batches)
        assert len(sophon.RemoteDataset(server.url, RECIPE)[5][0]) == 3


def test_a_corrupt_sample_names_its_op_and_index_wherever_it_was_to_be_decoded(tmp_path):
    folder = make_images(tmp_path / "train", 6, classes=1)
    (folder / "class_0" / "0003.jpg").write_bytes(b"\xff\xd8\xff not a picture")
    with serve(folder) as server:
        for policy in ("none", "resize"):
            with pytest.raises(OpError, match=r"sample 3, op 0 \(Decode\): class_0/0003\.jpg: not an image"):
                list(sophon.DataLoader(server.url, RECIPE, batch_size=6, policy=policy))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda url: sophon.DataLoader(url.rsplit("/", 1)[0] + "/nowhere", RECIPE),
            "no data set 'nowhere' here; there is data",
        ),
        (lambda _: sophon.DataLoader("grpc://host/data", RECIPE), "expected an address as grpc://host:port/dataset"),
        (
            lambda _: sophon.DataLoader("http://host:1/data", RECIPE),
            "expected an address as grpc://host:port/dataset",
        ),
        (
            lambda url: sophon.DataLoader(url, RECIPE, batch_size=0),
            "batch_size: expected an integer of at least 1, got 0",
        ),
        (lambda url: sophon.DataLoader(url, RECIPE, num_workers=-1), "num_workers: expected an integer of at least 0"),
        (
            lambda url: sophon.DataLoader(url, RECIPE, policy="best"),
            "expected policy none, all, resize, fastflow, sophon, optimal or a cut",
        ),
        (lambda url: sophon.DataLoader(url, RECIPE, policy="7:raw"), "the pipeline cannot be cut at 7:raw"),
        (
            lambda url: sophon.DataLoader(url, RECIPE, plan=["0:raw"] * 3),
            "the plan is for 3 samples, the data set has 41",
        ),
        (lambda url: sophon.DataLoader(url, RECIPE, columns=("size",)), "no column 'size'"),
        (sophon.DataLoader, "expected a Pipeline or a torchvision transform"),
        (lambda url: sophon.DataLoader(url, RECIPE, workers="fibers"), "expected threads or processes"),
        (lambda url: sophon.DataLoader(url, RECIPE, deadline_s=0), "deadline_s"),
        (lambda url: sophon.DataLoader(sophon.RemoteDataset(url, RECIPE), RECIPE), "has its own pipeline"),
        (lambda url: sophon.RemoteDataset(url, RECIPE, seed=-1), "seed must be an integer"),
    ],
)
def test_wrong_arguments_are_refused_with_a_remedy(server, make, message):
    with pytest.raises(ConfigError) as caught:
        make(server.url)
    assert message in str(caught.value)


def test_an_index_outside_the_data_set_is_an_index_error(server):
    dataset = sophon.RemoteDataset(server.url, RECIPE)
    assert torch.equal(dataset[-1][0], dataset[40][0])
    with pytest.raises(IndexError, match="has 41 samples; there is no sample 41"):
        dataset[41]


def test_pin_memory_without_an_accelerator_is_a_warning(images):
    if torch.accelerator.is_available():
        pytest.skip("there is an accelerator here")
    with pytest.warns(UserWarning, match="batches are not pinned"):
        sophon.DataLoader(images, RECIPE, pin_memory=True)


def test_a_child_forked_while_replies_stream_is_told_so(server):
    loader = sophon.DataLoader(server.url, RECIPE, batch_size=4, num_workers=1, buffer_bytes=1)
    dataset = loader.dataset
    with dataset.transport._connection(), warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        pid = os.fork()
        if pid == 0:  # pragma: no cover - the child
            try:
                dataset[0]
            except sophon.TransportError as error:
                os._exit(0 if "forked while" in str(error) else 2)
            os._exit(1)
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 0
