"""Sounds through the loader: the same tensors from a path and a node, whatever the cut and whoever finishes them."""

import io
import tarfile

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

import sophon
from sophon import ops
from sophon.pipeline import Key
from tests.support.servers import digest, serve
from tests.support.sounds import make_sounds, sound_file

RECIPE = sophon.Pipeline([ops.DecodeAudio(), ops.Mono(), ops.RandomTimeCrop(4_000), ops.RandomGain()])
COUNT = 13


@pytest.fixture(scope="module", params=["wav", "flac"])
def sounds(request, tmp_path_factory):
    return make_sounds(tmp_path_factory.mktemp("sounds") / "train", COUNT, ending=request.param)


@pytest.fixture(scope="module")
def node(sounds):
    with serve(sounds) as server:
        yield server


def epochs(source, recipe=RECIPE, **more):
    with sophon.DataLoader(str(source), recipe, batch_size=4, seed=3, shuffle=True, **more) as loader:
        found = []
        for epoch in range(2):
            loader.set_epoch(epoch)
            found.append(digest(loader))
        return found


@pytest.fixture(scope="module")
def expected(sounds):
    return epochs(sounds, num_workers=0)


def test_samples_are_float32_tensors_of_channels_and_samples_with_labels(sounds):
    with sophon.DataLoader(str(sounds), RECIPE, batch_size=COUNT, num_workers=0, seed=3) as loader:
        ((waves, labels),) = list(loader)
        assert list(loader.dataset.classes) == ["class_0", "class_1", "class_2"]
    assert waves.dtype == torch.float32
    assert waves.shape == (COUNT, 1, 4_000)
    assert labels.dtype == torch.int64
    files = sorted(path for path in sounds.rglob("*") if path.is_file())
    for number, path in enumerate(files):
        assert np.array_equal(waves[number].numpy(), RECIPE.run(path.read_bytes(), Key(3, 0, number)).array)
        assert path.parent.name == f"class_{int(labels[number])}"


@pytest.mark.parametrize("workers", [2, sophon.Workers(1, kind="processes")], ids=["threads", "processes"])
def test_the_same_bits_whoever_finishes_them(sounds, expected, workers):
    assert epochs(sounds, num_workers=workers) == expected


@pytest.mark.parametrize("policy", ["none", "0:window", "3:flac", "all", "optimal"])
def test_the_same_bits_from_a_node_whatever_the_policy(node, expected, policy):
    assert epochs(node.url, policy=policy, num_workers=2) == expected


def test_windows_are_a_fraction_of_the_files(sounds, node):
    total = sum(path.stat().st_size for path in sounds.rglob("*") if path.is_file())
    with sophon.DataLoader(node.url, RECIPE, batch_size=4, seed=3, policy="0:window", num_workers=0) as loader:
        assert sum(len(waves) for waves, _ in loader) == COUNT
        assert loader.stats.link_bytes < total


def test_a_step_of_the_users_own_gets_a_tensor(sounds, node):
    seen = []

    def halved(wave):
        assert isinstance(wave, torch.Tensor)
        seen.append(tuple(wave.shape))
        return wave / 2

    recipe = [ops.DecodeAudio(), ops.Mono(), ops.RandomTimeCrop(4_000), halved]
    assert epochs(sounds, recipe, num_workers=0) == epochs(node.url, recipe, policy="0:window", num_workers=0)
    assert set(seen) == {(1, 4_000)}


def test_an_epoch_goes_on_where_it_was_left(node):
    def opened():
        return sophon.DataLoader(node.url, RECIPE, batch_size=4, seed=3, shuffle=True, policy="0:window", num_workers=0)

    with opened() as loader:
        whole = [waves.clone() for waves, _ in loader]
    with opened() as loader:
        batches = iter(loader)
        next(batches)
        state = loader.state_dict()
    with opened() as loader:
        loader.load_state_dict(state)
        rest = [waves.clone() for waves, _ in loader]
    assert all(torch.equal(a, b) for a, b in zip(whole[1:], rest, strict=True))


def test_a_damaged_file_is_a_bad_sample_that_names_itself(tmp_path):
    sounds = make_sounds(tmp_path / "train", 6)
    broken = sounds / "class_1" / "001.wav"
    broken.write_bytes(broken.read_bytes()[:-7])
    with (
        serve(sounds) as server,
        sophon.DataLoader(server.url, RECIPE, batch_size=6, num_workers=0, policy="0:window") as loader,
        pytest.raises(sophon.OpError, match="cut off"),
    ):
        list(loader)


def test_tars_parquet_files_and_listings_of_sounds(tmp_path):
    files = {
        f"{number:03d}": sound_file("flac 16" if number % 2 else "wav 16", 9_000, seed=number) for number in range(6)
    }
    with tarfile.open(tmp_path / "sounds.tar", "w") as archive:
        for name, data in files.items():
            for ending, content in (("flac" if data[:4] == b"fLaC" else "wav", data), ("cls", b"1")):
                info = tarfile.TarInfo(f"{name}.{ending}")
                info.size = len(content)
                archive.addfile(info, io.BytesIO(content))
    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    rows = [{"bytes": data, "path": name} for name, data in files.items()]
    pq.write_table(pa.table({"audio": pa.array(rows, kind), "label": [1] * 6}), tmp_path / "sounds.parquet")
    (tmp_path / "clips").mkdir()
    listing = ["path,label"]
    for name, data in files.items():
        (tmp_path / "clips" / f"{name}.wav").write_bytes(data)
        listing.append(f"{name}.wav,1")
    (tmp_path / "clips" / "clips.csv").write_text("\n".join(listing))
    recipe = RECIPE.prefix(3)
    found = set()
    for source in ("sounds.tar", "sounds.parquet", "clips/clips.csv"):
        with sophon.DataLoader(str(tmp_path / source), recipe, batch_size=6, seed=1, num_workers=0) as loader:
            ((waves, labels),) = list(loader)
            found.add(waves.numpy().tobytes())
            assert len(set(labels.tolist())) == 1
    assert len(found) == 1
