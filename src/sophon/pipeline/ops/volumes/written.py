"""Writes volume files: NIfTI, and Zarr 3 arrays in one zip file."""

from __future__ import annotations

import io
import itertools
import json
import struct
import zipfile
import zlib
from typing import Any

import numpy as np

from sophon.errors import ConfigError

Voxels = np.ndarray[Any, np.dtype[Any]]
Spacing = tuple[float, float, float]

_CODES = {"uint8": 2, "int16": 4, "int32": 8, "float32": 16, "float64": 64, "int8": 256, "uint16": 512}
_OFFSET = 352
_EPOCH = (1980, 1, 1, 0, 0, 0)  # the earliest date in zip files, so that the same array gives the same bytes
_LEVEL = 5


def nifti(array: Voxels, spacing: Spacing = (1.0, 1.0, 1.0), *, compressed: bool = False) -> bytes:
    """Return a NIfTI file with a three-dimensional array, or a four-dimensional one with channels last."""
    header = bytearray(_OFFSET)
    struct.pack_into("<i", header, 0, 348)
    sides = (*array.shape, *(1,) * (7 - array.ndim))
    struct.pack_into("<8h", header, 40, array.ndim, *sides)
    struct.pack_into("<2h", header, 70, _CODES[array.dtype.name], 8 * array.itemsize)
    struct.pack_into("<8f", header, 76, 1.0, *spacing, 1.0, 1.0, 1.0, 1.0)
    struct.pack_into("<3f", header, 108, _OFFSET, 1.0, 0.0)
    header[123] = 2  # millimetres
    header[344:348] = b"n+1\0"
    data = bytes(header) + array.astype(array.dtype.newbyteorder("<")).tobytes(order="F")
    if not compressed:
        return data
    # Without a name or a time, like `gzip -n`, so that the same array gives the same bytes.
    deflate = zlib.compressobj(6, zlib.DEFLATED, 31)
    return deflate.compress(data) + deflate.flush()


def chunked(array: Voxels, side: int = 32, spacing: Spacing = (1.0, 1.0, 1.0)) -> bytes:
    """Return a zipped Zarr file with a three-dimensional array in cubic chunks, compressed by blosc with zstd.

    Chunks that hold only zeros are left out, as Zarr does for chunks equal to the fill value.
    """
    try:
        from numcodecs import Blosc
    except ImportError as error:
        raise ConfigError("compressing chunks needs numcodecs: pip install 'sophon-loader[volumes]'") from error
    blosc = Blosc("zstd", clevel=_LEVEL, shuffle=Blosc.SHUFFLE)
    bytes_codec: dict[str, Any] = {"name": "bytes"}
    if array.itemsize > 1:
        bytes_codec["configuration"] = {"endian": "little"}
    blosc_codec = {"typesize": array.itemsize, "cname": "zstd", "clevel": _LEVEL, "shuffle": "shuffle", "blocksize": 0}
    meta = {
        "shape": list(array.shape),
        "data_type": array.dtype.name,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [side] * array.ndim}},
        "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
        "fill_value": 0,
        "codecs": [bytes_codec, {"name": "blosc", "configuration": blosc_codec}],
        "attributes": {"spacing": list(spacing)},
        "zarr_format": 3,
        "node_type": "array",
        "storage_transformers": [],
    }
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_STORED) as file:
        file.writestr(zipfile.ZipInfo("zarr.json", _EPOCH), json.dumps(meta))
        for place in itertools.product(*(range(-(-size // side)) for size in array.shape)):
            piece = array[tuple(slice(at * side, (at + 1) * side) for at in place)]
            if not piece.any():
                continue
            chunk = np.zeros((side,) * array.ndim, array.dtype.newbyteorder("<"))
            chunk[tuple(slice(0, length) for length in piece.shape)] = piece
            file.writestr(zipfile.ZipInfo("/".join(("c", *map(str, place))), _EPOCH), blosc.encode(chunk))
    return out.getvalue()
