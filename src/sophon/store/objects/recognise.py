"""Recognises data sets given as objects and finds their files; the only entry point for them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from sophon.errors import ConfigError
from sophon.store.objects.fileset import FileSet, labels_of, store_of
from sophon.store.objects.huggingface import files_of_huggingface, is_huggingface
from sophon.store.objects.torchvision import files_of_torchvision, is_torchvision, pair, without_transforms


def files_of(data: Any) -> FileSet | None:
    """Return the files of a torchvision or Hugging Face data set or a torch Subset of one; None for other objects.

    Raises:
        ConfigError: The data set cannot be represented; the message says why.
    """
    if isinstance(data, FileSet):
        return data
    kind = type(data)
    if (kind.__module__, kind.__name__) == ("torch.utils.data.dataset", "Subset"):
        inner = files_of(data.dataset)
        return None if inner is None else inner.select(np.asarray(data.indices, np.int64))
    if is_torchvision(data):
        return files_of_torchvision(data)
    return files_of_huggingface(data) if is_huggingface(data) else None


def from_dataset(
    data: Any,
    path: Callable[[int], Any] | Sequence[Any] | str | None = None,
    target: Callable[[int], Any] | Sequence[Any] | str | None = None,
    *,
    transform: Callable[[Any], Any] | None = None,
    target_transform: Callable[[Any], Any] | None = None,
    decode: str = "RGB",
    check: bool = True,
) -> FileSet:
    """Describe your own map-style data set as files, for `DataLoader` and `RemoteDataset`.

    When the result is first used, its first, middle and last samples are compared with those of the object.

    Args:
        data: The data set: anything with a length. A torchvision or Hugging Face data set needs no other argument.
        path: Path of sample i: a function of i, a list, or the name of an attribute that is a list; for Hugging Face,
            the picture column.
        target: The target of sample i before target_transform, given in the same ways; None if samples have none.
        transform: A callable for the picture; by default the object's attribute `transform`.
        target_transform: A callable for the target; by default the object's attribute of that name.
        decode: The mode in which the object opens its pictures; see `ops.Decode`.
        check: Whether to compare samples; turn this off if a sample of the object is not (picture, target).

    Raises:
        ConfigError: The data set cannot be represented; the message says why.
        StoreError: A file does not exist.
    """
    if is_huggingface(data):
        if not all(part is None or isinstance(part, str) for part in (path, target)):
            raise ConfigError("path, target: expected column names of the Hugging Face data set")
        return files_of_huggingface(data, path, target)  # type: ignore[arg-type]
    if path is None:
        found = files_of(data)
        if found is None:
            raise ConfigError(
                f"path: expected the paths of {type(data).__name__}'s files, as a function, a list or an attribute name"
            )
        return found
    title = type(data).__name__
    count = len(data)
    paths = _each("path", path, data, count)
    labels, others = labels_of(None if target is None else _each("target", target, data, count))
    classes = getattr(data, "classes", ()) if others is None else ()
    store = store_of(paths, labels, [c for c in classes if isinstance(c, str)], title)
    return FileSet(
        store,
        title,
        transform if transform is not None else getattr(data, "transform", None),
        target_transform if target_transform is not None else getattr(data, "target_transform", None),
        others,
        {"mode": decode},
        _own_item(data, target is not None) if check else None,
    )


def _each(name: str, told: Any, data: Any, count: int) -> list[Any]:
    if isinstance(told, str):
        if not hasattr(data, told):
            raise ConfigError(f"{name}: {type(data).__name__} has no attribute {told!r}")
        told = getattr(data, told)
    found = [told(index) for index in range(count)] if callable(told) else list(told)
    if len(found) != count:
        raise ConfigError(f"{name}: expected one for each of {count:,} samples, got {len(found):,}")
    return found


def _own_item(data: Any, has_targets: bool) -> Callable[[int], tuple[Any, Any]]:
    bare = without_transforms(data)

    def item(index: int) -> tuple[Any, Any]:
        found = bare[index]
        if not has_targets:  # the picture, alone or with parts that were not asked for
            return (found[0] if isinstance(found, tuple | list) and len(found) else found), None
        return pair(found, index)

    return item
