import numpy as np
import pytest

from sophon.bench.texture import TILE_PX, Spectrum, build_bank, field


@pytest.fixture(scope="module")
def bank():
    return build_bank(np.random.default_rng(0), Spectrum(2.3, 0.25))


def test_tiles_wrap_around(bank):
    for tile in (*bank.luma, *bank.chroma[0], *bank.chroma[-1], bank.light):
        once = tile[:TILE_PX, :TILE_PX].astype(float)
        assert (tile[TILE_PX:, TILE_PX:] == once).all()
        seam = np.abs(once[:, 0] - once[:, -1]).mean() + np.abs(once[0] - once[-1]).mean()
        inside = np.abs(np.diff(once, axis=1)).mean() + np.abs(np.diff(once, axis=0)).mean()
        assert seam < 1.3 * inside


def test_a_share_of_the_patches_is_that_share_of_the_area(bank):
    for share in (0.1, 0.5):
        assert (bank.patches < 255 * share).mean() == pytest.approx(share, abs=0.01)


def test_outlines_fill_their_box(bank):
    for outline in bank.outlines:
        assert outline.min(0) == pytest.approx([0, 0])
        assert outline.max(0) == pytest.approx([1, 1])


@pytest.mark.parametrize("slope", [2.0, 3.0])
def test_a_field_has_the_slope_asked_for(slope):
    plane = field(np.random.default_rng(1), Spectrum(slope, lens_cutoff=100.0))
    power = np.abs(np.fft.fft2(plane)) ** 2
    octaves = [power[0, 16:32].mean() + power[16:32, 0].mean(), power[0, 128:256].mean() + power[128:256, 0].mean()]
    assert np.log2(octaves[0] / octaves[1]) / 3 == pytest.approx(slope, abs=0.4)
