"""`sophon bench kinds`: the gain for each kind of training over a slow link, compared with sending whole files.

`KINDS` has one row for each. A loader with policy "optimal" measures its first epoch and then plans; the epochs after
that are counted, and their bits are compared with those of a loader that reads the files directly.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sophon.bench.harness import OnStep, nothing
from sophon.bench.presets import VOLUMES, recipe_named
from sophon.bench.recipes.sounds import with_sounds
from sophon.bench.recipes.targets import with_targets
from sophon.bench.rig.testbed import open_testbed
from sophon.bench.scans.scan_folder import OPTIONS, write_scans
from sophon.errors import ConfigError, Error
from sophon.process.scratch import scratch_folder
from sophon.store import open_store

_NAME = "train"
_BATCH = 16


@dataclass(frozen=True)
class Kind:
    """One kind of training.

    Args:
        recipe: Name of its recipe, see `presets`.
        about: Description in words.
        folder: Name of the folder with its data, used if it exists.
        options: Options after the path of photos with targets (`targets`); "" for photos without targets.
        sounds: Ending of its sound files (`sounds`); "" if it has none.
    """

    recipe: str
    about: str
    folder: str = "openimages"
    options: str = ""
    sounds: str = ""


KINDS = {
    "simclr": Kind("simclr", "two views of 224 × 224 pixels"),
    "dino": Kind("dino", "two views of 224 × 224 pixels and eight of 96 × 96"),
    "segmentation": Kind(
        "segmentation", "a crop of 512 × 512 pixels with its mask", "coco", "images=images&masks=masks"
    ),
    "detection": Kind("detection", "640 × 640 pixels at many scales, with boxes", "coco", "images=images&boxes=labels"),
    "ssd": Kind("ssd", "zoomed out, then crops that keep objects", "coco", "images=images&boxes=labels"),
    "ssdlite": Kind("ssdlite", "crops that keep objects", "coco", "images=images&boxes=labels"),
    "nifti": Kind("nifti", "a crop of 18 × 25 × 18 voxels, an eighth of a small NIfTI scan", "volumes"),
    "chunked": Kind("chunked", "a crop of 96³ voxels of 96 × 256 × 256, in chunks of 32³, with its label", "scans"),
    "wav": Kind("audio", "a second of each clip, WAV", "audio", sounds="wav"),
    "flac": Kind("audio", "a second of each clip, FLAC", "audio", sounds="flac"),
}
USUAL = ("simclr", "dino", "segmentation", "detection")
"""The kinds that are run by default."""


class KindsError(Error):
    """Raised when a run gives different tensors from those of the files themselves."""


def bench_kinds(
    data: Path,
    names: Sequence[str] = USUAL,
    link_bytes_per_s: float = 1.25e6,
    repeats: int = 2,
    storage_cores: float = 1.0,
    on_step: OnStep = nothing,
) -> dict[str, Any]:
    """Return for each kind the bytes of an epoch, raw and as sent, and CPU milliseconds per sample on either side.

    Args:
        data: Folder of photos or sounds, or one that holds ``openimages/``, ``coco/`` and ``audio/``.
        names: Which of KINDS to run.
        link_bytes_per_s: Rate of the link, slow enough to be the bottleneck; otherwise a plan saves CPU, and may send
            more bytes to do so.
        repeats: Epochs that are counted, after the first, which measures.
        storage_cores: Number of cores near storage.
        on_step: Called with the name of the next step.

    Raises:
        KindsError: Tensors differ from those of the files.
    """
    for name in names:
        if name not in KINDS:
            raise ConfigError(f"there is no kind {name!r}; choose from {', '.join(KINDS)}")
        recipe_named(KINDS[name].recipe)
    steps, count = iter(range(1, 1 << 30)), len(names) * (2 + repeats)
    rows: dict[str, Any] = {}
    with open_testbed(link_bytes_per_s) as testbed, scratch_folder("kinds") as work:
        for name in names:
            path = _path(data, KINDS[name], Path(work, name))
            with open_store(path) as store:
                raw_bytes = int(store.manifest.sizes.sum())
            with testbed.server({_NAME: path}, storage_cores) as server:
                told: dict[str, Any] = {"recipe": KINDS[name].recipe, "batch_size": _BATCH, "workers": 2, "seed": 0}
                do = testbed.trainer.do
                on_step(f"{name}: first epoch", next(steps), count)
                do("open_recipe", name="node", url=server.url(_NAME), policy="optimal", **told)
                do("open_recipe", name="files", url=str(path), policy="none", **told)
                do("digest", name="node", epoch=0)
                how: dict[str, Any] = {"kind": "stand-in", "samples_per_s": 2000.0, "interface": testbed.interface}
                runs = []
                for number in range(repeats):
                    on_step(f"{name}: {number + 1} of {repeats}", next(steps), count)
                    runs.append(do("epoch", name="node", epoch=1 + number, **how))
                on_step(f"{name}: bits", next(steps), count)
                if do("digest", name="node", epoch=1) != do("digest", name="files", epoch=1):
                    raise KindsError(
                        f"{name}: the tensors differ from those of the files themselves; please report this"
                    )
            rows[name] = _row(runs, raw_bytes)
    return rows


def _path(data: Path, kind: Kind, work: Path) -> Path:
    """Return the path of the data for a kind of training, possibly with options after it."""
    if kind.recipe in VOLUMES:
        return _scans(data / kind.folder, kind, work)
    own = data / kind.folder
    folder = own if own.is_dir() else data
    if kind.sounds:
        return with_sounds(folder, work, kind.sounds)
    return Path(f"{with_targets(folder, work)}?{kind.options}") if kind.options else folder


def _scans(own: Path, kind: Kind, work: Path) -> Path:
    """Return the path of scans: existing ones, or synthetic ones."""
    if kind.recipe == "nifti":
        if not own.is_dir():
            write_scans(work, 16, form="nii.gz", side=50, slices=36)
        return own if own.is_dir() else work / "images"
    write_scans(work, 12, form="zarr.zip", side=256, slices=96)
    return Path(f"{work}?{OPTIONS}")


def _row(runs: Sequence[dict[str, Any]], raw_bytes: int) -> dict[str, Any]:
    def mean(what: str) -> float:
        return float(sum(run[what] for run in runs) / len(runs))

    samples, sent_bytes = mean("samples"), mean("link_bytes")
    return {
        "raw_bytes": raw_bytes,
        "sent_bytes": round(sent_bytes),
        "gain": raw_bytes / sent_bytes,
        "storage_cpu_ms": 1e3 * mean("storage_cpu_s") / samples,
        "trainer_cpu_ms": 1e3 * mean("finish_cpu_s") / samples,
        "gains": [raw_bytes / run["link_bytes"] for run in runs],
        "cuts": runs[-1]["cuts"],
        "epoch_s": mean("epoch_s"),
    }
