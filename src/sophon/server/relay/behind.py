r"""The nodes behind a relay, and the file in which a registry names them to the relays that it runs.

A file, since nodes announce their addresses and names themselves: on a command line, a name could pass for an option or
another address, and many addresses would be too long.

::

    {"needs_tokens": true, "readers": "sha256:9f86… train\n", "nodes": {"train~1": ["grpc://10.0.0.4:7077/train"]}}
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from sophon.errors import ConfigError
from sophon.server.access import Tokens


@dataclass(frozen=True)
class Behind:
    """The nodes behind a relay.

    Args:
        nodes: Addresses of the nodes that hold each data set, by the data set's name.
        needs_tokens: Whether the relay requires tokens whatever its nodes say, since they announced themselves to a
            registry that requires them. They may have several owners, so no node keeps the relay from starting: none
            is waited for, and addresses that cannot be used are left out.
        readers: Tokens of the registry, by which it is known which nodes a token may be shown to; None for all nodes.
    """

    nodes: Mapping[str, Sequence[str]]
    needs_tokens: bool = False
    readers: Tokens | None = None

    def to_json(self) -> bytes:
        """Return the content of the file; the same for the same nodes."""
        nodes = {name: sorted(self.nodes[name]) for name in sorted(self.nodes)}
        readers = None if self.readers is None else self.readers.to_text()
        return json.dumps({"needs_tokens": self.needs_tokens, "readers": readers, "nodes": nodes}).encode() + b"\n"


def read_behind(path: Path) -> Behind:
    """Read the file; raise `ConfigError` if it is not one."""
    try:
        said = json.loads(path.read_bytes())
        nodes = {str(name): tuple(map(str, places)) for name, places in said["nodes"].items()}
        readers = None if said["readers"] is None else Tokens.parse(said["readers"], str(path))
        return Behind(nodes, said["needs_tokens"] is True, readers)
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise ConfigError(
            f"--announced {path} cannot be read ({type(error).__name__}: {error}); give the file that `sophon registry "
            "--relays` writes, or the addresses of nodes"
        ) from error
