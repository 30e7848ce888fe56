"""Masks and boxes from listings, Parquet files and tar shards: torchvision's samples, or errors that name the field."""

import json
import tarfile
from io import BytesIO

import pytest

import sophon
from sophon import Joint, LocalServer
from sophon.errors import OpError, StoreError
from tests.support.marks import slow
from tests.support.one_thread import one_thread_of_torch  # noqa: F401 - for all tests here
from tests.support.torchvision_import import import_torchvision

import_torchvision()
import numpy as np  # noqa: E402
import pyarrow as pa  # noqa: E402
import pyarrow.parquet as pq  # noqa: E402
import torch  # noqa: E402
from torchvision.transforms import v2  # noqa: E402

from sophon.pipeline import Key  # noqa: E402
from sophon.store.digests import write_digests  # noqa: E402
from tests.support.joint_oracle import differences, raw_sample, theirs  # noqa: E402

COUNT, SEED = 6, 5
RECIPE = v2.Compose(
    [
        v2.RandomIoUCrop(),
        v2.RandomHorizontalFlip(),
        v2.ToImage(),
        v2.ToDtype(torch.float32, scale=True),
        v2.ClampBoundingBoxes(),
        v2.SanitizeBoundingBoxes(),
    ]
)
SHAPE = ("image", {"boxes": "boxes", "masks": "mask", "labels": "labels"})


def raws(form="xyxy"):
    return [raw_sample(90 + 9 * at, 130 - 6 * at, at % 4 + 1, form, seed=at) for at in range(COUNT)]


def write_listing(folder, samples, suffix):
    """Boxes and labels as columns of numbers, masks by their paths; CSV has no lists, so it has masks alone."""
    for at, raw in enumerate(samples):
        (folder / f"{at}.jpg").write_bytes(raw.image)
        (folder / f"{at}.png").write_bytes(raw.mask)
    if suffix == "csv":
        (folder / "rows.csv").write_text("path,mask\n" + "".join(f"{at}.jpg,{at}.png\n" for at in range(COUNT)))
        return folder / "rows.csv"
    rows = [
        {"path": f"{at}.jpg", "mask": f"{at}.png", "objects": raw.boxes.tolist(), "what": raw.labels.tolist()}
        for at, raw in enumerate(samples)
    ]
    (folder / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return folder / "rows.jsonl"


def write_parquet(folder, samples):
    columns = {
        "image": [raw.image for raw in samples],
        "mask": [raw.mask for raw in samples],
        "objects": [raw.boxes.reshape(-1).tolist() for raw in samples],
        "what": [raw.labels.tolist() for raw in samples],
    }
    pq.write_table(pa.table(columns), folder / "data.parquet", row_group_size=4)
    return folder / "data.parquet"


def write_tar(folder, samples):
    """All of a sample by its stem: picture, mask, boxes and labels as plain numbers."""
    with tarfile.open(folder / "data.tar", "w") as tar:
        for at, raw in enumerate(samples):
            parts = {"jpg": raw.image, "seg.png": raw.mask, "box": raw.boxes.tobytes(), "cat": raw.labels.tobytes()}
            for ending, data in parts.items():
                info = tarfile.TarInfo(f"{at}.{ending}")
                info.size = len(data)
                tar.addfile(info, BytesIO(data))
    return folder / "data.tar"


NAMED = ("image", {"boxes": "objects", "masks": "mask", "labels": "what"})
KINDS = {"objects": "boxes:xyxy", "what": "labels"}
SOURCES = {
    "json lines": (lambda *a: write_listing(*a, "jsonl"), "fields=image,mask", NAMED, KINDS),
    "parquet": (write_parquet, "fields=image,mask", NAMED, KINDS),
    "tar": (
        write_tar,
        "fields=image,seg.png,box,cat",
        ("image", {"boxes": "box", "masks": "seg.png", "labels": "cat"}),
        {"seg.png": "mask", "box": "boxes:xyxy", "cat": "labels"},
    ),
}


@pytest.mark.parametrize("policy", ["1:webp", *slow("none", "0:window", "all", "optimal")])
@pytest.mark.parametrize("name", SOURCES)
@pytest.mark.filterwarnings("ignore::sophon.OffloadWarning")  # a crop that takes all of a picture has no window
@pytest.mark.matrix(every=3)
def test_samples_are_torchvisions_wherever_fields_come_from(tmp_path, name, policy):
    write, options, sample, kinds = SOURCES[name]
    samples = raws()
    path = f"{write(tmp_path, samples)}?{options}"
    joint = Joint(RECIPE, sample, kinds)
    with LocalServer(path, 1, options=("--cache-dir", str(tmp_path / "cache"))) as server:
        for source, workers in ((path, 0), (server.url, 2)):
            if name != "tar" and policy in ("0:window", "all") and source == server.url:
                continue  # boxes in columns are for the trainer alone, which then runs all from the crop on
            more = {} if source == path else {"policy": policy}
            with sophon.DataLoader(source, joint, seed=SEED, batch_size=4, num_workers=workers, **more) as loader:
                found = [one for batch in loader for one in zip(*batch, strict=True)]
            for at, raw in enumerate(samples):
                assert not differences(found[at], theirs(RECIPE, raw, Key(SEED, 0, at), SHAPE)), (at, source)


def test_boxes_in_a_field_are_looked_at_near_storage_and_those_in_a_column_on_the_trainer(tmp_path):
    for name, most in (("tar", 5), ("parquet", 1)):
        write, options, sample, kinds = SOURCES[name]
        (tmp_path / name).mkdir()
        path = f"{write(tmp_path / name, raws())}?{options}"
        pipeline = sophon.RemoteDataset(path, Joint(RECIPE, sample, kinds)).pipeline
        assert pipeline.max_cut == most, pipeline.describe()


def test_masks_that_a_csv_file_names(tmp_path):
    samples = raws()
    path = write_listing(tmp_path, samples, "csv")
    recipe = v2.Compose([v2.RandomCrop(40), v2.ToImage()])
    with sophon.DataLoader(f"{path}?fields=image,mask", Joint(recipe, ("image", "mask")), seed=SEED) as loader:
        found = [(pictures[0], masks[0]) for pictures, masks in loader]
    for at, raw in enumerate(samples):
        picture, mask = theirs(recipe, raw, Key(SEED, 0, at), ("image", "mask"))
        assert torch.equal(found[at][0], picture)
        assert torch.equal(found[at][1], mask)


CROPPED = v2.Compose([v2.RandomCrop(40), v2.RandomHorizontalFlip(), v2.ToImage()])
POLICIES = ["0:window", "2:webp", *slow("none", "1:webp", "2:zstd", "all", "optimal")]


@pytest.mark.parametrize("policy", POLICIES)
def test_boxes_and_labels_in_columns_follow_a_picture_that_has_no_field_beside_it(tmp_path, policy):
    samples = raws()
    path = write_listing(tmp_path, samples, "jsonl")
    joint = Joint(CROPPED, ("image", {"boxes": "objects", "labels": "what"}), KINDS)
    options = ("--cache-dir", str(tmp_path / "cache"))
    digests = tmp_path / "digests.parquet"
    write_digests(sophon.open_store(path), digests)
    checked = sophon.Faults(verify=sophon.Verify(digests, "all"))
    with LocalServer(path, 1, options=options) as server:
        for source, workers, faults in ((path, 0, None), (server.url, 2, None), (server.url, 0, checked)):
            more = {"seed": SEED, "batch_size": 4, "num_workers": workers, "policy": policy, "faults": faults}
            with sophon.DataLoader(source, joint, **more) as loader:
                found = [one for batch in loader for one in zip(*batch, strict=True)]
            shape = ("image", {"boxes": "boxes", "labels": "labels"})
            for at, raw in enumerate(samples):
                assert not differences(found[at], theirs(CROPPED, raw, Key(SEED, 0, at), shape)), (at, source)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("shape", [("image",), ("image", "label")], ids=len)
def test_a_picture_alone_or_with_its_class_can_be_cut_as_well(tmp_path, shape, policy):
    samples = raws()
    for at, raw in enumerate(samples):
        (tmp_path / "train" / "ab"[at % 2]).mkdir(parents=True, exist_ok=True)
        (tmp_path / "train" / "ab"[at % 2] / f"{at}.jpg").write_bytes(raw.image)
    options = ("--cache-dir", str(tmp_path / "cache"))
    with (
        LocalServer(tmp_path / "train", 1, options=options) as server,
        sophon.DataLoader(server.url, Joint(CROPPED, shape), seed=SEED, policy=policy, num_workers=2) as loader,
    ):
        found = list(loader)
    order = sorted(range(COUNT), key=lambda at: f"{'ab'[at % 2]}/{at}.jpg")
    for place, at in enumerate(order):
        (picture,) = theirs(CROPPED, samples[at], Key(SEED, 0, place), ("image",))
        assert torch.equal(found[place][0][0], picture), at
        assert shape == ("image",) or int(found[place][1]) == at % 2


DAMAGE = {
    "mask of another size": ({"mask": "9.png"}, OpError, r"field 'mask': the mask has 7×7 pixels, but its picture has"),
    "mask that is none": ({"mask": "broken.png"}, OpError, r"field 'mask': the mask cannot be decoded"),
    "no mask": ({"mask": "none.png"}, StoreError, r"sample 2 \('2.jpg'\): field 'mask': there is no file 'none.png'"),
    "box outside": ({"objects": [[900.0, 900.0, 950.0, 950.0]]}, OpError, r"field 'objects': box 0 .* outside"),
    "three numbers": (
        {"objects": [[1.0, 2.0, 3.0]]},
        OpError,
        r"field 'objects': expected 4 numbers for each object, got 3",
    ),
}


@pytest.mark.parametrize("name", DAMAGE)
@pytest.mark.filterwarnings("ignore:files for 1 sample")
def test_a_damaged_target_is_an_error_that_names_sample_and_field_or_what_the_policy_says(tmp_path, name):
    change, kind, words = DAMAGE[name]
    path = write_listing(tmp_path, raws(), "jsonl")
    (tmp_path / "broken.png").write_bytes(b"no picture")
    (tmp_path / "9.png").write_bytes(raw_sample(7, 7).mask)
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    rows[2] |= change
    path.write_text("\n".join(map(json.dumps, rows)))
    joint = Joint(RECIPE, NAMED, KINDS)
    with pytest.raises(kind, match=words) as raised:
        sophon.RemoteDataset(f"{path}?fields=image,mask", joint, seed=SEED)[2]
    assert "sample 2" in str(raised.value)
    with sophon.DataLoader(f"{path}?fields=image,mask", joint, seed=SEED, on_error="skip", batch_size=3) as loader:
        sizes = [len(pictures) for pictures, _ in loader]
    assert sizes == [2, 3]


def test_a_damaged_field_of_a_node_is_the_trainers_error(tmp_path):
    """A node that cannot read the boxes sends the files, and the trainer says what is wrong."""
    samples = raws()
    object.__setattr__(samples[1], "boxes", np.zeros(3, np.float32))
    write, options, sample, kinds = SOURCES["tar"]
    path = f"{write(tmp_path, samples)}?{options}"
    joint, options = Joint(RECIPE, sample, kinds), ("--cache-dir", str(tmp_path / "cache"))
    with (
        LocalServer(path, 1, options=options) as server,
        sophon.DataLoader(server.url, joint, seed=SEED, policy="2:webp", num_workers=0) as loader,
        pytest.raises(OpError, match=r"sample 1: .*field 'box': expected 4 numbers for each object, got 3"),
    ):
        list(loader)
