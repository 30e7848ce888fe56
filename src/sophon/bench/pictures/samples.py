"""The files that a benchmark runs on: those in a folder, or synthetic photos if no folder is given."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from sophon.bench.pictures.photos import PhotoSource
from sophon.errors import ConfigError

IMAGE_ENDINGS = frozenset({".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".ppm", ".pgm"})


@dataclass(frozen=True)
class Samples:
    """A few files in memory, and a description of them."""

    name: str
    files: tuple[bytes, ...]

    @property
    def mean_bytes(self) -> float:
        """Mean size of a file."""
        return sum(map(len, self.files)) / len(self.files)


def load_samples(folder: Path | None, count: int, like: str = "imagenet") -> Samples:
    """Return files spread evenly over a folder, or synthetic photos like those of a data set."""
    if folder is None:
        source = PhotoSource(like, seed=0)
        return Samples(f"{count} synthetic photos like {like}", tuple(source.photo(i) for i in range(count)))
    if not folder.is_dir():
        raise ConfigError(f"expected a folder of images, got {folder}; give an existing folder or leave --data out")
    paths = sorted(path for path in folder.rglob("*") if path.suffix.lower() in IMAGE_ENDINGS)
    if not paths:
        raise ConfigError(f"no images in {folder}; looked for {', '.join(sorted(IMAGE_ENDINGS))}")
    chosen = [paths[i * len(paths) // count] for i in range(min(count, len(paths)))]
    return Samples(f"{len(chosen)} of {len(paths)} images in {folder}", tuple(path.read_bytes() for path in chosen))
