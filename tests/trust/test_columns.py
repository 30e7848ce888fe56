"""A node that comes back with different column values here is found out, and so is a copy of the data with others."""

import json

import pytest

import sophon
from tests.support.servers import RECIPE, make_images, serve

COUNT = 24


def _listing(folder, note):
    # The folder also has the cache of a server of this listing, which keeps a manifest that took long to make.
    files = sorted(path.relative_to(folder) for path in folder.glob("class_*/*"))
    rows = [f"{path},{number % 3},{note}{number:02d}" for number, path in enumerate(files)]
    (folder / "rows.csv").write_text("path,label,note\n" + "\n".join(rows) + "\n")
    return folder / "rows.csv"


@pytest.fixture
def folder(tmp_path):
    return make_images(tmp_path / "train", COUNT)


def _loader(url, columns, **faults):
    told = {"batch_size": 2, "num_workers": 1, "shuffle": True, "seed": 0, "policy": "none", "prefetch_factor": 1}
    output, faults = sophon.Output(columns=columns), sophon.Faults(deadline_s=20, **faults)
    return sophon.DataLoader(url, RECIPE, output=output, faults=faults, **told)


def _restarted(folder, columns):
    """Return the columns that come of an epoch in whose middle the node is replaced by one with other values."""
    with serve(_listing(folder, "a")) as server:
        batches = iter(_loader(server.url, columns))
        seen = [next(batches)]
    with serve(_listing(folder, "b"), port=server.port):
        seen += batches
    return [note for batch in seen for note in batch[-1].get("note", ())]


def test_a_node_that_comes_back_with_other_values_is_refused(folder):
    with pytest.raises(sophon.ConfigError, match=r"different column values here.*start the run again"):
        _restarted(folder, ("note",))


def test_values_that_nobody_asked_for_may_change(folder):
    assert _restarted(folder, ("id",)) == []


@pytest.mark.slow
def test_a_fallback_with_other_values_is_refused(folder, tmp_path):
    """At opening, where both can be asked; at the latest when it would deliver: nothing of it ever arrives."""
    seen = []

    def train(server, path):
        for batch in _loader(server.url, ("note",), fallback=str(path)):
            seen.extend(batch[-1]["note"])
            server.stop()

    path = _listing(make_images(tmp_path / "copy", COUNT), "b")
    with serve(_listing(folder, "a")) as server, pytest.raises(sophon.ConfigError, match=r"different (column )?values"):
        train(server, path)
    assert {note[0] for note in seen} <= {"a"}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::sophon.FallbackWarning")
def test_a_fallback_with_the_same_values_takes_over(folder, tmp_path):
    """What the refusal above is compared with: there it is the values alone that are wrong."""
    path = _listing(make_images(tmp_path / "copy", COUNT), "a")
    seen = []
    with serve(_listing(folder, "a")) as server:
        for batch in _loader(server.url, ("note",), fallback=str(path)):
            seen.extend(batch[-1]["note"])
            server.stop()
    assert sorted(seen) == [f"a{number:02d}" for number in range(COUNT)]


def test_values_of_several_kinds_are_an_error_that_names_their_column(folder):
    path = _listing(folder, "")
    rows = path.read_text().splitlines()
    rows[3] = rows[3].rsplit(",", 1)[0] + ","
    path.write_text("\n".join(rows) + "\n")
    with pytest.raises(sophon.ConfigError, match=r"column 'note' of .* cannot be batched"):
        list(_loader(str(path), ("note",)))


def test_so_are_objects_with_different_names(tmp_path):
    folder = make_images(tmp_path / "data", 4)
    files = sorted(str(path.relative_to(folder)) for path in folder.rglob("*.*"))
    rows = [{"path": path, "note": {f"key{number}": 1}} for number, path in enumerate(files)]
    (folder / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    with pytest.raises(sophon.ConfigError, match=r"column 'note' of .* cannot be batched"):
        list(_loader(str(folder / "rows.jsonl"), ("note",)))
