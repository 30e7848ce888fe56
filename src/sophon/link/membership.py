"""What a node announces to a registry, as JSON of bounded size.

::

    {"node": "7f3a…", "role": "storage", "url": "grpc://10.0.0.4:7077", "cores": 4.0, "release": "0.3.0",
     "datasets": {"train": {"fingerprint": "9c1e…", "samples": 320292, "part": "1/4", "whole": "51b7…"}}}

A relay has the role "relay", and no fingerprints, since it holds nothing. It may have several names for one data set,
one for each part: ``train~1`` and ``train~2`` both belong to ``train``. Only relays have such names: a node that holds
``train~1`` could use up the space of parts with names that no token names. A node that is about to stop says so with
``"leaving": true``, so that no new trainers are sent to it. Trainers report what holds them up (`TrainerReport`).
Neither side is trusted: every string and number is bounded.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sophon.errors import ProtocolError
from sophon.link.wire import parse_json
from sophon.store.listing.part import MOST_PARTS

MAX_RECORD_BYTES = 64 << 10
MAX_REPORT_BYTES = 4 << 10
PART_MARK = "~"  # between the name of a data set and that of its part, where a relay has one name for each part
ROLES = ("storage", "relay")
BEAT_S = 1.0  # between two announcements of a node
LEASE_S = 5.0  # without an announcement before a node counts as silent
_MOST_DATASETS = 256
_MOST_TEXT = 256
_MOST_SAMPLES = 1 << 40
_MOST_CORES = 1 << 16
# What would mean something else in an address, in NAME=ADDRESS of a relay, or in a relay's name for a part.
_NO_NAME = frozenset("/?#%=:" + PART_MARK)
_URL = re.compile(r"grpc(\+tls)?://(\[[0-9A-Fa-f:.%]+\]|[A-Za-z0-9._-]+):[0-9]{1,5}")
_PART = re.compile(r"([0-9]{1,4})/([0-9]{1,4})")
_FINGERPRINT = re.compile(r"[0-9A-Za-z]{0,128}")


@dataclass(frozen=True)
class Held:
    """What a node holds of one data set.

    Args:
        fingerprint: Fingerprint of its samples; "" for a relay, which holds nothing.
        samples: Number of samples.
        part: The part, such as 3/8; "" if not given.
        whole: Fingerprint of the whole data set.
    """

    fingerprint: str = ""
    samples: int = 0
    part: str = ""
    whole: str = ""

    @property
    def name(self) -> str:
        """Name of the part for messages."""
        return self.part or self.fingerprint[:12]


@dataclass(frozen=True)
class NodeRecord:
    """A node's announcement.

    Args:
        node: Unique name of the process.
        url: Address for trainers, without the name of a data set.
        role: "storage" or "relay".
        cores: Number of cores that the node has for ops.
        release: The release of sophon that the node runs.
        datasets: What it holds of each data set, by name.
        is_leaving: Whether it is about to stop.
    """

    node: str
    url: str
    role: str = "storage"
    cores: float = 0.0
    release: str = ""
    datasets: Mapping[str, Held] = field(default_factory=dict)
    is_leaving: bool = False

    def to_json(self) -> bytes:
        """Return the record in the form in which it is sent."""
        said: dict[str, Any] = {"node": self.node, "role": self.role, "url": self.url, "cores": self.cores}
        said |= {"release": self.release, "leaving": self.is_leaving}
        said["datasets"] = {name: dict(vars(held)) for name, held in self.datasets.items()}
        return json.dumps(said).encode()

    @classmethod
    def from_json(cls, data: bytes) -> NodeRecord:
        """Parse a received record; raise `ProtocolError` for anything else."""
        said = parse_json(data, MAX_RECORD_BYTES)
        url, role, cores, datasets = said.get("url"), said.get("role"), said.get("cores", 0), said.get("datasets")
        if not is_node_url(url):
            raise ProtocolError(f"url: expected grpc://host:port or grpc+tls://host:port, got {url!r:.80}")
        if role not in ROLES:
            raise ProtocolError(f"role: expected one of {', '.join(ROLES)}, got {role!r:.80}")
        is_number = isinstance(cores, int | float) and not isinstance(cores, bool)
        if not is_number or not 0 <= cores <= _MOST_CORES:  # NaN is in no interval
            raise ProtocolError(f"cores: expected a number in 0 … {_MOST_CORES:,}, got {cores!r:.80}")
        if not isinstance(datasets, dict) or len(datasets) > _MOST_DATASETS:
            raise ProtocolError(f"datasets: expected an object with at most {_MOST_DATASETS} data sets by name")
        return cls(
            node=_text(said, "node"),
            url=str(url),
            role=str(role),
            cores=float(cores),
            release=_text(said, "release"),
            datasets={named(name, str(role)): held_from(one) for name, one in datasets.items()},
            is_leaving=said.get("leaving") is True,
        )


@dataclass(frozen=True)
class TrainerReport:
    """What a trainer tells a registry.

    Args:
        dataset: Name of the data set that the trainer reads.
        trainer: Unique name of the process.
        bottleneck: The resource that limits the trainer's planned epoch; "" without a plan.
        waited_share: Share of the trainer's time spent waiting for batches.
        relay_share: Share of the time that relays are busy, according to the plan.
    """

    dataset: str
    trainer: str
    bottleneck: str = ""
    waited_share: float = 0.0
    relay_share: float = 0.0

    def to_json(self) -> bytes:
        """Return the report in the form in which it is sent."""
        return json.dumps(vars(self)).encode()

    @classmethod
    def from_json(cls, data: bytes) -> TrainerReport:
        """Parse a received report; raise `ProtocolError` for anything else."""
        said = parse_json(data, MAX_REPORT_BYTES)
        shares = [_share(said, name) for name in ("waited_share", "relay_share")]
        return cls(named(_text(said, "dataset")), _text(said, "trainer"), _text(said, "bottleneck"), *shares)


def dataset_of(name: str) -> str:
    """Return the name of the data set that a relay's name belongs to."""
    return name.partition(PART_MARK)[0]


def is_data_set(name: str, role: str = "storage") -> bool:
    """Return whether a node of this role may announce a data set under this name."""
    dataset, mark, part = name.partition(PART_MARK)
    if mark and (role != "relay" or not part):
        return False
    is_plain = name.isprintable() and not _NO_NAME & {*dataset, *part} and not name.startswith("-")
    return bool(dataset) and len(name) <= _MOST_TEXT and is_plain


def named(name: str, role: str = "storage") -> str:
    """Return a name under which a node of this role may announce a data set; raise `ProtocolError` for any other."""
    if not is_data_set(name, role):
        raise ProtocolError(
            f"expected the name of a data set, got {name!r:.80}; a name that is announced has at most {_MOST_TEXT} "
            f"printable characters, does not begin with -, and has none of {' '.join(sorted(_NO_NAME))}: give another "
            "one with NAME=PATH"
        )
    return name


def _share(said: dict[str, Any], name: str) -> float:
    value = said.get(name, 0.0)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1:
        raise ProtocolError(f"{name}: expected a number in 0 … 1, got {value!r:.80}")
    return float(value)


def held_from(said: object) -> Held:
    """Parse a description of the part that a node holds; raise `ProtocolError` for anything else."""
    if not isinstance(said, dict):
        raise ProtocolError(f"expected the description of a data set, got {said!r:.80}")
    samples = said.get("samples", 0)
    if isinstance(samples, bool) or not isinstance(samples, int) or not 0 <= samples <= _MOST_SAMPLES:
        raise ProtocolError(f"samples: expected an integer in 0 … {_MOST_SAMPLES:,}, got {samples!r:.80}")
    fingerprint, whole = (_text(said, name) for name in ("fingerprint", "whole"))
    if _FINGERPRINT.fullmatch(fingerprint) is None or _FINGERPRINT.fullmatch(whole) is None:
        raise ProtocolError(f"expected fingerprints of letters and digits, got {fingerprint!r:.80} and {whole!r:.80}")
    part = _text(said, "part")
    if part:
        part_numbers(part)
    return Held(fingerprint, samples, part, whole)


def is_node_url(url: object) -> bool:
    """Return whether this is the address of a node, without the name of a data set, as nodes announce it."""
    return isinstance(url, str) and len(url) <= _MOST_TEXT and _URL.fullmatch(url) is not None


def part_numbers(text: str) -> tuple[int, int]:
    """Return a part's number and the number of parts, such as 3 and 8 for ``3/8``, or raise `ProtocolError`."""
    found = _PART.fullmatch(text)
    number, of = (int(found[1]), int(found[2])) if found is not None else (0, 0)
    if not 1 <= number <= of <= MOST_PARTS:
        raise ProtocolError(f"part: expected a number and how many there are, such as 3/8, got {text!r:.80}")
    return number, of


def _text(said: dict[str, Any], name: str) -> str:
    value = said.get(name, "")
    if not isinstance(value, str) or len(value) > _MOST_TEXT or not value.isprintable():
        raise ProtocolError(f"{name}: expected a string of at most {_MOST_TEXT} characters, got {value!r:.80}")
    return value
