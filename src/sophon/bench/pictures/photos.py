"""Synthetic photos with the sizes and compressibility of those in ImageNet and OpenImages.

A photo is a pure function of (kind, seed, index): its file size is drawn from the real distribution, dimensions and
chroma sampling are drawn to match, a scene is painted, and the JPEG quality that gives this size is predicted from the
roughness of the scene. The same versions of NumPy and Pillow give the same bytes.
"""

from __future__ import annotations

import io
import math
from dataclasses import dataclass
from random import Random

import numpy as np
from PIL import Image

from sophon.bench.pictures.canvas import Canvas
from sophon.bench.pictures.scene import paint
from sophon.bench.pictures.texture import F64, U8, Spectrum, build_bank
from sophon.errors import ConfigError

SAMPLINGS = ("4:4:4", "4:2:2", "4:2:0")

CHROMA_KEPT = {"4:4:4": math.log(2), "4:2:2": math.log(1.5), "4:2:0": math.log(1.25)}
"""How much chroma adds to the file size, by sampling: more if more chroma pixels are kept."""

QUALITIES = (20, 40, 60, 75, 82, 87, 90, 92, 94, 95, 96, 97, 98, 99, 100)
"""Qualities at which file sizes are measured; denser where the size changes faster."""

CALIBRATION_PHOTOS = 48
"""Number of photos on which file sizes are measured; the error of the mean is then about 1 %."""

WHOLE_QUALITY = 94
"""Quality at which whole photos are also measured, not only samples of them; typical of real files."""

SAMPLE_PIECES = 130
"""Number of pieces by which a photo is judged; with half as many, file sizes would vary by a tenth more."""

HEADER_BYTES = {1: 328, 3: 623}
"""Bytes of a JPEG file other than its blocks, by number of planes, as Pillow writes it."""

GOLDEN = (math.sqrt(5) - 1) / 2


@dataclass(frozen=True)
class PhotoKind:
    """The statistics of a data set that its synthetic photos must match.

    Args:
        size_quantiles: (share of the files, bytes): that share of the files has at most this many bytes.
        sizes: (width, height, weight) in landscape orientation.
        portrait_share: Share of photos that are taller than wide.
        gray_share: Share of photos with one channel.
        sampling_shares: Shares of ``SAMPLINGS`` within each quarter of the files, smallest files first: cameras
            and editors that keep all chroma also use high quality.
        bits_per_px: Minimum and maximum bits per pixel; dimensions are chosen to stay in this range.
        spectrum: Spectrum of the texture.
        tint_std: Standard deviation of the tint of the texture.
        scale: Pixels of a photo per pixel of the map it is drawn on, in each direction. Photos a thousand pixels wide
            are soft from pixel to pixel: a map half as wide and high has all their edges, at a quarter of the cost.
        busy: Factor on the detail of a scene, as three numbers: its median; the growth of its logarithm from the
            smallest files to the largest; and the standard deviation of that logarithm among files of one size.
    """

    size_quantiles: tuple[tuple[float, int], ...]
    sizes: tuple[tuple[int, int, float], ...]
    portrait_share: float
    gray_share: float
    sampling_shares: tuple[tuple[float, float, float], ...]
    bits_per_px: tuple[float, float]
    spectrum: Spectrum
    tint_std: float
    scale: int
    busy: tuple[float, float, float]


KINDS = {
    # Quantiles match the full sets in mean, median, p90 and share over 150,528 bytes; values in between come from
    # samples.
    "imagenet": PhotoKind(
        size_quantiles=(
            (0.0, 2_500), (0.02, 9_000), (0.05, 19_000), (0.1, 29_000), (0.25, 57_000), (0.5, 107_000),
            (0.78, 150_528), (0.9, 189_000), (0.95, 218_000), (0.99, 290_000), (1.0, 440_000),
        ),
        sizes=(
            (500, 375, 0.38), (500, 333, 0.20), (500, 334, 0.05), (500, 335, 0.03), (500, 332, 0.03),
            (500, 400, 0.02), (500, 353, 0.02), (500, 345, 0.02), (500, 281, 0.02), (500, 500, 0.02),
            (500, 433, 0.02), (445, 303, 0.02), (400, 300, 0.03), (320, 240, 0.04), (250, 206, 0.02),
            (240, 161, 0.02), (150, 132, 0.01), (130, 98, 0.01), (600, 399, 0.02), (640, 480, 0.02),
            (800, 533, 0.01), (800, 600, 0.01), (1024, 768, 0.01),
        ),
        portrait_share=0.24,
        gray_share=0.03,
        sampling_shares=((0.26, 0.0, 0.74), (0.84, 0.0, 0.16), (0.96, 0.0, 0.04), (0.96, 0.02, 0.02)),
        bits_per_px=(1.0, 8.5),
        spectrum=Spectrum(slope=2.0, lens_cutoff=1.0), tint_std=17.0,
        scale=1, busy=(1.66, 1.0, 0.3),
    ),
    "openimages": PhotoKind(
        size_quantiles=(
            (0.0, 50_000), (0.05, 98_000), (0.1, 120_000), (0.2, 150_528), (0.25, 171_000), (0.5, 275_000),
            (0.75, 421_000), (0.9, 615_000), (0.95, 715_000), (0.99, 880_000), (1.0, 1_100_000),
        ),
        sizes=(
            (1024, 768, 0.36), (1024, 683, 0.26), (1024, 680, 0.06), (1024, 681, 0.06), (1024, 682, 0.04),
            (1024, 685, 0.04), (1024, 576, 0.04), (1024, 1024, 0.03), (1024, 575, 0.02), (1024, 640, 0.02),
            (1024, 758, 0.02), (1024, 821, 0.02), (1024, 613, 0.01), (1024, 531, 0.01), (1000, 768, 0.01),
        ),
        portrait_share=0.15,
        gray_share=0.0,
        sampling_shares=((0.08, 0.12, 0.80), (0.14, 0.34, 0.52), (0.30, 0.42, 0.28), (0.60, 0.28, 0.12)),
        bits_per_px=(0.5, 12.0),
        spectrum=Spectrum(slope=2.3, lens_cutoff=0.25), tint_std=13.0,
        scale=2, busy=(1.5, 1.3, 0.12),
    ),
}  # fmt: skip


@dataclass(frozen=True)
class _Painting:
    """A photo before it is encoded.

    Args:
        planes: Luma and, unless the photo is gray, the two chroma planes.
        sampling: One of ``SAMPLINGS``.
        tint_roughness: Roughness of the tints of its texture.
        target_bytes: Intended size of the file.
    """

    planes: tuple[U8, ...]
    sampling: str
    tint_roughness: float
    target_bytes: float


class PhotoSource:
    """Makes the photos of one (kind, seed).

    Creating a source takes about a second; after that, a core makes about 130 photos like OpenImages' or 270 like
    ImageNet's per second; Pillow's JPEG encoder takes two thirds or half of that time, respectively. A source never
    changes, so threads may share it.

    Args:
        like: Data set to resemble, a key of ``KINDS``.
        seed: Seed of the photos; different seeds give different photos.
    """

    def __init__(self, like: str, seed: int = 0) -> None:
        if like not in KINDS:
            raise ConfigError(f"there are no photos like {like!r}; choose from {', '.join(KINDS)}")
        self._kind = KINDS[like]
        self._name = f"{like} {seed}"
        shares, sizes_bytes = zip(*self._kind.size_quantiles, strict=True)
        self._targets_bytes = np.interp(np.linspace(0, 1, 5000), shares, sizes_bytes).tolist()
        self._first_rank = Random(self._name).random()
        rng = np.random.default_rng(list(self._name.encode()))
        self._bank = build_bank(rng, self._kind.spectrum, self._kind.tint_std, self._kind.scale)
        self._curve = self._calibrate()

    def photo(self, index: int) -> bytes:
        """Return photo ``index`` as a baseline JPEG file."""
        painting = self._paint("photo", index)
        target_bits = 8 * (painting.target_bytes - HEADER_BYTES[len(painting.planes)])
        # A fitted curve may fall in places; np.interp needs one that rises.
        bits = np.maximum.accumulate(_traits(painting) @ self._curve)
        quality = np.interp(math.log(target_bits / painting.planes[0].size), bits, QUALITIES)
        return _jpeg(painting.planes, round(float(quality)), painting.sampling)

    def _paint(self, use: str, index: int) -> _Painting:
        """Return the pixels of a photo; different uses give different pixels."""
        kind = self._kind
        # `Random`, since drawing single numbers is many times slower with NumPy's generators.
        rng = Random(f"{self._name} {use} {index}")
        # Steps of the golden ratio fill the range evenly, so that even a few photos have the sizes of the whole set.
        rank = (self._first_rank + index * GOLDEN) % 1.0
        target_bytes = self._targets_bytes[int(rank * len(self._targets_bytes))]
        size = _dimensions(rng, kind, target_bytes)
        (sampling,) = rng.choices(SAMPLINGS, kind.sampling_shares[int(4 * rank)])
        gray = rng.random() < kind.gray_share
        center, lean, spread = kind.busy
        busy = center * math.exp(rng.gauss(lean * (rank - 0.5), spread))
        canvas = Canvas(rng, self._bank, size, busy)
        paint(canvas)
        planes = canvas.finish()
        return _Painting(planes[:1] if gray else planes, sampling, canvas.texture.tint_roughness, target_bytes)

    def _calibrate(self) -> F64:
        """Return the linear map from the traits of a photo to the logarithms of its bits per pixel at ``QUALITIES``."""
        traits, bits = [], []
        for index in range(CALIBRATION_PHOTOS):
            painting = self._paint("calibration", index)
            planes, sampling = painting.planes, painting.sampling
            sample = tuple(_sample(plane) for plane in planes)
            # Blocks cost slightly more bits in the sample than in their own row.
            excess = _log_bits(sample, sampling, WHOLE_QUALITY) - _log_bits(planes, sampling, WHOLE_QUALITY)
            bits.append([_log_bits(sample, sampling, quality) - excess for quality in QUALITIES])
            traits.append(_traits(painting))
        curve: F64 = np.linalg.lstsq(np.array(traits), np.array(bits))[0]
        return curve


def _dimensions(rng: Random, kind: PhotoKind, size_bytes: float) -> tuple[int, int]:
    """Draw a width and height that are plausible for a file of a given size."""
    low_px, high_px = (8 * size_bytes / bits for bits in reversed(kind.bits_per_px))
    fitting = [size for size in kind.sizes if low_px <= size[0] * size[1] <= high_px]
    if not fitting:
        fitting = [min(kind.sizes, key=lambda size: abs(math.log(size[0] * size[1] / math.sqrt(low_px * high_px))))]
    ((width, height, _),) = rng.choices(fitting, [weight for _, _, weight in fitting])
    return (height, width) if rng.random() < kind.portrait_share else (width, height)


def _traits(painting: _Painting) -> F64:
    """Return the numbers from which the size of a file is predicted."""
    roughness = _roughness(_sample(painting.planes[0]))
    kept = CHROMA_KEPT[painting.sampling] if len(painting.planes) == 3 else 0.0
    return np.array((1.0, roughness, kept, kept * roughness, kept * painting.tint_roughness))


def _roughness(sample: U8) -> float:
    """Return the mean logarithm of the total variation of luma along a column of 16 px."""
    columns = sample.reshape(-1, 16, sample.shape[1]).astype(np.int16)
    steps = columns[:, 1:] - columns[:, :-1]
    np.abs(steps, out=steps)
    logs = np.log(steps.sum(1, dtype=np.int16) + np.float32(15))
    return float(logs.sum() / logs.size)


def _sample(plane: U8) -> U8:
    """Return about ``SAMPLE_PIECES`` pieces of 16×16 px, evenly spread, joined in a grid."""
    rows, columns = (side // 16 for side in plane.shape)
    step = max(1, round(math.sqrt(rows * columns / SAMPLE_PIECES)))
    lines = plane[: rows * 16, : columns * 16].view("V16").reshape(rows, 16, columns)
    chosen = np.ascontiguousarray(lines[step // 2 :: step, :, step // 2 :: step])
    return chosen.view(np.uint8).reshape(len(chosen) * 16, -1)


def _log_bits(planes: tuple[U8, ...], sampling: str, quality: int) -> float:
    """Return the logarithm of the bits per pixel at that quality."""
    blocks_bytes = len(_jpeg(planes, quality, sampling)) - HEADER_BYTES[len(planes)]
    return math.log(8 * blocks_bytes / planes[0].size)


def _jpeg(planes: tuple[U8, ...], quality: int, sampling: str) -> bytes:
    bands = [Image.frombuffer("L", plane.shape[::-1], plane, "raw", "L", 0, 1) for plane in planes]
    image = bands[0] if len(bands) == 1 else Image.merge("YCbCr", bands)
    out = io.BytesIO()
    image.save(out, "JPEG", quality=quality, subsampling=sampling)
    return out.getvalue()
