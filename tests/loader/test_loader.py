"""The loader as its users meet it: arguments, what batches hold, what it counts, what it leaves behind."""

import gc
import math
import os
import threading
import time
import warnings

import pytest
import torch

import sophon
from sophon.errors import ConfigError, OpError, StoreError
from sophon.pipeline import Pipeline, ops
from tests.support.servers import RECIPE, digest, make_images, serve
from tests.support.settings import grouped


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
        server.url,
        RECIPE,
        batch_size=41,
        target_transform=lambda label: label * 10,
        num_workers=1,
        output=sophon.Output(columns=("id",)),
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
    def collate(samples):
        return len(samples), {(type(value), type(label)) for value, label in samples}

    loader = sophon.DataLoader(server.url, RECIPE, batch_size=10, collate_fn=collate, num_workers=2)
    assert list(loader) == [(count, {(torch.Tensor, int)}) for count in (10, 10, 10, 10, 1)]


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
    loader = sophon.DataLoader(server.url, RECIPE, batch_size=4, num_workers=sophon.Workers(2, buffer_bytes=1))
    assert [len(batch[1]) for batch in loader] == [4] * 10 + [1]


def test_batches_have_the_same_types_in_threads_and_processes(tmp_path):
    folder = make_images(tmp_path / "train", 6)
    kinds = []
    for settings in ({}, {"num_workers": 1}, {"num_workers": 1, "kind": "processes"}):
        loader = sophon.DataLoader(
            folder,
            RECIPE,
            **grouped(batch_size=6, target_transform=_is_first, output=sophon.Output(columns=("id",)), **settings),
        )
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
            words = r"sample 3, op 0 \(Decode\): class_0/0003\.jpg: the file is not an image"
            with pytest.raises(OpError, match=words):
                list(sophon.DataLoader(server.url, RECIPE, batch_size=6, policy=policy))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda url: sophon.DataLoader(url.rsplit("/", 1)[0] + "/nowhere", RECIPE),
            "no data set 'nowhere' here; available: data",
        ),
        (lambda _: sophon.DataLoader("grpc://host/data", RECIPE), "expected an address like grpc://host:port/dataset"),
        (
            lambda _: sophon.DataLoader("ftp://host:1/data", RECIPE),
            "ftp:// is not a known kind of address; expected grpc://, grpc+tls://, an object store",
        ),
        (
            lambda url: sophon.DataLoader(url, RECIPE, batch_size=0),
            "batch_size: expected an integer of at least 1, got 0",
        ),
        (lambda url: sophon.DataLoader(url, RECIPE, num_workers=-1), "num_workers: expected an integer of at least 0"),
        (
            lambda url: sophon.DataLoader(url, RECIPE, policy="best"),
            "expected policy none, all, resize, fastflow, sophon, optimal, band or a cut",
        ),
        (lambda url: sophon.DataLoader(url, RECIPE, policy="7:raw"), "the pipeline cannot be cut at 7:raw"),
        (
            lambda url: sophon.DataLoader(url, RECIPE, policy=["0:raw"] * 3),
            "the plan is for 3 samples, the data set has 41",
        ),
        (lambda url: sophon.DataLoader(url, RECIPE, output=sophon.Output(columns=("size",))), "no column 'size'"),
        (sophon.DataLoader, "expected a Pipeline or a torchvision transform, got None; the simplest one is ToTensor"),
        (
            lambda url: sophon.DataLoader(url, RECIPE, num_workers=sophon.Workers(0, kind="fibers")),
            "expected threads or processes",
        ),
        (lambda url: sophon.DataLoader(url, RECIPE, faults=sophon.Faults(deadline_s=0)), "deadline_s"),
        (lambda url: sophon.DataLoader(url, RECIPE, faults=sophon.Faults(deadline_s=math.nan)), "deadline_s"),
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
    loader = sophon.DataLoader(server.url, RECIPE, batch_size=4, num_workers=sophon.Workers(1, buffer_bytes=1))
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


def test_an_iterator_that_is_dropped_before_its_first_batch_uses_up_no_epoch(images):
    """Lightning asks for one when it looks whether a loader can be iterated over."""
    loader = sophon.DataLoader(images, RECIPE, batch_size=4, shuffle=True)
    iter(loader)
    iter(loader)
    assert digest(loader) == digest(sophon.DataLoader(images, RECIPE, batch_size=4, shuffle=True))
    assert loader.epoch == 1
    begun = iter(loader)
    next(begun)
    state = loader.state_dict()
    del begun
    iter(loader)
    assert loader.epoch == 3  # one of which something was taken counts
    loader.load_state_dict(state)
    iter(loader)
    rest = digest(loader)
    again = sophon.DataLoader(images, RECIPE, batch_size=4, shuffle=True)
    again.load_state_dict(state)
    assert digest(again) == rest
    one, two = iter(again), iter(again)
    next(two)
    next(one)
    assert again.epoch == 4  # both are held
    one.close()
    two.close()
