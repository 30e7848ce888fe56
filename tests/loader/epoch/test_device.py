"""Batches that are finished on a device have the bits of those that are finished on the host; here it is the CPU."""

import numpy as np
import pytest
import torch

from sophon import DataLoader, LocalServer, Output, Pipeline, RemoteDataset, ops
from sophon.errors import ConfigError
from sophon.loader.epoch.device import Device, divided
from sophon.pipeline import Key
from tests.support.pictures import encode, scene

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
CROP = [ops.Decode(), ops.RandomResizedCrop(24), ops.RandomHorizontalFlip()]
# What ends with a table, and what does not.
DIVIDED = {
    "totensor normalize": [*CROP, ops.ToTensor(), ops.Normalize(MEAN, STD)],
    "one mean": [*CROP, ops.ToTensor(), ops.Normalize((0.5,), (0.25,))],
    "totensor": [*CROP, ops.ToTensor()],
    "v2": [*CROP, ops.PILToTensor(), ops.ToFloat("multiply"), ops.Normalize(MEAN, STD)],
    "gray": [ops.Decode("L"), ops.Resize(30), ops.CenterCrop(24), ops.ToTensor(), ops.Normalize((0.4,), (0.3,))],
    "jitter": [*CROP, ops.ColorJitter(0.4, 0.4, 0.4), ops.ToTensor(), ops.Normalize(MEAN, STD)],
}
WHOLE = {
    "erasing": [*CROP, ops.ToTensor(), ops.Normalize(MEAN, STD), ops.RandomErasing(1.0)],
    "bytes": [*CROP, ops.PILToTensor()],
    "own step": [*CROP, ops.ToTensor(), ops.Normalize(MEAN, STD), torch.neg],
}

# A busy machine may take seconds to answer.
busy = pytest.mark.filterwarnings("ignore::sophon.loader.sources.away.AwayWarning")


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    folder = tmp_path_factory.mktemp("photos")
    for number in range(11):
        label = folder / f"class{number % 3}"
        label.mkdir(exist_ok=True)
        (label / f"{number}.jpg").write_bytes(encode(scene(60 + number, 50 + 2 * number, seed=number), "jpeg 4:2:0"))
    return folder


def _batches(folder, recipe, output=None, **how):
    return list(DataLoader(folder, recipe, batch_size=4, shuffle=True, output=output, **how))


def _same(one, two):
    assert len(one) == len(two) > 0
    for (x, y), (other_x, other_y) in zip(one, two, strict=True):
        assert x.dtype == other_x.dtype
        assert x.numpy().tobytes() == other_x.numpy().tobytes()
        assert y.tolist() == other_y.tolist()


@pytest.mark.parametrize("name", [*DIVIDED, *WHOLE])
def test_batches_have_the_same_bits(photos, name):
    recipe = {**DIVIDED, **WHOLE}[name]
    _same(_batches(photos, recipe, Output(device="cpu")), _batches(photos, recipe))
    assert (divided(Pipeline(recipe))[1] is not None) == (name in DIVIDED)


@pytest.mark.parametrize("how", [{"num_workers": 2}, {"num_workers": 2, "order": "relaxed"}], ids=["strict", "relaxed"])
def test_threads_send_batches_too(photos, how):
    recipe = DIVIDED["totensor normalize"]
    found = _batches(photos, recipe, Output(device="cpu"), **how)
    if "order" not in how:
        _same(found, _batches(photos, recipe))
    assert sum(len(x) for x, _ in found) == 11


@busy
def test_whatever_a_node_does_the_bits_are_the_same(photos):
    recipe = DIVIDED["totensor normalize"]
    expected = _batches(photos, recipe)
    with LocalServer(photos, 1) as server:
        for policy in ("none", "all", "resize", "0:window"):
            _same(_batches(server.url, recipe, Output(device="cpu"), policy=policy), expected)


def test_the_host_keeps_a_quarter_of_the_bytes(photos):
    loader = DataLoader(photos, DIVIDED["totensor normalize"], output=Output(device="cpu"))
    assert loader.dataset.finishing.layout == ((3, 24, 24), "uint8")
    assert loader.dataset.finishing.result_bytes == 3 * 24 * 24


@pytest.mark.parametrize("name", DIVIDED)
def test_the_table_is_what_the_ops_make_of_every_value_of_every_channel(name):
    pipeline = Pipeline(DIVIDED[name])
    host, table = divided(pipeline)
    channels = len(table)
    values = np.broadcast_to(np.arange(256, dtype=np.uint8), (channels, 1, 256))
    floats = torch.from_numpy(values.copy()).float()
    floats = floats * torch.tensor(1 / 255, dtype=torch.float32) if name == "v2" else floats.div(255)
    for op in pipeline.ops:
        if isinstance(op, ops.Normalize):
            floats.sub_(torch.tensor(op.mean).view(-1, 1, 1)).div_(torch.tensor(op.std).view(-1, 1, 1))
    assert floats.numpy().tobytes() == table.tobytes()
    found = Device("cpu", table).send(torch.from_numpy(values.copy())[None]).batch
    assert found.numpy().tobytes() == table.tobytes()
    data = encode(scene(70, 60, seed=1), "jpeg 4:2:0")
    assert host.run(data, Key(0, 0, 0)).dtype == np.uint8


def test_a_product_with_the_inverse_of_255_is_not_the_table():
    _, table = divided(Pipeline(DIVIDED["totensor normalize"]))
    values = torch.arange(256, dtype=torch.float32).expand(3, 256)
    mean, std = (torch.tensor(numbers).view(-1, 1) for numbers in (MEAN, STD))
    assert (((values * (1 / 255) - mean) / std).numpy() != table).any()


def test_a_device_that_rounds_is_refused(monkeypatch):
    _, table = divided(Pipeline(DIVIDED["totensor normalize"]))
    real = Device._looked_up
    monkeypatch.setattr(Device, "_looked_up", lambda self, values: real(self, values) * (1 + 2**-20))
    with pytest.raises(ConfigError, match="does not give the same bits as the CPU"):
        Device("cpu", table)


def test_columns_and_labels_come_along(photos):
    recipe, columns = DIVIDED["totensor normalize"], ("id",)
    for with_device, without in zip(
        _batches(photos, recipe, Output(columns=columns, device="cpu")),
        _batches(photos, recipe, Output(columns=columns)),
        strict=True,
    ):
        assert with_device[0].equal(without[0])
        assert with_device[1].equal(without[1])
        assert with_device[2] == without[2]


def test_a_collate_function_is_given_finished_samples(photos):
    def collate(items):
        assert all(x.dtype == torch.float32 for x, _ in items)
        return {"x": torch.stack([x for x, _ in items]), "y": [y for _, y in items]}

    recipe = DIVIDED["totensor normalize"]
    how = {"collate_fn": collate, "num_workers": 0}
    pairs = zip(_batches(photos, recipe, Output(device="cpu"), **how), _batches(photos, recipe, **how), strict=True)
    assert all(one["x"].equal(two["x"]) and one["y"] == two["y"] for one, two in pairs)


def test_a_state_goes_from_the_host_to_a_device(photos):
    recipe = DIVIDED["totensor normalize"]
    loader = DataLoader(photos, recipe, batch_size=4, shuffle=True)
    batches = iter(loader)
    next(batches)
    state = loader.state_dict()
    other = DataLoader(photos, recipe, batch_size=4, shuffle=True, output=Output(device="cpu"))
    other.load_state_dict(state)
    _same(list(other), list(batches))


def test_bad_samples_are_mended_on_the_way(photos, tmp_path):
    for number in range(6):
        data = (photos / f"class{number % 3}" / f"{number}.jpg").read_bytes()
        (tmp_path / f"{number}.jpg").write_bytes(data if number != 2 else b"broken")
    recipe, how = DIVIDED["totensor normalize"], {"batch_size": 3, "on_error": "skip"}
    found, expected = (
        list(DataLoader(tmp_path, recipe, output=output, **how)) for output in (Output(device="cpu"), None)
    )
    assert [x.numpy().tobytes() for x in found] == [x.numpy().tobytes() for x in expected]
    assert sorted(len(x) for x in found) == [2, 3]


def test_what_cannot_be_is_said(photos):
    recipe = DIVIDED["totensor normalize"]
    with pytest.raises(ConfigError, match="takes tensors"):
        Output("numpy", device="cpu")
    with pytest.raises(ConfigError, match="not a device that torch has here"):
        DataLoader(photos, recipe, output=Output(device="nonsense"))
    dataset = RemoteDataset(photos, recipe, output=Output(device="cpu"))
    with pytest.raises(ConfigError, match=r"sophon\.DataLoader"):
        dataset[0]
    with pytest.raises(ConfigError, match="collate_fn"):
        DataLoader(dataset, collate_fn=list)
    _same(list(DataLoader(dataset, batch_size=4)), list(DataLoader(photos, recipe, batch_size=4)))
