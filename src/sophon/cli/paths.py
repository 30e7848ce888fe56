"""The path arguments of `sophon serve`: the data sets they stand for, and their names."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from sophon.errors import ConfigError
from sophon.store.address import is_address, parse_address
from sophon.store.options import split_options

_NAMED: Final = re.compile(r"([^/=?]+)=(.+)", re.DOTALL)
_SHARDS: Final = (".tar", ".parquet")
_NUMBER: Final = re.compile(r"\d+")


def named_paths(texts: tuple[str, ...], name: str | None, where: str | None) -> list[tuple[str, str]]:
    """Return data sets as (name, path with options).

    Shards that differ only in their numbers are one data set: the shell has expanded a pattern.

    Args:
        texts: Arguments as given: ``PATH`` or ``NAME=PATH``.
        name: Name for the data set, if there is only one.
        where: Condition that selects its samples.

    Raises:
        ConfigError: Two data sets have the same name, or the arguments are ambiguous.
    """
    pairs = _with_shards_joined([_pair(text) for text in texts])
    if (name is not None or where is not None) and len(pairs) != 1:
        option, instead = ("--name", "NAME=PATH") if name is not None else ("--where", "PATH?where=CONDITION")
        raise ConfigError(f"{option} is for a single PATH; write {instead} if there are several")
    named: dict[str, str] = {}
    for told, path in pairs:
        label = name or told or _title(path)
        if "/" in label or label in named:
            raise ConfigError(
                f"{label!r} cannot be the name of {path}: names must be unique and contain no slash; write NAME={path}"
            )
        named[label] = path if where is None else _with_where(path, where)
    return list(named.items())


def _pair(text: str) -> tuple[str | None, str]:
    match = _NAMED.fullmatch(text)
    return (match[1], match[2]) if match is not None and not Path(text).exists() else (None, text)


def _with_where(path: str, where: str) -> str:
    options = split_options(path)[1]
    if "where" in options:
        raise ConfigError(f"{path!r} already has a condition; leave --where out")
    return f"{path}{'&' if options else '?'}where={where}"


def _with_shards_joined(pairs: list[tuple[str | None, str]]) -> list[tuple[str | None, str]]:
    groups: dict[tuple[Path, str], list[str]] = {}
    for told, path in pairs:
        if told is None and path.lower().endswith(_SHARDS) and Path(path).is_file():
            groups.setdefault(_alike(path), []).append(path)
    joined: list[tuple[str | None, str]] = []
    for told, path in pairs:
        group = groups.get(_alike(path), []) if told is None else []
        if len(group) < 2:
            joined.append((told, path))
        elif path == group[0]:
            joined.append((None, _pattern(group)))
    return joined


def _alike(path: str) -> tuple[Path, str]:
    return Path(path).parent, _NUMBER.sub("*", Path(path).name)


def _pattern(group: list[str]) -> str:
    """Return the pattern that matches exactly these shards."""
    parts = list(zip(*(_NUMBER.split(Path(path).name) for path in group), strict=True))
    numbers = list(zip(*(_NUMBER.findall(Path(path).name) for path in group), strict=True))
    stars = ["*" if len(set(found)) > 1 else found[0] for found in numbers]
    texts = [found[0] for found in parts]
    name = "".join(text + star for text, star in zip(texts, [*stars, ""], strict=True))
    folder = Path(group[0]).parent
    there, given = {path.name for path in folder.glob(name)}, {Path(path).name for path in group}
    if len(given) < len(group) or there != given:
        raise ConfigError(
            f"{len(given)} of the {len(there)} files that match {folder / name} are given: are they one data set? "
            f"Write '{folder / name}', in quotes, for all of them, move these into a separate folder, or write "
            "NAME=PATH for each separate data set"
        )
    return str(folder / name)


def _title(path: str) -> str:
    bare = split_options(path)[0]
    if is_address(bare):
        address = parse_address(bare)
        name = (address.parent if address.is_pattern else address).name
        return name.split(".")[0].partition("{")[0].rstrip("-_ ") or address.bucket
    name = Path(split_options(path)[0]).resolve().name.split(".")[0]
    return name.partition("*")[0].rstrip("-_ ") or Path(path).resolve().parent.name or "data"
