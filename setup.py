"""Build the optional C extension; everything else about the package is in pyproject.toml."""

from setuptools import Extension, setup

# `optional`: where no compiler is found the install succeeds, and that node does not offer the window codec.
WINDOW = Extension("sophon.codec.window._jpeg", ["src/sophon/codec/window/_jpeg.pyx"], optional=True)

setup(ext_modules=[WINDOW])
