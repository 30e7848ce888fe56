"""Synthetic CT scans of the abdomen, as large and smooth as those of KiTS19, with labelled kidneys and tumours.

They are painted slice by slice: soft ellipses for body, fat, organs, spine and kidneys, in Hounsfield units, plus noise
with the grain of a scanner's reconstruction. They do not look like real patients, but match what matters to a loader:
number of voxels, spacing, bytes after compression (about half of 16 bits), and size and location of the foreground.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

Voxels = np.ndarray[Any, np.dtype[Any]]
Plane = np.ndarray[Any, np.dtype[np.float32]]

SIDE = 512  # width and height of a slice in voxels, as in KiTS19
_MEDIAN_SLICES = 107
_SLICES = (29, 640)  # range in KiTS19, without the few largest
_SPREAD = 0.75  # standard deviation of the logarithm of the number of slices
_AIR, _FAT, _TISSUE, _LIVER, _BONE, _KIDNEY, _TUMOUR = -1000.0, -100.0, 45.0, 95.0, 420.0, 180.0, 70.0
_NOISE_HU = 14.0
_BANK = 16  # slices of noise, reused with rotations and shifts
_LEAST, _MOST = -1024, 3071
KIDNEY, TUMOUR = 1, 2  # classes of the label


@dataclass(frozen=True)
class Scan:
    """An image and its label, indexed by slice, row and column.

    Args:
        image: Hounsfield units as int16.
        label: Classes as uint8.
        spacing: Distance between slices, rows and columns in mm.
    """

    image: Voxels
    label: Voxels
    spacing: tuple[float, float, float]


@dataclass(frozen=True)
class _Ellipsoid:
    """Position of an ellipsoid, in coordinates from -1 to 1 across the volume."""

    centre: tuple[float, float, float]
    radii: tuple[float, float, float]

    def depth(self, z: float, y: Plane, x: Plane) -> Plane:
        """Return the depth of each voxel of a slice: 1 at the centre, 0 at the surface."""
        (cz, cy, cx), (rz, ry, rx) = self.centre, self.radii
        rows = np.float32(1 - ((z - cz) / rz) ** 2) - ((y - np.float32(cy)) / np.float32(ry)) ** 2
        found: Plane = np.repeat(rows, x.shape[1], axis=1)
        found -= ((x - np.float32(cx)) / np.float32(rx)) ** 2
        return found


def slices_of(random: np.random.Generator, most: int = _SLICES[1]) -> int:
    """Return the number of slices of a scan: about a hundred for most, several hundred for a few."""
    found = round(_MEDIAN_SLICES * float(np.exp(_SPREAD * random.standard_normal())))
    return min(max(found, _SLICES[0]), most)


def paint(seed: int, slices: int, side: int = SIDE) -> Scan:
    """Return a scan; the same arguments give the same scan."""
    random = np.random.default_rng((seed, slices, side))
    axis = np.linspace(-1, 1, side, dtype=np.float32)
    y, x = axis[:, None], axis[None, :]
    organs = _organs(random)
    kidneys, tumours = _kidneys(random)
    noise = _noise(random, side)
    image, label = np.empty((slices, side, side), np.int16), np.zeros((slices, side, side), np.uint8)
    for number, z in enumerate(np.linspace(-1, 1, slices)):
        plane = np.full((side, side), _AIR, np.float32)
        for organ, units in organs:
            _fill(plane, organ.depth(float(z), y, x), units)
        for parts, units, which in ((kidneys, _KIDNEY, KIDNEY), (tumours, _TUMOUR, TUMOUR)):
            for part in parts:
                depth = part.depth(float(z), y, x)
                _fill(plane, depth, units)
                label[number][depth > 0] = which
        shift = random.integers(0, side, 2)
        grain = np.roll(noise[random.integers(_BANK)], shift, (0, 1))
        plane += grain if random.integers(2) else -grain.T
        image[number] = np.clip(np.rint(plane), _LEAST, _MOST)
    steps = (float(random.choice((0.5, 1.0, 2.0, 3.0, 5.0))), *(float(random.uniform(0.6, 0.95)),) * 2)
    return Scan(image, label, (round(steps[0], 3), round(steps[1], 3), round(steps[2], 3)))


def _organs(random: np.random.Generator) -> list[tuple[_Ellipsoid, float]]:
    wide = random.uniform(0.72, 0.92)
    body = _Ellipsoid((0, 0, 0), (9, wide * 0.75, wide))
    inner = _Ellipsoid((0, 0.02, 0), (9, wide * 0.66, wide * 0.88))
    liver = _Ellipsoid((-0.4, -0.1, -0.3), (0.7, 0.35, 0.32))
    spine = _Ellipsoid((0, 0.42, 0), (9, 0.11, 0.11))
    return [(body, _FAT), (inner, _TISSUE), (liver, _LIVER), (spine, _BONE)]


def _kidneys(random: np.random.Generator) -> tuple[list[_Ellipsoid], list[_Ellipsoid]]:
    kidneys = []
    for centre in (-0.36, 0.36):
        place = (random.uniform(-0.2, 0.2), 0.18 + random.uniform(-0.05, 0.05), centre)
        kidneys.append(_Ellipsoid(place, (random.uniform(0.3, 0.45), 0.11, random.uniform(0.1, 0.14))))
    tumours = []
    for _ in range(int(random.integers(1, 3))):
        (cz, cy, cx), (rz, ry, rx) = kidneys[int(random.integers(2))].centre, kidneys[0].radii
        size = random.uniform(0.25, 0.6)
        place = (cz + rz * random.uniform(-0.5, 0.5), cy + ry * 0.6, cx + rx * random.uniform(-0.6, 0.6))
        tumours.append(_Ellipsoid(place, (rz * size, ry * size, rx * size)))
    return kidneys, tumours


def _fill(plane: Plane, depth: Plane, units: float) -> None:
    """Paint everything below the surface, with an edge a few voxels wide as in a real scan."""
    share = np.clip(depth * np.float32(12) + np.float32(0.5), 0, 1)
    plane += share * (np.float32(units) - plane)


def _noise(random: np.random.Generator, side: int) -> Voxels:
    noise = random.standard_normal((_BANK, side, side), np.float32)
    for axis in (1, 2):
        noise = 0.5 * noise + 0.25 * (np.roll(noise, 1, axis) + np.roll(noise, -1, axis))
    grain: Voxels = noise * np.float32(_NOISE_HU / float(noise.std()))
    return grain
