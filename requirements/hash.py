"""Write hashed.txt: every version of pins.txt with the SHA-256 of all its files, as an index gives them.

hashed-datasets.txt, hashed-docs.txt, hashed-ray.txt and hashed-wheel.txt are made from their pins in the same way.

Usage: python requirements/hash.py INDEX_URL, with the address of a simple index (PEP 503).

torch is left out: it comes in one build per kind of accelerator, from other indexes under the same version, so there is
no one list of files. The Makefile installs it by its version alone.
"""

from __future__ import annotations

import re
import sys
import urllib.request
from pathlib import Path

HERE = Path(__file__).parent
LEFT_OUT = {"torch"}
_FILE = re.compile(r'href="(?:[^"#]*/)?([^"#/]+)#sha256=([0-9a-f]{64})"')


def pins(file: str) -> dict[str, str]:
    """Return the versions of a file of pins by name."""
    lines = (line.split("#", 1)[0].strip() for line in (HERE / file).read_text().splitlines())
    return dict(line.split("==") for line in lines if line)


def hashes(index: str, name: str, version: str) -> list[str]:
    """Return the SHA-256 of every file of a release."""
    project = re.sub(r"[-_.]+", "-", name).lower()
    with urllib.request.urlopen(f"{index.rstrip('/')}/{project}/", timeout=60) as answer:
        files = _FILE.findall(answer.read().decode())
    found = {value for file, value in files if _is_of(file, f"{project}-{version}")}
    if not found:
        raise SystemExit(f"no file of {name} {version} at {index}")
    return sorted(found)


def _is_of(filename: str, release: str) -> bool:
    """Return whether a file belongs to a release, however its name is spelled."""
    name, dash, _ = re.sub(r"(\.tar\.gz|\.zip)$", "-", filename).partition(f"-{release.rpartition('-')[2]}-")
    return bool(dash) and re.sub(r"[-_.]+", "-", name).lower() == release.rpartition("-")[0]


def main(index: str) -> None:
    """Write the files."""
    for more, note in (
        ("", " torch is left out, and it says why."),
        ("-datasets", ""),
        ("-docs", ""),
        ("-ray", ""),
        ("-wheel", ""),
    ):
        lines = [f"# Made by requirements/hash.py from pins{more}.txt: do not edit.{note}"]
        for name, version in pins(f"pins{more}.txt").items():
            if name not in LEFT_OUT:
                options = [f"--hash=sha256:{value}" for value in hashes(index, name, version)]
                lines.append(" \\\n    ".join([f"{name}=={version}", *options]))
        (HERE / f"hashed{more}.txt").write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(sys.argv[1])
