"""Synthetic scenes: objects, their positions and their materials."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from sophon.bench.pictures.canvas import Box, Canvas, Material

# Colours and contrasts of common objects, chosen by eye; together they give the chroma spread and the mix of smooth and
# busy places that photos have (tests/bench/pictures/test_photos.py).
SKY = Material((160, 240), 138, 118, 10, (1.2, 5.0))
HAZE = Material((90, 190), 131, 126, 7, (3.0, 14.0))
LEAF = Material((40, 115), 114, 122, 7, (20.0, 40.0), busy=0.8)
TURF = Material((60, 150), 110, 122, 7, (14.0, 30.0), busy=0.3)
EARTH = Material((50, 190), 118, 135, 7, (8.0, 30.0), busy=0.4)
STONE = Material((40, 215), 127, 129, 3, (5.0, 26.0), busy=0.4)
FUR = Material((25, 200), 120, 133, 7, (12.0, 34.0), busy=0.5)
WALL = Material((70, 235), 124, 131, 8, (2.5, 12.0), busy=0.1)
SHADE = Material((6, 45), 128, 128, 3, (2.5, 12.0), busy=0.4)
RED_PAINT = Material((45, 115), 112, 182, 16, (2.0, 12.0), busy=0.2)
BLUE_PAINT = Material((35, 130), 160, 112, 16, (2.0, 12.0), busy=0.2)
YELLOW_PAINT = Material((130, 205), 78, 144, 16, (2.0, 12.0), busy=0.2)

THINGS = (RED_PAINT, BLUE_PAINT, YELLOW_PAINT, WALL, WALL, STONE, STONE, FUR, FUR, SHADE, SHADE, LEAF)


def landscape(canvas: Canvas) -> None:
    """Paint sky, ridges in front of each other, ground and a few objects."""
    rng = canvas.rng
    canvas.fill(SKY)
    level = rng.uniform(0.15, 0.5)
    grounds = (HAZE, LEAF, rng.choice((LEAF, EARTH, STONE)), rng.choice((TURF, EARTH, STONE)))
    for material in grounds[rng.randrange(3) :]:
        canvas.hills(material, level, rng.uniform(0.01, 0.15))
        level += rng.uniform(0.05, 0.25)
    _things(canvas, rng.randrange(5), 0.4)


def close_up(canvas: Canvas) -> None:
    """Paint a large subject in front of a blurred background."""
    rng = canvas.rng
    canvas.fill(rng.choice((HAZE, WALL, STONE, TURF, SHADE)))
    if rng.random() < 0.6:
        canvas.hills(rng.choice((TURF, EARTH, STONE, WALL)), rng.uniform(0.4, 0.9), 0.02)
    _things(canvas, rng.randrange(1, 5), 0.95)


def street(canvas: Canvas) -> None:
    """Paint walls side by side under the sky, a road and many objects."""
    rng = canvas.rng
    canvas.fill(SKY)
    left = 0
    while left < canvas.width - 8:
        right = min(canvas.width, left + 8 + int(canvas.width * rng.uniform(0.1, 0.4)))
        top = int(canvas.height * rng.uniform(0.0, 0.4))
        box = (left, top, right, canvas.height)
        canvas.fill(rng.choice((STONE, EARTH, WALL, LEAF, SHADE)), box)
        windows = _windows(canvas, box)
        if windows and rng.random() < 0.7:
            canvas.fill(rng.choice((SHADE, SKY, WALL)), *windows)
        left = right
    canvas.hills(rng.choice((STONE, EARTH, TURF)), rng.uniform(0.55, 0.8), 0.02)
    _things(canvas, rng.randrange(2, 8), 0.35)


def thicket(canvas: Canvas) -> None:
    """Paint leaves all over, in patches of light and shade."""
    rng = canvas.rng
    canvas.fill(LEAF)
    canvas.patches(rng.choice((LEAF, TURF, SHADE)), rng.uniform(0.1, 0.4))
    _things(canvas, rng.randrange(0, 4), 0.5)


SCENES: tuple[Callable[[Canvas], None], ...] = (landscape, landscape, close_up, close_up, street, street, thicket)


def paint(canvas: Canvas) -> None:
    """Paint a scene of a random kind."""
    canvas.rng.choice(SCENES)(canvas)


def _things(canvas: Canvas, count: int, largest: float) -> None:
    """Paint ``count`` shapes, each with a few smaller ones on it."""
    rng = canvas.rng
    whole = (0, int(0.2 * canvas.height), canvas.width, canvas.height)
    for _ in range(count):
        box = _box_within(rng, whole, largest / 4, largest)
        canvas.thing(rng.choice(THINGS), box)
        for _ in range(rng.randrange(5)):
            canvas.thing(rng.choice(THINGS), _box_within(rng, box, 0.05, 0.35))


def _windows(canvas: Canvas, wall: Box) -> list[Box]:
    """Return rows and columns of boxes on a wall."""
    rng = canvas.rng
    left, top, right, bottom = wall
    pitch_x = max(12, (right - left) // rng.randrange(1, 7))
    pitch_y = max(12, int(canvas.height * rng.uniform(0.08, 0.15)))
    return [
        (x, y, x + pitch_x // 2, y + pitch_y // 2)
        for y in range(top + pitch_y // 4, min(bottom, top + rng.randrange(2, 6) * pitch_y), pitch_y)
        for x in range(left + pitch_x // 4, right - pitch_x // 2, pitch_x)
    ]


def _box_within(rng: Random, outer: Box, least: float, most: float) -> Box:
    """Return a box inside another, of ``least`` to ``most`` times the other's width and height."""
    left, top, right, bottom = outer
    width = max(4, int((right - left) * rng.uniform(least, most)))
    height = max(4, int((bottom - top) * rng.uniform(least, most)))
    left += int(rng.random() * max(0, right - left - width))
    top += int(rng.random() * max(0, bottom - top - height))
    return left, top, left + width, top + height
