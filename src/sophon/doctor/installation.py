"""Checks that this installation is complete: versions, compiled extensions and codecs."""

from __future__ import annotations

import importlib
import platform
import re
from collections.abc import Iterator
from importlib import metadata
from typing import Final

from sophon.doctor.finding import ADVICE, FAULT, FINE, NOTE, Finding
from sophon.version import PACKAGE, __version__, install_command

_ABOUT: Final = "installation"
_NEEDED: Final = re.compile(r"([A-Za-z0-9_.-]+)\s*>=\s*([0-9.]+)$")
# Extension, and what is missing without it.
EXTENSIONS: Final = {
    "sophon.codec.window._jpeg": "no `window` codec, which saves most of the bytes of JPEG files",
    "sophon.codec.window._progressive": "progressive JPEG files cross the link whole",
    "sophon.codec.audio._flac": "no windows of FLAC files, which cross the link whole",
    "sophon.pipeline._pixels": "pictures are resized more slowly",
    "sophon.pipeline.jpeg._libjpeg": "JPEG files are decoded more slowly",
    "sophon.pipeline._blur": "pictures are blurred more slowly",
    "sophon.pipeline._streams": "plans of large data sets take longer to make",
    "sophon.store._files": "many small files are read more slowly",
    "sophon.process._traffic": "a storage node spends more CPU time on watching its connections",
    "sophon.server._call_threads": "a flood of calls makes a storage node start thousands of threads",
}
_REBUILD: Final = (
    f"Install a wheel of {PACKAGE}, or a C compiler and then `pip install --force-reinstall --no-cache-dir "
    f"{PACKAGE}` (from a clone: `pip install --force-reinstall .`)."
)


def examine_installation() -> Iterator[Finding]:
    """Check versions, extensions and codecs of this Python environment."""
    yield Finding(_ABOUT, "python", FINE, f"Python {platform.python_version()}, sophon {__version__}")
    yield from _packages()
    yield from _extensions()
    yield from _codecs()
    yield _torch()


def _packages() -> Iterator[Finding]:
    try:
        wanted = metadata.requires(PACKAGE) or []
    except metadata.PackageNotFoundError:
        remedy = "Install it with pip, so that versions can be checked."
        yield Finding(_ABOUT, "packages", ADVICE, f"{PACKAGE} runs from a folder and was not installed by pip", remedy)
        return
    found = []
    for text in wanted:
        match = _NEEDED.match(text.partition(";")[0].strip())
        if match is None or "extra ==" in text:
            continue
        name, least = match[1], match[2]
        version = _version(name)
        if version is None or _numbers(version) < _numbers(least):
            has = f"{name} {version} is installed" if version else f"{name} is not installed"
            remedy = f'Run `pip install "{name}>={least}"`.'
            yield Finding(_ABOUT, name.lower(), FAULT, f"{has}, but sophon needs {least} or newer", remedy)
        else:
            found.append(f"{name} {version}")
    yield Finding(_ABOUT, "packages", FINE, ", ".join(found))
    yield from _pillow()


def _pillow() -> Iterator[Finding]:
    """Check Pillow, which determines the bits: the copy that is loaded must be the one that pip installed."""
    try:
        from PIL import Image, features
        from PIL import __version__ as loaded
    except ImportError as error:
        remedy = "Run `pip install --force-reinstall pillow`."
        yield Finding(_ABOUT, "pillow", FAULT, f"Pillow cannot be loaded: {error}", remedy)
        return
    told = _version("pillow")
    if told is not None and loaded != told:
        text = f"Pillow {loaded} is loaded from {Image.__file__}, but pip has installed {told}"
        remedy = "Remove the copy that is loaded, or unset PYTHONPATH, and run `pip install --force-reinstall pillow`."
        yield Finding(_ABOUT, "pillow", FAULT, text, remedy)
    for name, words in (("jpg", "JPEG"), ("webp", "WebP"), ("zlib", "PNG")):
        if not features.check(name):
            remedy = "Install a wheel of Pillow: `pip install --force-reinstall pillow`."
            yield Finding(_ABOUT, "pillow", FAULT, f"this Pillow was built without {words}", remedy)


def _extensions() -> Iterator[Finding]:
    missing = 0
    for name, loss in EXTENSIONS.items():
        try:
            importlib.import_module(name)
        except ImportError as error:
            missing += 1
            text = f"the compiled extension {name.rpartition('.')[2]} is missing ({error}): {loss}"
            yield Finding(_ABOUT, "extensions", ADVICE, text, _REBUILD)
    if not missing:
        yield Finding(_ABOUT, "extensions", FINE, f"all {len(EXTENSIONS)} compiled extensions are present")


def _codecs() -> Iterator[Finding]:
    try:
        from sophon.codec.table import CODECS, offered
    except ImportError as error:
        yield Finding(_ABOUT, "codecs", FAULT, f"codecs cannot be loaded: {error}", "Fix the problems named above.")
        return
    here = offered()
    yield Finding(_ABOUT, "codecs", FINE, ", ".join(here))
    if "jxl1" in CODECS and "jxl1" not in here:
        text = "codecs jxl1 and jxl3 are not available: imagecodecs is not installed"
        remedy = f"They are optional; `{install_command('jxl')}` adds them."
        yield Finding(_ABOUT, "codecs", NOTE, text, remedy)


def _torch() -> Finding:
    version = _version("torch")
    if version is None:
        text = "torch is not installed, which is fine on a storage node"
        return Finding(_ABOUT, "torch", NOTE, text, f"A trainer needs it: `{install_command('torch')}`.")
    return Finding(_ABOUT, "torch", FINE, f"torch {version}")


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _numbers(version: str) -> tuple[int, ...]:
    """Return the leading numbers of a version; enough to compare it with a minimum."""
    found = re.match(r"[0-9]+(?:\.[0-9]+)*", version)
    return tuple(int(part) for part in found[0].split(".")) if found else ()
