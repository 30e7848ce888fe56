"""A canvas for made-up photos: regions first, then texture and light over all of them.

Regions are numbers on a map, drawn by Pillow, and a table of what each number looks like. To finish, the map is looked
up plane by plane (luma, chroma, amount of detail) and the textures of the bank are laid over the whole at once, scaled
by the amount of detail: NumPy on whole arrays of small integers, which is what makes it quick.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

import numpy as np
from PIL import Image, ImageDraw

from sophon.bench.texture import GRAIN, GRASS, LEAVES, TILE_PX, TUFTS, U8, Bank

Box = tuple[int, int, int, int]
"""Left, top, right and bottom; right and bottom are outside."""

MOST_DETAIL = 220
"""Upper bound of detail: with it, colour plus tint cannot leave a byte (190 + 3 * TINT_STD * 281 / 256 < 256)."""

LEAST_TINT = 60
"""Added to detail for chroma: colour is never even, be it only for the noise of the sensor."""

TEXTURES = ((GRAIN, LEAVES), (TUFTS, LEAVES), (TUFTS, GRASS), (GRAIN, LEAVES), (TUFTS, LEAVES))
"""Pairs of textures that a photo is made with: one rather even, one rather busy."""


@dataclass(frozen=True)
class Material:
    """What a region is made of.

    Args:
        luma: Darkest and brightest mean luma.
        blue: Mean of the blue-difference channel.
        red: Mean of the red-difference channel.
        tint: How far the colour strays from that, in chroma steps.
        detail: Least and most contrast of the texture (standard deviation in luma steps).
        busy: Chance of the busier of the photo's two textures.
    """

    luma: tuple[int, int]
    blue: int
    red: int
    tint: float
    detail: tuple[float, float]
    busy: float = 0.0


class Canvas:
    """A map of regions and what they are made of.

    Args:
        rng: Source of every choice of this photo.
        bank: The tiles.
        size: Width and height.
        busy: Factor on all detail.
    """

    def __init__(self, rng: Random, bank: Bank, size: tuple[int, int], busy: float = 1.0) -> None:
        self.rng = rng
        self._bank = bank
        self._busy = busy
        self._size = size
        # Photos of a thousand pixels are soft at the pixel: half a map has all their edges, at a quarter of the cost.
        self._scale = 2 if max(size) > 640 else 1
        self.width, self.height = (-(-side // self._scale) for side in size)
        self._map = Image.new("L", (self.width, self.height))
        self._draw = ImageDraw.Draw(self._map)
        # Luma, blue and red difference, and detail of region n at offset n. Detail is odd where the busier of the
        # photo's two textures is laid.
        self._tables = tuple(bytearray(256) for _ in range(4))
        self._regions = 0

    def _region(self, material: Material) -> int:
        """Return the number of a new region made of that material."""
        rng = self.rng
        detail = 2 * round(rng.uniform(*material.detail) * self._busy)
        values = (
            _within(0, rng.uniform(*material.luma), 255),
            _within(66, rng.gauss(material.blue, material.tint), 190),
            _within(66, rng.gauss(material.red, material.tint), 190),
            _within(0, detail, MOST_DETAIL) + (rng.random() < material.busy),
        )
        number = self._regions
        self._regions += 1  # scenes have some fifty; a bytearray refuses the 257th
        for table, value in zip(self._tables, values, strict=True):
            table[number] = value
        return number

    def fill(self, material: Material, *boxes: Box) -> None:
        """Fill boxes with one and the same, or everything."""
        region = self._region(material)
        for left, top, right, bottom in boxes or [(0, 0, self.width, self.height)]:
            self._draw.rectangle((left, top, right - 1, bottom - 1), fill=region)

    def hills(self, material: Material, level: float, rough: float) -> None:
        """Fill all below a skyline at ``level`` (share of the height) that is ``rough`` high."""
        waves = np.arange(1, 65)
        phase = 2 * np.pi * np.array([self.rng.random() for _ in waves])
        line = np.fft.irfft(np.concatenate(([0], np.exp(1j * phase) / waves)), 256)[:128]
        line *= rough / np.abs(line).max()
        x = np.linspace(0, self.width, line.size)
        skyline = np.stack((x, (level + line) * self.height), 1).ravel().tolist()
        corners = (self.width, self.height, 0, self.height)
        self._draw.polygon((*skyline, *corners), fill=self._region(material))

    def patches(self, material: Material, share: float) -> None:
        """Fill ragged patches that cover about ``share`` of the canvas."""
        piece = self._bank.patches[_piece(self.rng, self._map.size)]
        mask = Image.fromarray(piece < np.uint8(255 * share))
        self._map.paste(self._region(material), (0, 0, self.width, self.height), mask)

    def thing(self, material: Material, box: Box) -> None:
        """Fill one rounded or angular shape."""
        left, top, right, bottom = box
        corners = self.rng.choice(self._bank.outlines) * (right - left, bottom - top) + (left, top)
        self._draw.polygon(corners.ravel().tolist(), fill=self._region(material))

    def finish(self, halved_chroma: bool) -> tuple[U8, U8, U8]:
        """Lay texture and light over the regions; return luma and the two chroma planes.

        Args:
            halved_chroma: The file will keep one chroma pixel of four, so none need be put between.
        """
        bank, (luma_table, blue_table, red_table, detail_table) = self._bank, self._tables
        even, busy = self.rng.choice(TEXTURES)
        place = _piece(self.rng, self._size)
        regions = self._map.tobytes()

        def looked_up(table: bytearray) -> U8:
            # Quicker than Image.point, which goes through the table in Python, and than NumPy's indexing.
            return np.frombuffer(regions.translate(table), np.uint8).reshape(self.height, self.width)

        amounts = looked_up(detail_table)
        detail = self._enlarged(amounts)
        mixed = bank.luma[even][place] ^ bank.luma[busy][place]
        mixed &= np.negative(detail & 1).view(np.int8)
        mixed ^= bank.luma[even][place]
        luma = mixed.astype(np.int16)
        luma *= detail.astype(np.int16)
        luma >>= 6
        luma += self._smoothed(self._lit(looked_up(luma_table)))
        np.clip(luma, 0, 255, out=luma)

        chroma_detail = amounts.astype(np.int16)
        chroma_detail += LEAST_TINT
        chroma = []
        for table, tile in zip((blue_table, red_table), bank.chroma[busy], strict=True):
            tint = tile[place][: self.height, : self.width].astype(np.int16)
            tint *= chroma_detail
            tint >>= 8
            # Bytes wrap around, but MOST_DETAIL and LEAST_TINT keep the sum within one.
            colour = looked_up(table) + tint.astype(np.int8).view(np.uint8)
            coarse = halved_chroma or self._scale == 1
            chroma.append(self._enlarged(colour) if coarse else self._smoothed(colour))
        return luma.astype(np.uint8), chroma[0], chroma[1]

    def _lit(self, luma: U8) -> U8:
        """Return luma of the regions under uneven light."""
        rng = self.rng
        light = self._bank.light[_piece(rng, self._map.size)].astype(np.int16)
        light *= np.int16(rng.uniform(8, 48))
        light >>= 6
        light += np.linspace(rng.gauss(0, 15), rng.gauss(0, 15), self.height).astype(np.int16)[:, None]
        light += luma
        return np.clip(light, 0, 255).astype(np.uint8)

    def _enlarged(self, plane: U8) -> U8:
        """Return a plane of the map at the size of the photo."""
        if self._scale == 2:
            # A byte times 257 is that byte twice: far quicker than np.repeat along rows.
            plane = np.repeat((plane.astype(np.uint16) * np.uint16(257)).view(np.uint8), 2, axis=0)
        return plane[: self._size[1], : self._size[0]]

    def _smoothed(self, plane: U8) -> U8:
        """Return a plane of the map at the size of the photo, with edges no harder than a lens makes them."""
        plane = _doubled(plane) if self._scale == 2 else _blurred(plane)
        return plane[: self._size[1], : self._size[0]]


def _blurred(plane: U8) -> U8:
    """Average diagonal neighbours."""
    soft: U8 = plane >> np.uint8(1)
    soft[1:, 1:] += plane[:-1, :-1] >> 1
    soft[:1] = plane[:1]
    soft[:, :1] = plane[:, :1]
    return soft


def _doubled(plane: U8) -> U8:
    """Return a plane twice as large, with averages between."""
    between = plane.copy()
    between[:, :-1] = (plane[:, :-1] >> 1) + (plane[:, 1:] >> 1)
    # Pairs of bytes made as 16-bit numbers: far quicker than writing to every other column.
    wide = (plane.astype("<u2") | between.astype("<u2") << np.uint16(8)).view(np.uint8)
    tall = np.empty((2 * len(wide), wide.shape[1]), np.uint8)
    tall[::2] = wide
    tall[1:-1:2] = (wide[:-1] >> 1) + (wide[1:] >> 1)
    tall[-1] = wide[-1]
    return tall


def _piece(rng: Random, size: tuple[int, int]) -> tuple[slice, slice]:
    """Return rows and columns of a piece of a tile, anywhere."""
    top, left = rng.randrange(TILE_PX), rng.randrange(TILE_PX)
    return np.s_[top : top + size[1], left : left + size[0]]


def _within(low: int, value: float, high: int) -> int:
    return min(max(int(value), low), high)
