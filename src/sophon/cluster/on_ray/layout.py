"""The layout of a Ray cluster, from a dictionary or a YAML file; validated before anything is started.

::

    registry:
      port: 7070
    nodes:
      - name: store-1 label: {sophon-store: "1"}      # of the Ray node that holds the data data: {train: /data/train}
        part: 1/2 cores: 4 options: [--token-file, /etc/sophon/tokens] relays:                             # run if
        trainers need CPU; without this key, no relays run least: 0 most: 4 cores: 2
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sophon.errors import ConfigError
from sophon.store.listing.part import Part

NAMESPACE = "sophon"
REGISTRY = "sophon:registry"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
_MOST_RELAYS = 1024
_OURS = ("--port", "--ready-file", "--registry", "--advertise", "--part", "--cores", "--host")


@dataclass(frozen=True)
class NodeLayout:
    """One storage node.

    Args:
        name: Name of the node, also shown in Ray's dashboard.
        data: Paths on that host, by name of the data set.
        label: Labels of the Ray node that holds the data.
        part: Part of the data to serve, such as 3/8; "" for all.
        cores: Number of cores for ops; None for all.
        port: Port to listen on; 0 for any free one.
        host: Address to listen on; "" for that of the Ray node.
        options: Further options of `sophon serve`.
    """

    name: str
    data: Mapping[str, str]
    label: Mapping[str, str] = field(default_factory=dict)
    part: str = ""
    cores: float | None = None
    port: int = 0
    host: str = ""
    options: tuple[str, ...] = ()

    @property
    def actor(self) -> str:
        """Name of the node's Ray actor."""
        return f"sophon:storage:{self.name}"


@dataclass(frozen=True)
class RegistryLayout:
    """The registry.

    Args:
        port: Port to listen on; 0 for any free one.
        host: Address to listen on; "" for that of the Ray node.
        label: Labels of the Ray node to run on; empty for any node.
        options: Further options of `sophon registry`.
    """

    port: int = 0
    host: str = ""
    label: Mapping[str, str] = field(default_factory=dict)
    options: tuple[str, ...] = ()


@dataclass(frozen=True)
class RelaysLayout:
    """The relays, whose number follows what trainers report.

    Args:
        least: Fewest relays.
        most: Most relays; 0 for none.
        cores: Number of cores of each relay, which Ray reserves; its autoscaler adds machines if there are too few.
        host: Address to listen on; "" for that of the Ray node.
        label: Labels of the Ray nodes to run on; empty for any node.
        options: Further options of `sophon relay`.
    """

    least: int = 0
    most: int = 0
    cores: float = 1.0
    host: str = ""
    label: Mapping[str, str] = field(default_factory=dict)
    options: tuple[str, ...] = ()

    @staticmethod
    def actor(number: int) -> str:
        """Name of a relay's Ray actor."""
        return f"sophon:relay:{number}"


@dataclass(frozen=True)
class Layout:
    """Everything that should run.

    Args:
        nodes: The storage nodes.
        registry: The registry.
        folder: Folder in which each host keeps the state of its processes.
        relays: The relays.
    """

    nodes: tuple[NodeLayout, ...]
    registry: RegistryLayout = field(default_factory=RegistryLayout)
    folder: str = "/tmp/sophon-nodes"
    relays: RelaysLayout = field(default_factory=RelaysLayout)

    @classmethod
    def parse(cls, said: Any) -> Layout:
        """Parse a layout from a dictionary, or raise `ConfigError`."""
        if not isinstance(said, Mapping):
            raise ConfigError(f"expected a dictionary with nodes, got {said!r:.80}")
        _check_names("the layout", said, ("nodes", "registry", "folder", "relays"))
        nodes = said.get("nodes")
        if not isinstance(nodes, Sequence) or isinstance(nodes, str) or not nodes:
            raise ConfigError("nodes: expected a list with at least one storage node")
        parsed = tuple(_node(one, number) for number, one in enumerate(nodes, start=1))
        names = [node.name for node in parsed]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise ConfigError(f"nodes: {twice[0]!r} is used more than once; give each node its own name")
        folder = str(said.get("folder") or cls.folder)
        return cls(parsed, _registry(said.get("registry") or {}), folder, _relays(said.get("relays") or {}))

    @classmethod
    def load(cls, path: Path) -> Layout:
        """Load a layout from a YAML file."""
        import yaml  # type: ignore[import-untyped]  # comes with Ray

        try:
            return cls.parse(yaml.safe_load(path.read_text()))
        except OSError as error:
            raise ConfigError(f"{path} cannot be read: {error.strerror}") from error
        except yaml.YAMLError as error:
            raise ConfigError(f"{path} is not YAML: {str(error)[:300]}") from error

    def place(self, name: str) -> Path:
        """Return the folder for the state of one process on its host."""
        return Path(self.folder, hashlib.sha256(name.encode()).hexdigest()[:8] + "-" + name.replace(":", "-"))


def _node(said: Any, number: int) -> NodeLayout:
    where = f"node {number}"
    if not isinstance(said, Mapping):
        raise ConfigError(f"{where}: expected a dictionary, got {said!r:.80}")
    _check_names(where, said, ("name", "data", "label", "part", "cores", "port", "host", "options"))
    name = said.get("name", f"node-{number}")
    if not isinstance(name, str) or _NAME.fullmatch(name) is None:
        raise ConfigError(f"{where}: name: expected letters, digits, '.', '_' and '-', got {name!r:.80}")
    data = said.get("data")
    if not isinstance(data, Mapping) or not data or not all(isinstance(p, str) for p in (*data, *data.values())):
        raise ConfigError(f"{name}: data: expected paths by name, such as {{train: /data/train}}")
    part = str(said.get("part") or "")
    if part:
        Part.parse(part)
    cores = said.get("cores")
    if cores is not None and (isinstance(cores, bool) or not isinstance(cores, int | float) or cores < 0):
        raise ConfigError(f"{name}: cores: expected a number, zero or more, got {cores!r:.40}")
    options = _options(name, said.get("options") or ())
    port, host, label = _port(name, said.get("port", 0)), str(said.get("host") or ""), _label(name, said.get("label"))
    return NodeLayout(name, dict(data), label, part, None if cores is None else float(cores), port, host, options)


def _registry(said: Any) -> RegistryLayout:
    if not isinstance(said, Mapping):
        raise ConfigError(f"registry: expected a dictionary, got {said!r:.80}")
    _check_names("registry", said, ("port", "host", "label", "options"))
    options = _options("registry", said.get("options") or ())
    port, host = _port("registry", said.get("port", 0)), str(said.get("host") or "")
    return RegistryLayout(port, host, _label("registry", said.get("label")), options)


def _relays(said: Any) -> RelaysLayout:
    if not isinstance(said, Mapping):
        raise ConfigError(f"relays: expected a dictionary, got {said!r:.80}")
    _check_names("relays", said, ("least", "most", "cores", "host", "label", "options"))
    least, most, cores = said.get("least", 0), said.get("most", 0), said.get("cores", 1.0)
    for name, number in (("least", least), ("most", most)):
        if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number <= _MOST_RELAYS:
            raise ConfigError(f"relays: {name}: expected a number in 0 … {_MOST_RELAYS}, got {number!r:.40}")
    if least > most:
        raise ConfigError(f"relays: least: {least} is more than most: {most}")
    if isinstance(cores, bool) or not isinstance(cores, int | float) or not 0 < cores <= 4096:
        raise ConfigError(f"relays: cores: expected a number above zero, got {cores!r:.40}")
    options = _options("relays", said.get("options") or ())
    host, label = str(said.get("host") or ""), _label("relays", said.get("label"))
    return RelaysLayout(least, most, float(cores), host, label, options)


def _check_names(where: str, said: Mapping[str, Any], known: Sequence[str]) -> None:
    unknown = sorted(str(name) for name in said if name not in known)
    if unknown:
        raise ConfigError(f"{where}: unknown key {unknown[0]!r}; expected one of {', '.join(known)}")


def _port(where: str, port: Any) -> int:
    if isinstance(port, bool) or not isinstance(port, int) or not 0 <= port < 1 << 16:
        raise ConfigError(f"{where}: port: expected a number in 0 … 65535, got {port!r:.40}")
    return port


def _label(where: str, label: Any) -> dict[str, str]:
    if label is None:
        return {}
    if not isinstance(label, Mapping):
        raise ConfigError(f"{where}: label: expected labels of a Ray node, such as {{sophon-store: '1'}}")
    return {str(name): str(value) for name, value in label.items()}


def _options(where: str, options: Any) -> tuple[str, ...]:
    if isinstance(options, str) or not isinstance(options, Sequence):
        raise ConfigError(f"{where}: options: expected a list of strings, got {options!r:.80}")
    texts = tuple(map(str, options))
    ours = [text for text in texts if text.partition("=")[0] in _OURS]
    if ours:
        raise ConfigError(f"{where}: options: {ours[0]} has its own key in the layout; use that key")
    return texts
