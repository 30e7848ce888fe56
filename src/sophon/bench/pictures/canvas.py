"""A canvas for synthetic photos: regions first, then texture and light over all of them.

Regions are numbers on a map, drawn by Pillow; the number is the region's luma, and tables give its other properties
(chroma, amount of detail). To finish, the map is looked up plane by plane, and light and the bank's textures are laid
over the whole map at once, scaled by the amount of detail. This is fast because all work is NumPy on contiguous arrays
of small integers, no larger than the map, which stay in the processor's cache.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

import numpy as np
from PIL import Image, ImageDraw

from sophon.bench.pictures.texture import I8, I16, U8, Bank, piece

Box = tuple[int, int, int, int]
"""Left, top, right and bottom; right and bottom are exclusive."""

MOST_DETAIL = 110
"""Upper bound on detail. It keeps red paint with its tint in a byte (198 + 3 * MOST_TINT_STD * 141 / 128 < 256), and 32
times luma with texture in an int16 (32 * 255 + 4 * TILE_STD * 111, and less than 5,000 for light)."""

LEAST_TINT = 30
"""Added to detail for chroma: colour is never perfectly even, because of the sensor's noise."""

BLACK, WHITE = np.int16(0), np.int16(255)


@dataclass(frozen=True)
class Material:
    """The material of a region.

    Args:
        luma: Darkest and brightest mean luma.
        blue: Mean of the blue-difference channel.
        red: Mean of the red-difference channel.
        tint: How far the colour may stray from these means, in chroma steps.
        detail: Lowest and highest contrast of the texture (standard deviation in luma steps).
        busy: Probability of the busier of the photo's two textures.
    """

    luma: tuple[int, int]
    blue: int
    red: int
    tint: int
    detail: tuple[float, float]
    busy: float = 0.0


class Canvas:
    """A map of regions and their materials.

    Args:
        rng: Source of all random choices for this photo.
        bank: The tiles.
        size: Width and height.
        busy: Factor on all detail.
    """

    def __init__(self, rng: Random, bank: Bank, size: tuple[int, int], busy: float = 1.0) -> None:
        self.rng = rng
        self.texture = rng.choice(bank.textures)
        self._bank = bank
        self._busy = busy
        self._size = size
        self.width, self.height = (-(-side // bank.scale) for side in size)
        self._map_size = self.width, self.height
        self._map = bytearray(self.width * self.height)
        image = Image.frombuffer("L", self._map_size, self._map, "raw", "L", 0, 1)
        image.readonly = 0  # otherwise Pillow would draw on a copy of the bytes
        self._draw = ImageDraw.Draw(image)
        # Blue and red difference, and detail of region n at offset n. Detail is odd in regions with the busier of the
        # photo's two textures.
        self._tables = (bytearray(256), bytearray(256), bytearray(256))
        self._numbers: set[int] = set()

    def _region(self, material: Material) -> int:
        """Return the number of a new region of that material: its luma, or the nearest value that is still free."""
        rng = self.rng
        number = rng.randint(*material.luma)
        step = 1 if number < 128 else -1
        while number in self._numbers:  # stays in a byte: 128 numbers lie ahead, and scenes have some fifty regions
            number += step
        self._numbers.add(number)
        detail = min(int(rng.uniform(*material.detail) * self._busy), MOST_DETAIL)
        blue_table, red_table, detail_table = self._tables
        blue_table[number] = material.blue + int(material.tint * rng.uniform(-1, 1))
        red_table[number] = material.red + int(material.tint * rng.uniform(-1, 1))
        detail_table[number] = detail - detail % 2 + (rng.random() < material.busy)
        return number

    def fill(self, material: Material, *boxes: Box) -> None:
        """Fill boxes, or the whole canvas if none is given, with one region."""
        region = self._region(material)
        for left, top, right, bottom in boxes or [(0, 0, self.width, self.height)]:
            self._draw.rectangle((left, top, right - 1, bottom - 1), fill=region)

    def hills(self, material: Material, level: float, rough: float) -> None:
        """Fill everything below a skyline at ``level`` that varies by ``rough``; both are shares of the height."""
        region = self._region(material)
        middle, most = level * self.height, rough * self.height
        skyline = [(self.width * x, middle + most * y) for x, y in self.rng.choice(self._bank.skylines)]
        # Pillow's time for a polygon grows with its corners times its rows: a flat polygon and a box cost less.
        foot = int(middle + most) + 1
        self._draw.polygon([*skyline, (self.width, foot), (0, foot)], fill=region)
        self._draw.rectangle((0, foot, self.width, max(foot, self.height)), fill=region)

    def patches(self, material: Material, share: float) -> None:
        """Fill ragged patches that cover about ``share`` of the canvas."""
        ranks = piece(self._bank.patches, self._corner(), self._map_size)
        np.copyto(self._plane(self._map), self._region(material), where=ranks < np.uint8(255 * share))

    def thing(self, material: Material, box: Box) -> None:
        """Fill one rounded or angular shape."""
        left, top, right, bottom = box
        width, height = right - left, bottom - top
        corners = [(left + width * x, top + height * y) for x, y in self.rng.choice(self._bank.outlines)]
        self._draw.polygon(corners, fill=self._region(material))

    def finish(self) -> tuple[U8, U8, U8]:
        """Lay texture and light over the regions; return luma and the two chroma planes."""
        # bytearray.translate takes half the time of bytes.translate, and its result can be changed in place.
        blue, red, detail = (self._plane(self._map.translate(table)) for table in self._tables)
        corner = self._corner()
        amount = detail.astype(np.int16)
        detail &= np.uint8(1)
        np.negative(detail, out=detail)
        luma = self._textured(self._lit(), amount, detail.view(np.int8), corner)
        amount += LEAST_TINT
        for plane, tile in zip((blue, red), self.texture.tints, strict=True):
            tint = piece(tile, corner, self._map_size).astype(np.int16)
            tint *= amount
            tint >>= 7
            # Bytes wrap around, but MOST_DETAIL and LEAST_TINT keep the sum within one.
            np.add(plane, tint.astype(np.uint8), out=plane)
        if self._bank.scale == 2:
            blue, red = _enlarged(blue), _enlarged(red)
        width, height = self._size
        luma, blue, red = (np.ascontiguousarray(plane[:height, :width]) for plane in (luma, blue, red))
        return luma, blue, red

    def _plane(self, pixels: bytearray) -> U8:
        """Return bytes as an array with the rows and columns of the map."""
        return np.frombuffer(pixels, np.uint8).reshape(self.height, self.width)

    def _lit(self) -> I16:
        """Return 16 times the luma of the regions under uneven light."""
        lit = piece(self._bank.light, self._corner(), self._map_size).astype(np.int16)
        lit *= np.int16(self.rng.uniform(2, 13))
        lit += self.rng.choice(self._bank.ramps)[: self.height]
        lit += self._plane(self._map) * np.int16(16)
        return lit

    def _textured(self, lit: I16, amount: I16, busy: I8, corner: int) -> U8:
        """Return luma with texture, at the size of the photo.

        Args:
            lit: 16 times luma without texture.
            amount: How much texture to add.
            busy: Which texture: 0 for the even one, -1 for the busy one.
            corner: Pixel of the tiles to begin at.
        """

        def phase(number: int, twice_lit: I16) -> I16:
            texture = piece(self.texture.change[number], corner, self._map_size) & busy
            texture ^= piece(self.texture.even[number], corner, self._map_size)
            luma = texture.astype(np.int16)
            luma *= amount
            luma += twice_lit
            luma >>= 5
            return luma.clip(BLACK, WHITE, out=luma)

        # Pixels lie between those of the map, which makes edges as soft as a lens does.
        right = _with_right(lit)
        lower_right = _with_lower(right)
        lower_right >>= 1
        if self._bank.scale == 1:
            return phase(0, lower_right).astype(np.uint8)
        pairs = np.empty((self.height, 2, self.width), "<i2")
        for y, halves in enumerate(((lit + lit, right), (_with_lower(lit), lower_right))):
            first, second = (phase(2 * y + x, half) for x, half in enumerate(halves))
            # Two bytes written as one 16-bit number: far quicker than writing to every other column.
            second <<= 8
            np.bitwise_or(first, second, out=pairs[:, y])
        return pairs.view(np.uint8).reshape(2 * self.height, 2 * self.width)

    def _corner(self) -> int:
        """Return the number of a random pixel of a tile."""
        return self.rng.randrange(self._bank.light.shape[1] ** 2)


def _with_right(plane: I16) -> I16:
    """Add to every pixel its right neighbour; the last pixel of a row is doubled."""
    total = np.empty_like(plane)
    pixels = plane.reshape(-1)  # as one row, since NumPy is slow to move from row to row
    np.add(pixels[:-1], pixels[1:], out=total.reshape(-1)[:-1])
    np.add(plane[:, -1], plane[:, -1], out=total[:, -1])
    return total


def _with_lower(plane: I16) -> I16:
    """Add to every pixel the one below it; the last pixel of a column is doubled."""
    total = np.empty_like(plane)
    np.add(plane[:-1], plane[1:], out=total[:-1])
    np.add(plane[-1], plane[-1], out=total[-1])
    return total


def _enlarged(plane: U8) -> U8:
    """Return a plane twice as wide and high, with every pixel repeated four times."""
    # A byte times 257 is that byte twice: far quicker than np.repeat along rows.
    wide = plane.astype(np.uint16)
    wide *= np.uint16(257)
    return np.repeat(wide.view(np.uint8), 2, axis=0)
