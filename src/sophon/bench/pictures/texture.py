"""Wrap-around textures with the statistics of photos, built once and cut from many times.

A photo's power spectrum falls roughly as 1/f²: smooth Gaussian fields of this kind imitate grain, grass and haze, and
opaque leaves of all sizes falling on each other ("dead leaves") imitate foliage and clutter, with edges.

Every tile wraps around. It is stored twice, one copy below the other, so a piece that begins at any pixel is contiguous
in memory (see ``piece``) and is read in a third of the time that separate rows would take.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw

U8 = npt.NDArray[np.uint8]
I8 = npt.NDArray[np.int8]
I16 = npt.NDArray[np.int16]
F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]
Byte = TypeVar("Byte", np.uint8, np.int8)
Corners = list[tuple[float, float]]

TILE_PX = 1024
"""Side of the area of a photo that a tile covers; also the largest side of a photo."""

TILE_STD = 31.0
"""Standard deviation of a luma tile; four times this still fits in int8."""

MOST_TINT_STD = 17.0
"""Largest standard deviation of a chroma tile; three times this fits between any colour and the ends of a byte."""

LEAF_TINT = 0.7
"""Factor on the standard deviation of leaves, whose colours come in larger patches."""


@dataclass(frozen=True)
class Spectrum:
    """How fast power falls with frequency.

    Args:
        slope: Power falls as ``f ** -slope``.
        lens_cutoff: Cycles per pixel at which the lens and the camera's own scaling begin to blur.
    """

    slope: float
    lens_cutoff: float


@dataclass(frozen=True)
class Texture:
    """Two textures of a photo: an even one and a busy one.

    Args:
        even: Luma, standard deviation ``TILE_STD`` around 0. One tile per phase: of every ``scale`` × ``scale`` pixels,
            the first tile has the upper left, the next the one to its right, and so on.
        change: ``even ^ change`` is the busy texture.
        tints: Blue and red difference, one pixel per pixel of a phase.
        tint_roughness: Logarithm of the mean difference between neighbouring pixels of the tints.
    """

    even: I8
    change: I8
    tints: tuple[I8, I8]
    tint_roughness: float


@dataclass(frozen=True)
class Bank:
    """Tiles to cut photos from, each ``TILE_PX / scale`` wide and twice as high, and shapes to draw.

    Args:
        scale: Pixels of a photo per pixel of the map it is drawn on, in each direction.
        textures: Textures to choose from, one for each photo.
        light: Very smooth variation, such as clouds and shade; standard deviation ``TILE_STD`` around 0.
        patches: Uniform over 0..255, so that ``patches < 25`` is a tenth of the area, in patches with ragged edges.
        ramps: Columns of brightness that rises or falls evenly, in 16ths of luma steps.
        outlines: Corners of rounded and angular objects, from 0 to 1.
        skylines: Points of ridges, x from 0 to 1 and y from -1 to 1.
    """

    scale: int
    textures: tuple[Texture, ...]
    light: I8
    patches: U8
    ramps: tuple[I16, ...]
    outlines: tuple[Corners, ...]
    skylines: tuple[Corners, ...]


def build_bank(rng: np.random.Generator, spectrum: Spectrum, tint_std: float, scale: int) -> Bank:
    """Draw all tiles, which takes a little over half a second."""
    side = TILE_PX // scale
    soft = Spectrum(spectrum.slope + 0.1, spectrum.lens_cutoff / 2)
    patchy = field(rng, spectrum) * np.exp(0.7 * field(rng, Spectrum(3.0, 0.02), least_cycles=6))
    clutter, leaf_hues = dead_leaves(rng, spectrum, scale)
    planes = (field(rng, spectrum), field(rng, spectrum, stretch=2.0), patchy, clutter)
    grain, grass, tufts, leaves = (_phases(_scaled(plane, TILE_STD), scale) for plane in planes)
    hues = (field(rng, soft, side=side, least_cycles=24), field(rng, soft, side=side, least_cycles=24))
    tints, leaf_tints = _tints(*hues, tint_std), _tints(*leaf_hues, LEAF_TINT * tint_std)
    grain_and_leaves = Texture(grain, grain ^ leaves, *leaf_tints)
    tufts_and_leaves = Texture(tufts, tufts ^ leaves, *leaf_tints)
    tufts_and_grass = Texture(tufts, tufts ^ grass, *tints)
    return Bank(
        scale=scale,
        textures=(grain_and_leaves, grain_and_leaves, tufts_and_leaves, tufts_and_leaves, tufts_and_grass),
        light=_twice(_scaled(field(rng, Spectrum(4.2, 0.05), side=side, least_cycles=2), TILE_STD)),
        patches=_twice(_ranks(field(rng, Spectrum(3.6, 0.1), side=side, least_cycles=4))),
        ramps=tuple(_ramp(rng, side) for _ in range(64)),
        outlines=tuple(_outline(rng) for _ in range(64)),
        skylines=tuple(_skyline(rng) for _ in range(64)),
    )


def piece(tile: npt.NDArray[Byte], corner: int, size: tuple[int, int]) -> npt.NDArray[Byte]:
    """Return a piece of a tile: ``size`` columns and rows, beginning at pixel number ``corner``.

    Pixels beyond the right edge continue at the left edge one row lower, which is not visible.
    """
    width, height = size
    side = tile.shape[1]
    return tile.reshape(-1)[corner : corner + height * side].reshape(height, side)[:, :width]


def field(
    rng: np.random.Generator, spectrum: Spectrum, side: int = TILE_PX, stretch: float = 1.0, least_cycles: int = 9
) -> F32:
    """Return a Gaussian field of mean 0 and standard deviation 1.

    Args:
        rng: Source of randomness.
        spectrum: How its power falls.
        side: Its width and height.
        stretch: Factor by which its patterns are longer in y than in x.
        least_cycles: Number of cycles per ``TILE_PX`` below which power no longer grows; otherwise one huge wave would
            dominate.
    """
    fy = np.fft.fftfreq(side)[:, None] * stretch
    fx = np.fft.rfftfreq(side)[None, :] / stretch
    f2 = fy * fy + fx * fx
    power = np.maximum(f2, (least_cycles / TILE_PX) ** 2) ** (-spectrum.slope / 2)
    power /= 1 + f2 / spectrum.lens_cutoff**2
    power[0, 0] = 0.0
    white = rng.standard_normal((*f2.shape, 2), dtype=np.float32).view(np.complex64)[..., 0]
    plane = np.fft.irfft2(white * np.sqrt(power, dtype=np.float32), s=(side, side)).astype(np.float32)
    scaled: F32 = plane / plane.std()
    return scaled


def dead_leaves(
    rng: np.random.Generator, spectrum: Spectrum, scale: int, count: int = 9000
) -> tuple[F32, tuple[F32, F32]]:
    """Return luma and chroma of opaque leaves that have fallen on each other; their radii have density r⁻³.

    Args:
        rng: Source of randomness.
        spectrum: Spectrum of the grain on the leaves.
        scale: Pixels of luma per pixel of chroma, in each direction.
        count: Number of leaves; the areas of 9,000 add up to a little more than the tile.
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
    luma, blue, red = (
        np.asarray(band.reduce(fine * step), dtype=np.float32) - 128
        for band, step in zip(sheet.split(), (1, scale, scale), strict=True)
    )
    return luma / luma.std() + np.float32(0.35) * field(rng, spectrum), (blue / blue.std(), red / red.std())


def _wraps(center: list[float], radius: float, side: int) -> list[tuple[float, float]]:
    """Return the places where a leaf must be drawn so that the sheet wraps around."""
    x, y = ([c + shift for shift in (-side, 0, side) if -radius < c + shift < side + radius] for c in center)
    return [(a, b) for a in x for b in y]


def _tints(one: F32, other: F32, std: float) -> tuple[tuple[I8, I8], float]:
    """Return blue and red difference from two independent fields, and their roughness.

    Redder areas are less blue.
    """
    blue, red = (_scaled(plane, std, limit=3) for plane in (0.5 * other - one, 0.5 * other + one))
    roughness = float(np.log(np.abs(np.diff(red.astype(np.int16), axis=0)).mean()))
    return (_twice(blue), _twice(red)), roughness


def _outline(rng: np.random.Generator) -> Corners:
    """Return the corners of a rounded (three in five) or angular object."""
    if rng.random() < 0.6:
        around = np.linspace(0, 2 * np.pi, 24, endpoint=False)
        radius = np.ones(around.size)
        for wave in range(2, 7):
            radius += rng.normal(0, 0.22) / (wave - 1) * np.cos(wave * around + rng.uniform(0, 2 * np.pi))
    else:
        around = np.sort(rng.random(int(rng.integers(4, 8)))) * 2 * np.pi
        radius = np.ones(around.size)
    x, y = (plane - plane.min() for plane in (radius * np.cos(around), radius * np.sin(around)))
    return list(zip((x / x.max()).tolist(), (y / y.max()).tolist(), strict=True))


def _skyline(rng: np.random.Generator) -> Corners:
    """Return the points of a ridge."""
    waves = np.exp(2j * np.pi * rng.random(32)) / np.arange(1, 33)
    heights = np.fft.irfft(np.concatenate(([0], waves)), 128)[:64]
    return list(zip(np.linspace(0, 1, 64).tolist(), (heights / np.abs(heights).max()).tolist(), strict=True))


def _ramp(rng: np.random.Generator, side: int) -> I16:
    """Return one of the ``Bank.ramps``; their spread was chosen by eye."""
    top, bottom = rng.normal(0, 240, 2).tolist()
    return np.linspace(top, bottom, side, dtype=np.int16)[:, None]


def _ranks(plane: F32) -> U8:
    """Replace values by their rank, scaled to 0..255."""
    order = np.empty(plane.size, np.int64)
    order[np.argsort(plane, axis=None)] = np.arange(plane.size)
    return (order * 256 // plane.size).astype(np.uint8).reshape(plane.shape)


def _scaled(plane: F32, std: float, limit: float = 4) -> I8:
    """Scale a plane to a standard deviation and clip it at ``limit`` standard deviations."""
    scaled: I8 = np.rint(np.clip(plane / plane.std(), -limit, limit) * std).astype(np.int8)
    return scaled


def _phases(plane: I8, scale: int) -> I8:
    """Return one tile for each of the ``scale`` × ``scale`` positions of a pixel within a pixel of the map."""
    return np.stack([_twice(plane[y::scale, x::scale]) for y in range(scale) for x in range(scale)])


def _twice(tile: npt.NDArray[Byte]) -> npt.NDArray[Byte]:
    """Return a tile with a copy of itself below it."""
    return np.concatenate((tile, tile))
