"""Build the optional C extensions; everything else about the package is in pyproject.toml."""

from setuptools import Extension, setup

SHARED = ["src/sophon/codec/window/_bits.pxd"]
# `optional`: where no compiler is found the install succeeds. That node does not offer the window codec, resizes
# pictures by Pillow, blurs them, makes tensors and draws many random numbers by NumPy, and reads files by `os`: the
# same bits, more slowly.
WINDOWS = [
    Extension(f"sophon.codec.window.{name}", [f"src/sophon/codec/window/{name}.pyx"], depends=SHARED, optional=True)
    for name in ("_jpeg", "_progressive")
]
PIXELS = [
    Extension(f"sophon.pipeline.{name}", [f"src/sophon/pipeline/{name}.pyx"], optional=True)
    for name in ("_pixels", "_blur", "_streams")
]
FILES = Extension("sophon.store._files", ["src/sophon/store/_files.pyx"], optional=True)

setup(ext_modules=[*WINDOWS, *PIXELS, FILES])
