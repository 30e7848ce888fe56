import numpy as np
import pytest

from sophon.bench.pictures.texture import TILE_PX, Spectrum, build_bank, field, piece


@pytest.fixture(scope="module")
def bank():
    return build_bank(np.random.default_rng(0), Spectrum(2.3, 0.25), tint_std=13.0, scale=2)


def tiles(bank):
    for texture in bank.textures:
        yield from (*texture.even, *(texture.even ^ texture.change), *texture.tints)
    yield bank.light


def test_tiles_wrap_around(bank):
    side = TILE_PX // 2
    for tile in tiles(bank):
        assert tile.shape == (2 * side, side)
        once = tile[:side].astype(float)
        assert (tile[side:] == once).all()
        seam = np.abs(once[:, 0] - once[:, -1]).mean() + np.abs(once[0] - once[-1]).mean()
        inside = np.abs(np.diff(once, axis=1)).mean() + np.abs(np.diff(once, axis=0)).mean()
        assert seam < 1.3 * inside


def test_a_piece_is_read_where_it_lies_and_goes_on_one_row_lower_beyond_the_right_edge(bank):
    tile, side = bank.light, bank.light.shape[1]
    part = piece(tile, (side - 1) * side + side - 2, (5, side))  # its last row but one, its last column but one
    assert np.shares_memory(part, tile)
    assert (part[:, :2] == tile[side - 1 : 2 * side - 1, -2:]).all()
    assert (part[:-1, 2:] == tile[side : 2 * side - 1, :3]).all()


def test_neighbouring_phases_are_neighbouring_pixels(bank):
    for texture in bank.textures:
        upper_left, upper_right, lower_left, _ = texture.even.astype(float)
        for neighbour in (upper_right, lower_left):
            near = np.abs(upper_left - neighbour).mean()
            assert near < np.abs(np.diff(upper_left, axis=int(neighbour is upper_right))).mean()


def test_a_share_of_the_patches_is_that_share_of_the_area(bank):
    for share in (0.1, 0.5):
        assert (bank.patches < 255 * share).mean() == pytest.approx(share, abs=0.01)


def test_outlines_fill_their_box(bank):
    for outline in bank.outlines:
        assert np.min(outline, 0) == pytest.approx([0, 0])
        assert np.max(outline, 0) == pytest.approx([1, 1])


def test_skylines_reach_from_edge_to_edge(bank):
    for skyline in bank.skylines:
        x, y = np.transpose(skyline)
        assert (x[0], x[-1]) == (0, 1)
        assert np.abs(y).max() == pytest.approx(1)


@pytest.mark.parametrize("slope", [2.0, 3.0])
def test_a_field_has_the_slope_asked_for(slope):
    plane = field(np.random.default_rng(1), Spectrum(slope, lens_cutoff=100.0))
    power = np.abs(np.fft.fft2(plane)) ** 2
    octaves = [power[0, 16:32].mean() + power[16:32, 0].mean(), power[0, 128:256].mean() + power[128:256, 0].mean()]
    assert np.log2(octaves[0] / octaves[1]) / 3 == pytest.approx(slope, abs=0.4)
