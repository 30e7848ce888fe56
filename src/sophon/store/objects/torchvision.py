"""torchvision's file-based data sets, recognised by class and attributes; torchvision is never imported."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any, Final

from sophon.errors import ConfigError
from sophon.store.objects.fileset import FileSet, labels_of, store_of

_HOME: Final = "torchvision.datasets."
_PAIRS: Final = ("samples", "_samples", "imgs")  # lists of (path, target)
_LOADERS: Final = ("default_loader", "pil_loader")  # Image.open(…).convert("RGB")
_PET_TARGETS: Final = {"category": "_labels", "binary-category": "_bin_labels"}
_OWN: Final = "use sophon.from_dataset(ds, path=…, target=…), which says where its files are"


def is_torchvision(data: object) -> bool:
    """Return whether an object is a torchvision data set, or an instance of a subclass of one."""
    return any(base.__module__ == _HOME + "vision" and base.__name__ == "VisionDataset" for base in type(data).__mro__)


def files_of_torchvision(data: Any) -> FileSet:
    """Return the files of a torchvision data set.

    Raises:
        ConfigError: The data set does not consist of picture files, or does something that is not supported here; the
            message says what to try.
    """
    name = type(data).__name__
    title = f"torchvision's {name}"
    getter = type(data).__getitem__
    if not str(getattr(getter, "__module__", "")).startswith(_HOME):
        raise ConfigError(f"{name} has its own __getitem__, which may do anything; {_OWN}")
    if hasattr(data, "video_clips"):
        raise ConfigError(f"{title} consists of video clips, which are not files; {_OWN}")
    paths, targets = _paths(data, title)
    labels, others = labels_of(targets)
    classes = getattr(data, "classes", ())
    store = store_of(paths, labels, classes if others is None and _are_names(classes) else (), title)
    transform, target_transform, refusal = _transforms(data, getter)
    loader = getattr(data, "loader", None)
    if loader is not None and not _is_pillow(loader):
        refusal = f"its loader {getattr(loader, '__name__', loader)!s} reads files in its own way"
    bare = without_transforms(data)
    item = None if refusal else lambda index: pair(bare[index], index)
    return FileSet(store, title, transform, target_transform, others, {}, item, refusal)


def _paths(data: Any, title: str) -> tuple[list[Any], list[Any]]:
    pairs = next((getattr(data, name) for name in _PAIRS if isinstance(getattr(data, name, None), list)), None)
    if pairs is not None and all(isinstance(pair, tuple) and len(pair) == 2 for pair in pairs):
        return [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    files, labels = getattr(data, "_image_files", None), getattr(data, "_labels", None)
    if isinstance(files, list) and isinstance(labels, list):
        return files, labels
    files, types = getattr(data, "_images", None), getattr(data, "_target_types", None)
    if isinstance(files, list) and isinstance(types, list):
        return files, _pet_targets(data, types, title)
    raise ConfigError(f"{title} does not say in a known way where its files are; {_OWN}")


def _pet_targets(data: Any, types: list[str], title: str) -> list[Any]:
    unknown = [kind for kind in types if kind not in _PET_TARGETS]
    if unknown or not types:
        raise ConfigError(f"{title}: targets of kind {unknown or types} are not labels; {_OWN}")
    columns = [getattr(data, _PET_TARGETS[kind]) for kind in types]
    return list(columns[0]) if len(columns) == 1 else list(zip(*columns, strict=True))


def _transforms(data: Any, getter: Any) -> tuple[Callable[[Any], Any] | None, Callable[[Any], Any] | None, str]:
    """Return the transforms of pictures and targets, and the reason if they cannot be used."""
    both = getattr(data, "transforms", None)
    if "transforms" not in getattr(getattr(getter, "__code__", None), "co_names", ()):
        return getattr(data, "transform", None), getattr(data, "target_transform", None), ""
    if both is None:
        return None, None, ""
    if type(both).__name__ != "StandardTransform":
        return None, None, "its `transforms` change picture and target together; give transform= and target_transform="
    return both.transform, both.target_transform, ""


def without_transforms(data: Any) -> Any:
    """Return the same data set without its transforms."""
    bare = copy.copy(data)
    for name in ("transform", "target_transform", "transforms"):
        if hasattr(bare, name):
            setattr(bare, name, None)
    return bare


def pair(found: Any, index: int) -> tuple[Any, Any]:
    """Return a sample as (picture, target), or raise if it is anything else."""
    if not isinstance(found, tuple | list) or len(found) != 2:
        raise ConfigError(
            f"expected (picture, target) as sample {index} of the data set, got {type(found).__name__}; use "
            "sophon.from_dataset(…, check=False) to skip the comparison"
        )
    return found[0], found[1]


def _is_pillow(loader: Any) -> bool:
    return getattr(loader, "__module__", "") == _HOME + "folder" and getattr(loader, "__name__", "") in _LOADERS


def _are_names(classes: Any) -> bool:
    return isinstance(classes, Sequence) and not isinstance(classes, str) and all(isinstance(c, str) for c in classes)
