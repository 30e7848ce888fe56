"""What `test_huggingface.py` runs where the package `datasets` is."""

import io
import pickle

import datasets
import numpy as np
import pytest
import torch
from PIL import Image

import sophon
from sophon import ops
from sophon.errors import ConfigError, StoreError
from tests.support.pictures import FORMS, encode, scene
from tests.support.torchvision_import import import_torchvision

import_torchvision()
from torchvision import transforms  # noqa: E402 - its stand-ins have to be there first

pytestmark = pytest.mark.filterwarnings("ignore")  # of the package
RECIPE = transforms.Compose([transforms.Resize(24), transforms.CenterCrop(20), transforms.ToTensor()])
NAMES = ["cat", "dog", "owl"]
FORMS_USED = [form for form, (_, kind, _) in FORMS.items() if kind in ("JPEG", "PNG", "BMP", "TIFF", "WEBP")]


def _turned(orientation):
    exif = Image.Exif()
    exif[0x0112] = orientation
    out = io.BytesIO()
    scene(50, 40, seed=orientation).save(out, "JPEG", exif=exif.tobytes())
    return out.getvalue()


FILES = [encode(scene(60 + i, 50, seed=i), FORMS_USED[i % len(FORMS_USED)]) for i in range(14)]
FILES += [_turned(orientation) for orientation in range(1, 9)]


def _dataset(pictures=FILES, **columns):
    count = len(pictures)
    features = datasets.Features(
        {
            "image": datasets.Image(),
            "label": datasets.ClassLabel(names=NAMES),
            "text": datasets.Value("string"),
        }
    )
    data = {
        "image": [{"bytes": data, "path": None} if isinstance(data, bytes) else data for data in pictures],
        "label": [i % 3 for i in range(count)],
        "text": [f"text {i}" for i in range(count)],
    }
    return datasets.Dataset.from_dict(data, features=features)


def _assert_same(found, data):
    assert len(found) == len(data)
    for i in range(len(data)):
        value, label = found[i]
        assert label == data[i]["label"]
        assert torch.equal(value, RECIPE(data[i]["image"].convert("RGB"))), i


@pytest.fixture
def saved(tmp_path):
    _dataset().save_to_disk(tmp_path / "saved")
    return datasets.load_from_disk(tmp_path / "saved")


def test_arrow_files_on_disk(saved):
    found = sophon.RemoteDataset(saved, RECIPE)
    _assert_same(found, saved)
    assert found.classes == tuple(NAMES)


def test_turned_pictures_are_turned_at_every_cut_and_windows_too(saved):
    steps = transforms.Compose([transforms.RandomResizedCrop(12, (0.05, 0.2)), transforms.ToTensor()])
    pipeline = sophon.RemoteDataset(saved, steps).pipeline
    assert pipeline.ops[0].upright
    for data in FILES:
        whole = Image.open(io.BytesIO(data))
        if whole.getexif().get(0x0112) is not None:
            from PIL import ImageOps

            whole = ImageOps.exif_transpose(whole)
        for epoch in range(3):
            key = sophon.Key(1, epoch, 5)
            wanted = pipeline.run(whole.convert("RGB"), key, 1)
            for cut in sophon.legal_cuts(pipeline):
                try:
                    payload = sophon.make_payload(pipeline, data, key, cut)
                except sophon.OpError:
                    assert cut.codec == "window"
                    continue
                assert np.array_equal(sophon.finish_payload(pipeline, payload, key, cut), wanted), cut


def test_pictures_in_memory_and_as_paths(tmp_path):
    _assert_same(sophon.RemoteDataset(_dataset(), RECIPE), _dataset())
    paths = []
    for i, data in enumerate(FILES):
        paths.append(str(tmp_path / f"{i}.bin"))
        (tmp_path / f"{i}.bin").write_bytes(data)
    data = _dataset(paths)
    _assert_same(sophon.RemoteDataset(data, RECIPE), data)
    (tmp_path / "3.bin").unlink()
    with pytest.raises(StoreError, match=r"row 3, .*3\.bin"):
        sophon.RemoteDataset(data, RECIPE)


def test_selected_shuffled_filtered_and_concatenated(saved):
    for data in (
        saved.select([4, 2, 2, 9]),
        saved.shuffle(seed=3),
        saved.filter(lambda row: row["label"] == 1),
        datasets.concatenate_datasets([saved, saved.select(range(3))]),
        saved.shuffle(seed=1).train_test_split(0.3, seed=2)["test"],
    ):
        _assert_same(sophon.RemoteDataset(data, RECIPE), data)


def test_a_subset_of_torchs(saved):
    part = torch.utils.data.Subset(saved, [7, 1, 20])
    found = sophon.RemoteDataset(part, RECIPE)
    for i, row in enumerate([7, 1, 20]):
        assert found[i][1] == saved[row]["label"]
        assert torch.equal(found[i][0], RECIPE(saved[row]["image"].convert("RGB")))


def test_columns_come_along(saved):
    (batch,) = sophon.DataLoader(saved.select([3, 0]), RECIPE, batch_size=2, output=sophon.Output(columns=["text"]))
    assert batch[2]["text"] == ["text 3", "text 0"]


def test_a_mode_of_the_feature_and_pictures_without_a_transform(saved):
    data = saved.cast_column("image", datasets.Image(mode="L"))
    found = sophon.RemoteDataset(data)
    for i in range(len(data)):
        picture = data[i]["image"]
        assert (found[i][0].mode, found[i][0].size, found[i][0].tobytes()) == ("L", picture.size, picture.tobytes())
    raw = saved.cast_column("image", datasets.Image(decode=False))
    _assert_same(sophon.RemoteDataset(raw, RECIPE), saved)


def test_worker_processes_and_pickling(saved):
    batches = list(sophon.DataLoader(saved, RECIPE, batch_size=8, num_workers=sophon.Workers(2, kind="processes")))
    assert torch.equal(
        torch.cat([b[0] for b in batches]), torch.stack([RECIPE(r["image"].convert("RGB")) for r in saved])
    )
    _assert_same(pickle.loads(pickle.dumps(sophon.RemoteDataset(saved, RECIPE))), saved)


def test_columns_that_are_told(saved):
    data = saved.rename_columns({"image": "photo", "label": "kind"}).add_column(
        "age", [i / 2 for i in range(len(saved))]
    )
    found = sophon.RemoteDataset(sophon.from_dataset(data, path="photo", target="age"), RECIPE)
    assert [found[i][1] for i in range(4)] == [0.0, 0.5, 1.0, 1.5]
    assert sophon.RemoteDataset(data, RECIPE)[4][1] == data[4]["kind"]
    with pytest.raises(ConfigError, match="no picture column 'nope'; found photo"):
        sophon.from_dataset(data, path="nope")


def test_what_cannot_be_represented_is_refused_with_a_reason(saved):
    formed = saved.with_transform(lambda rows: {"image": [0 for _ in rows["image"]]})
    for data, message in [
        (datasets.DatasetDict({"train": saved}), r"has several splits; give one, such as ds\['train'\]"),
        (saved.to_iterable_dataset(), "has no indexable samples"),
        (saved.remove_columns("image"), "expected one column with the feature Image, found none among label, text"),
        (saved.select([]), "has no samples"),
        (formed, "its format is 'custom'"),
    ]:
        with pytest.raises(ConfigError, match=message):
            sophon.RemoteDataset(data)
    assert len(sophon.RemoteDataset(formed, [ops.Decode(), ops.ToTensor()])) == len(saved)
    empty = datasets.Dataset.from_dict({"image": [None]}, features=datasets.Features({"image": datasets.Image()}))
    with pytest.raises(StoreError, match="row 0 has no picture"):
        sophon.RemoteDataset(empty, RECIPE)
