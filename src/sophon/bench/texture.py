"""Wrap-around textures with the statistics of photos, built once and cut from many times.

A photo's power spectrum falls roughly as 1/f²: smooth Gaussian fields give that for grain, grass and haze, and
opaque leaves of all sizes falling on each other ("dead leaves") give it for foliage and clutter, with edges.
Every tile wraps around and is stored twice in each direction, so that a piece at any offset is a plain slice.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw

U8 = npt.NDArray[np.uint8]
I8 = npt.NDArray[np.int8]
F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]

TILE_PX = 1024
"""Side of a tile; also the largest side of a photo."""

TILE_STD = 31.0
"""Standard deviation of a luma tile: four of them still fit in int8."""

TINT_STD = 17.0
"""Standard deviation of a chroma tile."""

LEAF_TINT_STD = 12.0
"""The same for leaves, whose colours lie in larger patches."""

GRAIN, GRASS, TUFTS, LEAVES = range(4)
"""Rows of ``Bank.luma``: even, streaked, patchy, and hard-edged detail."""


@dataclass(frozen=True)
class Spectrum:
    """How fast power falls with frequency.

    Args:
        slope: Power goes as ``f ** -slope``.
        lens_cutoff: Cycles per pixel where the lens and the camera's own scaling begin to blur.
    """

    slope: float
    lens_cutoff: float


@dataclass(frozen=True)
class Bank:
    """Tiles to cut photos from; every array is ``2 * TILE_PX`` wide and high.

    Args:
        luma: One tile per row of the list above; standard deviation ``TILE_STD`` around 0.
        chroma: (blue, red) difference tiles per luma tile.
        light: Very smooth: clouds, shade, the play of light.
        patches: Uniform over 0..255: ``patches < 25`` is a tenth of the area, in patches with ragged edges.
        outlines: (x, y) of the corners of rounded and angular things, from 0 to 1.
    """

    luma: tuple[I8, ...]
    chroma: tuple[tuple[I8, I8], ...]
    light: I8
    patches: U8
    outlines: tuple[F64, ...]


def build_bank(rng: np.random.Generator, spectrum: Spectrum) -> Bank:
    """Draw all tiles; takes a good half second."""
    soft = Spectrum(spectrum.slope + 0.1, spectrum.lens_cutoff / 2)
    grain = field(rng, spectrum)
    grass = field(rng, spectrum, stretch=2.0)
    tufts = field(rng, spectrum) * np.exp(0.7 * field(rng, Spectrum(3.0, 0.02), least_cycles=6))
    leaves, leaf_blue, leaf_red = dead_leaves(rng, spectrum)
    tint = _warm_or_cold(field(rng, soft, least_cycles=24), field(rng, soft, least_cycles=24), TINT_STD)
    return Bank(
        luma=tuple(_tile(plane, TILE_STD) for plane in (grain, grass, tufts, leaves)),
        chroma=(tint, tint, tint, _warm_or_cold(leaf_blue, leaf_red, LEAF_TINT_STD)),
        light=_tile(field(rng, Spectrum(4.2, 0.05), least_cycles=2), TILE_STD),
        patches=np.tile(_ranks(field(rng, Spectrum(3.6, 0.1), least_cycles=4)), (2, 2)),
        outlines=tuple(_outline(rng) for _ in range(64)),
    )


def field(rng: np.random.Generator, spectrum: Spectrum, stretch: float = 1.0, least_cycles: int = 9) -> F32:
    """Return a Gaussian field of mean 0 and standard deviation 1.

    Args:
        rng: Where it comes from.
        spectrum: How its power falls.
        stretch: How much longer its patterns are in y than in x.
        least_cycles: Below so many cycles per tile power no longer grows; or else one huge wave would win.
    """
    fy = np.fft.fftfreq(TILE_PX)[:, None] * stretch
    fx = np.fft.rfftfreq(TILE_PX)[None, :] / stretch
    f2 = fy * fy + fx * fx
    power = np.maximum(f2, (least_cycles / TILE_PX) ** 2) ** (-spectrum.slope / 2)
    power /= 1 + f2 / spectrum.lens_cutoff**2
    power[0, 0] = 0.0
    white = rng.standard_normal((*f2.shape, 2), dtype=np.float32).view(np.complex64)[..., 0]
    plane = np.fft.irfft2(white * np.sqrt(power, dtype=np.float32), s=(TILE_PX, TILE_PX)).astype(np.float32)
    scaled: F32 = plane / plane.std()
    return scaled


def dead_leaves(rng: np.random.Generator, spectrum: Spectrum, count: int = 9000) -> tuple[F32, F32, F32]:
    """Return luma and chroma of opaque leaves fallen on each other, radii with density r⁻³.

    Args:
        rng: Where the leaves come from.
        spectrum: Of the grain on the leaves.
        count: Leaves; the areas of 9,000 add up to a little more than the tile.
    """
    fine = 2  # drawn twice as large and reduced, which smooths the edges as a lens does
    side = TILE_PX * fine
    sheet = Image.new("RGB", (side, side), (128, 128, 128))
    draw = ImageDraw.Draw(sheet)
    rings = [np.exp(2j * np.pi * np.arange(n) / n) for n in range(3, 9)]
    radii = fine * (4.0**-2 + rng.random(count) * (110.0**-2 - 4.0**-2)) ** -0.5
    turns = radii * np.exp(2j * np.pi * rng.random(count))
    slims = rng.uniform(0.08, 1.0, count)
    kinds = rng.integers(0, len(rings), count)
    shades = np.clip(rng.normal(128.0, (44.0, 14.0, 14.0), (count, 3)), 0, 255).astype(int)
    centers = side * rng.random((count, 2))
    for center, radius, turn, slim, kind, shade in zip(
        centers.tolist(), radii.tolist(), turns, slims, kinds, shades.tolist(), strict=True
    ):
        outline = turn * (rings[kind].real + 1j * slim * rings[kind].imag)
        for x, y in _wraps(center, radius, side):
            draw.polygon((outline + complex(x, y)).view(np.float64).tolist(), fill=tuple(shade))
    planes = np.asarray(sheet.reduce(fine), dtype=np.float32) - 128
    luma, blue, red = (planes[..., k] / planes[..., k].std() for k in range(3))
    return luma + np.float32(0.35) * field(rng, spectrum), blue, red


def _wraps(center: list[float], radius: float, side: int) -> list[tuple[float, float]]:
    """Return the places where a leaf must be drawn so that the sheet wraps around."""
    x, y = ([c + shift for shift in (-side, 0, side) if -radius < c + shift < side + radius] for c in center)
    return [(a, b) for a in x for b in y]


def _warm_or_cold(one: F32, other: F32, std: float) -> tuple[I8, I8]:
    """Return blue and red difference from two independent fields: where things are redder they are less blue."""
    blue, red = 0.5 * other - one, 0.5 * other + one
    return _tile(blue, std, limit=3), _tile(red, std, limit=3)


def _outline(rng: np.random.Generator) -> F64:
    """Return the corners of something rounded (three in five) or angular."""
    if rng.random() < 0.6:
        around = np.linspace(0, 2 * np.pi, 36, endpoint=False)
        radius = np.ones(around.size)
        for wave in range(2, 7):
            radius += rng.normal(0, 0.22) / (wave - 1) * np.cos(wave * around + rng.uniform(0, 2 * np.pi))
    else:
        around = np.sort(rng.random(int(rng.integers(4, 8)))) * 2 * np.pi
        radius = np.ones(around.size)
    corners = np.stack((radius * np.cos(around), radius * np.sin(around)), 1)
    corners -= corners.min(0)
    return np.asarray(corners / corners.max(0))


def _ranks(plane: F32) -> U8:
    """Replace values by their rank, scaled to 0..255."""
    order = np.empty(plane.size, np.int64)
    order[np.argsort(plane, axis=None)] = np.arange(plane.size)
    return (order * 256 // plane.size).astype(np.uint8).reshape(plane.shape)


def _tile(plane: F32, std: float, limit: float = 4) -> I8:
    """Scale a plane to a standard deviation, clip it at ``limit`` of them and repeat it in both directions."""
    return np.tile(np.rint(np.clip(plane / plane.std(), -limit, limit) * std).astype(np.int8), (2, 2))
