"""What a loader and a data set look like at a prompt: one line that says what they are."""

import pytest

import sophon
from tests.support.servers import RECIPE, make_images, serve
from tests.support.settings import grouped


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    return make_images(tmp_path_factory.mktemp("data") / "train", 23)


@pytest.fixture(scope="module")
def server(images):
    with serve(images) as running:
        yield running


@pytest.mark.parametrize(
    ("settings", "shown"),
    [
        ({"num_workers": 0}, "policy='optimal', num_workers=0"),
        ({"num_workers": 4}, "policy='optimal', num_workers=4 threads"),
        ({"num_workers": 1, "policy": "fastflow"}, "policy='fastflow', num_workers=1 thread"),
        ({"num_workers": 2, "kind": "processes"}, "policy='optimal', num_workers=2 processes"),
        ({"policy": "2:webp", "num_workers": 0}, "policy='2:webp', num_workers=0"),
        ({"policy": "none", "num_workers": 0}, "policy='none', num_workers=0"),
        ({"policy": ["1:raw", "0:raw"] * 11 + ["0:raw"], "num_workers": 0}, "plan of 2 cuts, num_workers=0"),
    ],
)
def test_a_loader_says_what_it_loads_and_how(server, settings, shown):
    loader = sophon.DataLoader(server.url, RECIPE, **grouped(batch_size=8, **settings))
    assert repr(loader) == f"DataLoader('{server.url}', 23 samples, batch_size=8, {shown})"


def test_a_loader_says_how_many_workers_there_are_where_it_finds_them_by_itself(server):
    loader = sophon.DataLoader(server.url, RECIPE, batch_size=8)
    word = "thread" if loader.setting.workers == 1 else "threads"
    assert repr(loader).endswith(f", num_workers='auto' ({loader.setting.workers} {word}))")


def test_a_loader_of_a_path_and_a_cache(images, tmp_path):
    assert repr(sophon.DataLoader(images, RECIPE, batch_size=8)) == (
        f"DataLoader('{images}', 23 samples, batch_size=8, policy='none', num_workers=0)"
    )
    cached = sophon.DataLoader(images, RECIPE, batch_size=8, cache=sophon.Cache("1:raw", tmp_path))
    assert "cache='1:raw'" in repr(cached)


def test_a_name_that_the_address_does_not_show_is_added(images, monkeypatch):
    monkeypatch.chdir(images)
    assert repr(sophon.DataLoader(".", RECIPE)).startswith("DataLoader('.' (train), 23 samples, ")


def test_a_data_set_says_what_it_is(server, images, tmp_path):
    dataset = sophon.RemoteDataset(server.url, RECIPE, policy="all", seed=7)
    steps = f"{len(RECIPE)} ops, policy='{RECIPE.max_cut}:raw', seed=7"
    assert repr(dataset) == f"RemoteDataset('{server.url}', 23 samples, 3 classes, {steps})"
    one = sophon.RemoteDataset(make_images(tmp_path / "one", 1, classes=0), [sophon.ops.Decode()])
    assert repr(one) == f"RemoteDataset('{tmp_path}/one', 1 sample, 1 op, policy='none', seed=0)"
    assert "\n" not in repr(sophon.RemoteDataset(images, RECIPE))


def test_a_token_is_not_shown(server):
    dataset = sophon.RemoteDataset(server.url, RECIPE, credentials=sophon.Credentials(token="very-secret"))
    assert "very-secret" not in repr(dataset)
    assert "very-secret" not in repr(sophon.DataLoader(dataset))
