"""Files that somebody else wrote: what is wrong with one sample is wrong with that sample alone."""

import os

import pytest

import sophon
from tests.support.servers import RECIPE, make_images, serve


@pytest.fixture
def images(tmp_path):
    """Twelve pictures and a sparse file of a terabyte that calls itself one."""
    folder = make_images(tmp_path / "train", 12)
    sparse = folder / "class_1" / "9999.jpg"
    sparse.touch()
    os.truncate(sparse, 1 << 40)
    return folder


@pytest.mark.parametrize("way", ["local", "node"])
@pytest.mark.parametrize("policy", ["none", "2:webp"])
def test_a_terabyte_that_is_not_there_costs_that_sample_alone(images, way, policy):
    def count(source):
        loader = sophon.DataLoader(source, RECIPE, batch_size=4, on_error="skip", policy=policy)
        samples = sum(len(batch[0]) for batch in loader)
        assert [bad.id for bad in loader.bad_samples] == ["class_1/9999.jpg"]
        return samples

    if way == "local":
        assert count(images) == 12
    else:
        with serve(images) as server:
            assert count(server.url) == 12


def test_it_is_named(images):
    loader = sophon.DataLoader(images, RECIPE, batch_size=13)
    with pytest.raises(sophon.Error, match=r"9999\.jpg.*1,099,511,627,776 bytes"):
        list(loader)
