"""What is taken for the same data is the same: masks, columns and files that were made anew are found out."""

import os
import tarfile

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

import sophon
from sophon import Joint, ops
from sophon.store import open_store
from sophon.store.manifest import Manifest
from tests.support.servers import serve
from tests.support.torchvision_import import import_torchvision

COUNT = 6
STEPS = sophon.Pipeline([ops.Decode(), ops.CenterCrop(8), ops.ToTensor()])


def _write(folder, shift=0):
    """Write pictures and masks of equal sizes, and a listing that gives picture n the mask of n + shift."""
    for name in ("pictures", "masks"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    rows = ["path,mask"]
    for number in range(COUNT):
        picture = np.full((16, 20, 3), 30 * number, np.uint8)
        Image.fromarray(picture).save(folder / f"pictures/{number}.bmp")
        Image.fromarray(np.full((16, 20), number + 1, np.uint8)).save(folder / f"masks/{number}.bmp")
        rows.append(f"pictures/{number}.bmp,masks/{(number + shift) % COUNT}.bmp")
    (folder / "rows.csv").write_text("\n".join(rows) + "\n")
    return f"{folder}/rows.csv?fields=path,mask"


def _masks(address, **told):
    import_torchvision()
    from torchvision.transforms import v2

    recipe = Joint(v2.Compose([v2.CenterCrop(8), v2.PILToTensor()]), ("image", "mask"))
    with sophon.DataLoader(address, recipe, batch_size=1, seed=0, shuffle=False, **told) as loader:
        return [int(mask[0, 0, 0, 0] if mask.ndim == 4 else mask[0, 0, 0]) for _, mask in loader]


def test_masks_that_trade_places_give_another_fingerprint(tmp_path):
    one, other = (open_store(_write(tmp_path / str(shift), shift)) for shift in (0, 1))
    assert np.array_equal(one.manifest.sizes, other.manifest.sizes)
    assert one.manifest.fingerprint != other.manifest.fingerprint


def test_a_copy_has_the_same_fingerprint_and_another_state(tmp_path):
    one, other = (open_store(_write(tmp_path / name)) for name in ("a", "b"))
    assert one.manifest.fingerprint == other.manifest.fingerprint
    assert one.manifest.state != other.manifest.state


def test_fields_that_trade_sizes_give_another_fingerprint(tmp_path):
    found = []
    for name, sizes in (("a", (10, 20)), ("b", (20, 10))):
        with tarfile.open(tmp_path / f"{name}.tar", "w") as shard:
            for ending, size in zip(("jpg", "one", "two"), (5, *sizes), strict=True):
                member = tarfile.TarInfo(f"0.{ending}")
                member.size = size
                (tmp_path / "data").write_bytes(bytes(size))
                with (tmp_path / "data").open("rb") as data:
                    shard.addfile(member, data)
        found.append(open_store(f"{tmp_path}/{name}.tar?fields=jpg,one,two").manifest)
    assert [field.name for field in found[0].fields] == ["jpg", "one", "two"]
    assert found[0].fingerprint != found[1].fingerprint


def test_masks_of_another_listing_do_not_come_from_the_cache(tmp_path):
    told = {"cache": sophon.Cache("0:raw", folder=tmp_path / "cache")}
    address = _write(tmp_path / "data")
    assert _masks(address, **told) == [1, 2, 3, 4, 5, 6]
    assert _masks(_write(tmp_path / "data", 1), **told) == [2, 3, 4, 5, 6, 1]


def test_two_nodes_with_masks_in_other_places_are_not_copies(tmp_path):
    other = serve(_write(tmp_path / "b", 1))
    with (
        serve(_write(tmp_path / "a")) as one,
        other,
        pytest.raises(sophon.ConfigError, match=r"not the same .*targets"),
    ):
        _masks([one.url, other.url])


def test_manifests_of_several_fields_by_an_earlier_release_are_made_anew(tmp_path, monkeypatch):
    manifest = open_store(_write(tmp_path / "data")).manifest
    monkeypatch.setattr("sophon.store.manifest.FORMAT", 4)
    manifest.save(tmp_path / "kept.arrow")
    monkeypatch.undo()
    with pytest.raises(sophon.ArtifactError, match="format 5"):
        Manifest.load(tmp_path / "kept.arrow")


# --- files that were made anew ----------------------------------------------------------------------------------------


def _pictures(folder, brightness):
    folder.mkdir(exist_ok=True)
    for number in range(COUNT):
        Image.new("RGB", (16, 12), (brightness, 10 * number, 0)).save(folder / f"{number}.bmp")
    return folder


def _reds(address, folder):
    cache = sophon.Cache("0:raw", folder=folder)
    with sophon.DataLoader(str(address), STEPS, batch_size=COUNT, seed=0, cache=cache) as loader:
        return {round(255 * float(value)) for images in loader for value in images[:, 0, 0, 0]}, loader.stats


def _times_back(folder, times):
    for path, (accessed, changed) in times.items():
        os.utime(path, ns=(accessed, changed))
    assert {path: path.stat().st_mtime_ns for path in times} == {path: time[1] for path, time in times.items()}


def test_files_that_were_written_anew_do_not_come_from_the_cache(tmp_path):
    folder = _pictures(tmp_path / "data", 100)
    assert _reds(folder, tmp_path / "cache")[0] == {100}
    times = {path: (path.stat().st_atime_ns, path.stat().st_mtime_ns) for path in (*folder.iterdir(), folder)}
    _pictures(folder, 200)  # in place: the same names and sizes, and the folder does not change
    _times_back(folder, times)
    assert _reds(folder, tmp_path / "cache")[0] == {200}


def test_files_of_a_node_that_were_made_anew_do_not_come_from_the_cache(tmp_path):
    folder = _pictures(tmp_path / "data", 100)
    with serve(folder) as server:
        assert _reds(server.url, tmp_path / "cache")[0] == {100}
    for path in folder.iterdir():
        path.unlink()
    _pictures(folder, 200)
    with serve(folder) as server:
        assert _reds(server.url, tmp_path / "cache")[0] == {200}
        again, stats = _reds(server.url, tmp_path / "cache")
        assert (again, stats.cached) == ({200}, COUNT)


def _shard(path, brightness):
    pictures = _pictures(path.parent / "pictures", brightness)
    with tarfile.open(path, "w") as shard:
        for file in sorted(pictures.iterdir()):
            member = tarfile.TarInfo(file.name)
            member.size = file.stat().st_size
            with file.open("rb") as data:
                shard.addfile(member, data)
    return path


def test_a_shard_that_was_overwritten_with_the_same_size_and_time_is_listed_anew(tmp_path):
    path = _shard(tmp_path / "0.tar", 100)
    assert _reds(path, tmp_path / "cache")[0] == {100}
    times = {path: (path.stat().st_atime_ns, path.stat().st_mtime_ns)}
    _shard(path, 200)
    _times_back(tmp_path, times)
    assert _reds(path, tmp_path / "cache")[0] == {200}


# --- columns of copies ------------------------------------------------------------------------------------------------


def _listing(folder, notes):
    _pictures(folder, 100)
    path = folder / "rows.csv"
    path.write_text("path,note\n" + "".join(f"{number}.bmp,{note}\n" for number, note in enumerate(notes)))
    return path


def _noted(urls, columns=("note",)):
    output = sophon.Output(columns=columns)
    with sophon.DataLoader(urls, STEPS, batch_size=COUNT, seed=0, output=output) as loader:
        return list(loader)


def test_copies_with_other_columns_are_refused_when_they_are_opened(tmp_path):
    with serve(_listing(tmp_path / "a", range(COUNT))) as one, serve(_listing(tmp_path / "b", [7] * COUNT)) as other:
        urls = [one.url, other.url]
        with pytest.raises(sophon.ConfigError, match="different values in their columns") as caught:
            sophon.DataLoader(urls, STEPS, output=sophon.Output(columns=("note",)))
        assert all(url in str(caught.value) for url in urls)
        assert len(_noted(urls, ("id",))) == 1  # which nobody has asked for


@pytest.mark.parametrize("values", [[3, None, 5], ["a", None, ""], [1.5, None, 2.0], [True, False, None]], ids=repr)
def test_equal_columns_have_the_same_digest_however_a_file_holds_them(values):
    from sophon.store.pages.identity import columns_digest

    column = pa.array(values)
    twice = pa.chunked_array([column.slice(0, 1), column.slice(1)])
    wider = {pa.int64(): pa.int32(), pa.string(): pa.large_string(), pa.float64(): pa.float32()}.get(column.type)
    forms = [column, twice, column.dictionary_encode(), pa.concat_arrays([column, column]).slice(3)]
    forms += [] if wider is None else [column.cast(wider)]
    assert len({columns_digest(pa.table({"note": form})) for form in forms}) == 1
    changed = pa.array([*values[:2], None if values[2] is not None else values[0]], column.type)
    assert columns_digest(pa.table({"note": changed})) != columns_digest(pa.table({"note": column}))


def test_a_listing_as_csv_and_as_parquet_is_the_same_listing(tmp_path):
    path = _listing(tmp_path / "a", range(COUNT))
    named = {"path": [f"{number}.bmp" for number in range(COUNT)], "note": pa.array(range(COUNT), pa.int32())}
    pq.write_table(pa.table(named), tmp_path / "a/rows.parquet")
    one, other = (open_store(tmp_path / "a" / name) for name in ("rows.csv", "rows.parquet"))
    assert one.manifest.columns_digest == other.manifest.columns_digest != ""
    assert path.exists()
