"""Build the optional C extensions; everything else about the package is in pyproject.toml."""

from setuptools import Extension, setup

SHARED = ["src/sophon/codec/window/_bits.pxd"]
# `optional`: where no compiler is found the install succeeds. That node does not offer windows of pictures and FLAC
# files, decodes and resizes pictures by Pillow, blurs them, makes tensors and draws many random numbers by NumPy, and
# reads files by `os`: the same bits, more slowly; and gRPC starts as many threads as it likes.
WINDOWS = [
    Extension(f"sophon.codec.window.{name}", [f"src/sophon/codec/window/{name}.pyx"], depends=SHARED, optional=True)
    for name in ("_jpeg", "_progressive")
]
ARROW = ["src/sophon/pipeline/_arrow.pxd"]
PIXELS = [
    Extension(f"sophon.pipeline.{name}", [f"src/sophon/pipeline/{name}.pyx"], depends=ARROW, optional=True)
    for name in ("_pixels", "_blur", "_streams")
]
SOUND = Extension("sophon.codec.audio._flac", ["src/sophon/codec/audio/_flac.pyx"], optional=True)
LIBJPEG = Extension(
    "sophon.pipeline.jpeg._libjpeg", ["src/sophon/pipeline/jpeg/_libjpeg.pyx"], depends=ARROW, optional=True
)
FILES = Extension("sophon.store._files", ["src/sophon/store/_files.pyx"], optional=True)
TRAFFIC = Extension("sophon.process._traffic", ["src/sophon/process/_traffic.pyx"], optional=True)
CALL_THREADS = Extension(
    "sophon.server._call_threads",
    ["src/sophon/server/_call_threads.pyx", "src/sophon/server/bounded_threads.c"],
    optional=True,
)

setup(ext_modules=[*WINDOWS, *PIXELS, LIBJPEG, SOUND, FILES, TRAFFIC, CALL_THREADS])
