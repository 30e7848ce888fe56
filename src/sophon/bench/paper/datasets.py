"""The files of a run: as many as wanted, from a folder or synthetic.

If more samples are wanted than there are files, files are repeated under other names; every sample has its own boxes.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from sophon.bench.paper.scenario import LIKES, Scenario
from sophon.bench.pictures.photo_folder import write_photos
from sophon.bench.pictures.photos import PhotoSource
from sophon.bench.pictures.samples import IMAGE_ENDINGS
from sophon.errors import ConfigError

_ENOUGH = 0.8  # share of the wanted samples: with this many files, each is used once
_LOOKED_AT = 16  # synthetic photos that suffice to estimate the mean size


@dataclass(frozen=True)
class PaperData:
    """A data set of a run.

    Args:
        words: Description of the data set.
        like: The paper's data set that this one is compared with.
        folder: Folder of its files.
        samples: Number of samples.
        mean_file_bytes: Mean size.
        made_up: Whether the photos are synthetic.
    """

    words: str
    like: str
    folder: Path
    samples: int
    mean_file_bytes: float
    made_up: bool


def prepare(scenario: Scenario, like: str, work: Path, on_photo: Callable[[int, int], None] | None = None) -> PaperData:
    """Put the files of a data set into a folder.

    Args:
        scenario: The scenario, with the source of the files and the number wanted.
        like: The paper's data set that the files represent.
        work: Folder to put them in.
        on_photo: Called with the number of photos made so far and the total.
    """
    folder = work / f"{like}-files"
    source = source_of(scenario, like)
    if source is None:
        photos = PhotoSource(like, seed=scenario.seed)
        mean_bytes = sum(len(photos.photo(i)) for i in range(_LOOKED_AT)) / _LOOKED_AT
        count = scenario.count or scenario.default_count(mean_bytes)
        written = write_photos(folder, like, count, seed=scenario.seed, on_progress=on_photo)
        mean_bytes = sum(written.sizes_bytes) / count
        return PaperData(f"{count} synthetic photos like {like}", like, folder, count, mean_bytes, True)
    paths = sorted(path for path in source.rglob("*") if path.suffix.lower() in IMAGE_ENDINGS)
    if not paths:
        raise ConfigError(f"no images in {source}; looked for {', '.join(sorted(IMAGE_ENDINGS))}")
    mean_bytes = sum(path.stat().st_size for path in paths) / len(paths)
    wanted = scenario.count or scenario.default_count(mean_bytes)
    if scenario.count is None and _ENOUGH * wanted <= len(paths) < wanted:
        wanted = len(paths)
    chosen = _spread(paths, wanted)
    for number, path in enumerate(chosen):
        place = folder / path.relative_to(source).parent / f"{number:07d}_{path.name}"
        place.parent.mkdir(parents=True, exist_ok=True)
        place.symlink_to(path.resolve())
    mean_bytes = sum(path.stat().st_size for path in chosen) / len(chosen)
    few = f", each about {wanted / len(paths):.1f} times" if wanted > len(paths) else ""
    words = f"{min(wanted, len(paths))} of {len(paths)} images in {source}{few}"
    return PaperData(words, like, folder, len(chosen), mean_bytes, False)


def source_of(scenario: Scenario, like: str) -> Path | None:
    """Return the folder that holds the images of a data set; None for synthetic ones."""
    data = scenario.data
    if data is None:
        return None
    if not data.is_dir():
        raise ConfigError(f"expected a folder of images, got {data}; give an existing folder or leave --data out")
    if any((data / name).is_dir() for name in LIKES):
        return data / like if (data / like).is_dir() else None
    return data if like == scenario.like else None


def _spread(paths: list[Path], wanted: int) -> list[Path]:
    rounds = math.ceil(wanted / len(paths))
    return [paths[i * len(paths) // wanted] for i in range(wanted)] if rounds == 1 else (paths * rounds)[:wanted]
