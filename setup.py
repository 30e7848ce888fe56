"""Build the optional C extensions; everything else about the package is in pyproject.toml."""

from setuptools import Extension, setup

SHARED = ["src/sophon/codec/window/_bits.pxd"]
# `optional`: where no compiler is found the install succeeds. That node does not offer the window codec, and resizes
# pictures by Pillow and makes tensors by NumPy: the same bits, more slowly.
WINDOWS = [
    Extension(f"sophon.codec.window.{name}", [f"src/sophon/codec/window/{name}.pyx"], depends=SHARED, optional=True)
    for name in ("_jpeg", "_progressive")
]
PIXELS = Extension("sophon.pipeline._pixels", ["src/sophon/pipeline/_pixels.pyx"], optional=True)

setup(ext_modules=[*WINDOWS, PIXELS])
