"""Small data sets of every kind. Stores do not look into pictures, so any bytes will do."""

from __future__ import annotations

import io
import json
import os
import tarfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from sophon.store import STORES

SINGLE = [
    kind for kind in STORES if kind not in ("annotated", "listed", "volumes")
]  # whose samples may be single files; that one has its own tests
LONG_AGO_NS = 1_700_000_000 * 10**9
NAMES = {"label": {"names": ["cat", "dog", "owl"], "_type": "ClassLabel"}}


def picture(number: int) -> bytes:
    """Return the bytes of a picture, other ones and of another length for every number."""
    return b"picture %d " % number * (1 + number % 7)


def write_files(root: Path, files: dict[str, bytes]) -> Path:
    """Write files below a root; the root exists even if there are none."""
    root.mkdir(parents=True, exist_ok=True)
    for name, data in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return root


def write_tar(path: Path, members: list[tuple[str, bytes]], form: int = tarfile.GNU_FORMAT) -> Path:
    """Write a tar shard with Python's own tarfile."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w", format=form) as archive:
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return path


def write_parquet(path: Path, columns: dict[str, object], features: object = None, rows: int = 3) -> Path:
    """Write a Parquet shard with a few rows per row group and, like Hugging Face, features in its metadata."""
    path.parent.mkdir(parents=True, exist_ok=True)
    table = pa.table(columns)
    if features is not None:
        table = table.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})
    pq.write_table(table, path, row_group_size=rows)
    return path


def structs(pictures: list[bytes | None], paths: list[str | None] | None = None) -> pa.Array:
    """Return pictures as Hugging Face stores them."""
    names = paths or [None] * len(pictures)
    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    return pa.array([{"bytes": b, "path": n} for b, n in zip(pictures, names, strict=True)], kind)


def make(kind: str, root: Path) -> Path:
    """Return a data set of ten labelled samples: sample i holds picture(i) and has label i // 4."""
    if kind == "folder":
        return write_files(root, {f"{'abc'[i // 4]}/{i:03d}.jpg": picture(i) for i in range(10)})
    if kind == "listing":
        write_files(root, {f"{i:03d}.jpg": picture(i) for i in range(10)})
        rows = "".join(f"{i:03d}.jpg,{'abc'[i // 4]}\n" for i in range(10))
        return write_files(root, {f"{root.name}.csv": f"path,label\n{rows}".encode()}) / f"{root.name}.csv"
    for shard, numbers in enumerate((range(6), range(6, 10))):
        if kind == "tar":
            members = [m for i in numbers for m in ((f"{i:03d}.jpg", picture(i)), (f"{i:03d}.cls", b"%d" % (i // 4)))]
            write_tar(root / f"shard-{shard}.tar", members)
        else:
            columns = {"image": structs([picture(i) for i in numbers]), "label": [i // 4 for i in numbers]}
            write_parquet(root / f"shard-{shard}.parquet", columns, NAMES)
    return root


def settle(path: Path) -> Path:
    """Give all files and folders an old time: what was changed just now is not kept in the cache."""
    for folder, _, files in os.walk(path if path.is_dir() else path.parent):
        for name in [*files, "."]:
            os.utime(Path(folder) / name, ns=(LONG_AGO_NS, LONG_AGO_NS))
    return path


def open_files() -> int:
    """Return how many files this process has open."""
    return len(list(Path("/proc/self/fd").iterdir()))
