"""Build the optional C extensions; everything else about the package is in pyproject.toml."""

from setuptools import Extension, setup

# `optional`: where no compiler is found the install succeeds. That node does not offer the window codec, and resizes
# pictures by Pillow and makes tensors by NumPy: the same bits, more slowly.
WINDOW = Extension("sophon.codec.window._jpeg", ["src/sophon/codec/window/_jpeg.pyx"], optional=True)
PIXELS = Extension("sophon.pipeline._pixels", ["src/sophon/pipeline/_pixels.pyx"], optional=True)

setup(ext_modules=[WINDOW, PIXELS])
