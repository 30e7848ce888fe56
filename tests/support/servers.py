"""Servers and data sets for tests: real files, real processes."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

from sophon import LocalServer
from tests.support.no_torch import MEAN, RECIPE, STD
from tests.support.pictures import FORMS, encode, scene

__all__ = ["MEAN", "RECIPE", "STD", "digest", "make_images", "serve"]


def make_images(folder: Path, count: int = 23, classes: int = 3) -> Path:
    """Write a folder of images of all formats and sizes, in class folders unless there are none."""
    forms = [form for form, (_, kind, _) in FORMS.items() if kind in ("JPEG", "PNG", "BMP", "TIFF", "WEBP")]
    for i in range(count):
        form = forms[i % len(forms)]
        ending = {"JPEG": "jpg", "TIFF": "tif"}.get(FORMS[form][1], FORMS[form][1].lower())
        home = folder / f"class_{i % classes}" if classes else folder
        home.mkdir(parents=True, exist_ok=True)
        picture = scene(60 + 17 * (i % 5), 50 + 11 * (i % 7), seed=i)
        (home / f"{i:04d}.{ending}").write_bytes(encode(picture, form))
    return folder


def serve(folder: Path | str, cores: float = 1, **settings: Any) -> LocalServer:
    """Return a server that keeps its manifest beside the data of the test."""
    own = () if isinstance(folder, str) else ("--cache-dir", str(folder.parent / "cache"))
    options = (*settings.pop("options", ()), *own)
    return LocalServer(folder, cores, options=options, **settings)


def digest(batches: Iterable[Any]) -> str:
    """Return a digest of all tensors of some batches, their types, shapes and order."""
    hasher = hashlib.sha256()
    for batch in batches:
        for part in batch if isinstance(batch, list | tuple) else [batch]:
            assert isinstance(part, torch.Tensor)
            hasher.update(f"{part.dtype}{tuple(part.shape)}".encode() + part.numpy().tobytes())
    return hasher.hexdigest()
