"""Resources as a vector: one table of kinds, and the amount of each that a job has.

Only `KINDS` knows how many resources there are. A kind defines the measures of the profile that spend it, the unit of
its rate, its command line option, and the message for an invalid number. Cost model, prices, policies, plan files,
reports and commands go through the table.

An unknown rate is infinite, and such a resource is never the bottleneck. Per-node kinds (link, storage cores, store)
may be given once for all samples, or separately for every node; a node's resource is then spent only by the samples of
its part.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Real
from typing import Any

from sophon.errors import ConfigError
from sophon.units import format_bandwidth, format_rate, parse_bandwidth, parse_rate

SAMPLES = "samples"
"""The measure for rates in samples: every sample counts as one, whatever its route."""


@dataclass(frozen=True)
class Use:
    """One way in which a sample spends a resource.

    Args:
        measure: Measure of the profile, or `SAMPLES`.
        factor: Name of the overhead that says how much of the resource one unit of the measure takes; 1 if empty.
    """

    measure: str
    factor: str = ""


@dataclass(frozen=True)
class Kind:
    """One row of the table of resources.

    Args:
        name: Short name, for predictions and bottlenecks.
        rate: Name of its rate, with the unit.
        uses: The measures that spend it.
        amount: Name of the amount spent in an epoch, with the unit; empty if it is not shown.
        amount_words: The same in words.
        words: Its name in a sentence about the bottleneck.
        busy_words: Words for the seconds that it is busy.
        option: Name of the option on the command line.
        metavar: Placeholder of the option's value; empty for a number.
        parse: Parses the option.
        help: Help text of the option.
        remedy: Advice for an invalid number.
        show: Formats the rate.
        is_of_node: Whether every node has its own; otherwise it belongs to the trainer.
        is_required: Whether a job must give it; otherwise it is infinite if unknown.
        may_be_zero: Whether its amount may be zero, in which case no route that spends it can be chosen.
        thrift: Rank as a tie-breaker: of two equally fast plans, the one that spends less of the lowest-ranked kind is
            better; None if the amount does not matter.
    """

    name: str
    rate: str
    uses: tuple[Use, ...]
    amount: str
    amount_words: str
    words: str
    busy_words: str
    option: str
    metavar: str
    parse: Callable[[str], float]
    help: str
    remedy: str
    show: Callable[[float], str]
    is_of_node: bool = True
    is_required: bool = False
    may_be_zero: bool = False
    thrift: int | None = None


def _cores(of: str) -> Callable[[float], str]:
    return lambda count: f"{count:g} {of} cores"


KINDS = (
    Kind(
        name="link",
        rate="link_bytes_per_s",
        uses=(Use("payload_bytes"),),
        amount="link_bytes",
        amount_words="bytes on the link",
        words="the link",
        busy_words="link busy",
        option="--link",
        metavar="BANDWIDTH",
        parse=parse_bandwidth,
        help="Link from storage to trainer, such as 500mbit.",
        remedy="give the link's bytes per second, more than zero (--link 500mbit)",
        show=lambda rate: f"link {format_bandwidth(rate)}",
        is_required=True,
        thrift=1,
    ),
    Kind(
        name="storage",
        rate="storage_cores",
        # Sending takes a core's time too, whatever is sent: raw files as well.
        uses=(Use("storage_s"), Use("payload_bytes", "sending_s_per_byte"), Use(SAMPLES, "sending_s_per_sample")),
        amount="storage_cpu_s",
        amount_words="storage CPU",
        words="the storage node's CPU",
        busy_words="storage cores busy",
        option="--storage-cores",
        metavar="",
        parse=float,
        help="Cores for ops near storage, 0 or more.",
        remedy="give the cores near storage, zero or more (--storage-cores 2)",
        show=_cores("storage"),
        is_required=True,
        may_be_zero=True,
        thrift=0,
    ),
    Kind(
        name="trainer",
        rate="trainer_cores",
        uses=(Use("trainer_s"),),
        amount="trainer_cpu_s",
        amount_words="trainer CPU",
        words="the trainer's CPU",
        busy_words="trainer cores busy",
        option="--trainer-cores",
        metavar="",
        parse=float,
        help="Cores for preprocessing at the trainer.",
        remedy="give the cores for preprocessing at the trainer, more than zero (--trainer-cores 8)",
        show=_cores("trainer"),
        is_of_node=False,
        is_required=True,
    ),
    Kind(
        name="consumer",
        rate="consumer_samples_per_s",
        uses=(Use(SAMPLES),),
        amount="",
        amount_words="",
        words="the training step itself",
        busy_words="consumer busy",
        option="--consumer",
        metavar="RATE",
        parse=parse_rate,
        help="Samples per second that training consumes, such as 1200/s; unlimited if left out.",
        remedy="give the samples per second that training consumes, more than zero (--consumer 1200/s), or leave it "
        "out when unknown",
        show=lambda rate: f"consumer {format_rate(rate)}",
        is_of_node=False,
    ),
    Kind(
        name="reads",
        rate="store_reads_per_s",
        uses=(Use(SAMPLES),),
        amount="",
        amount_words="",
        words="the store's reads",
        busy_words="store busy with reads",
        option="--store-reads",
        metavar="RATE",
        parse=parse_rate,
        help="Files that the store can open in a second, such as 200/s; no limit if left out.",
        remedy="give the reads per second of the store, more than zero (--store-reads 200/s), or leave it out when "
        "unknown",
        show=lambda rate: f"store {format_rate(rate)} reads",
    ),
    Kind(
        name="store",
        rate="store_bytes_per_s",
        uses=(Use("read_bytes"),),
        amount="read_bytes",
        amount_words="bytes read",
        words="the store's bytes per second",
        busy_words="store busy with bytes",
        option="--store-bandwidth",
        metavar="BANDWIDTH",
        parse=parse_bandwidth,
        help="Bytes that the store can read in a second, such as 150MB/s; no limit if left out.",
        remedy="give the bytes per second of the store, more than zero (--store-bandwidth 150MB/s), or leave it out "
        "when unknown",
        show=lambda rate: f"store {format_bandwidth(rate)}",
    ),
    Kind(
        name="relay",
        rate="relay_cores",
        uses=(Use("relay_s"),),
        amount="relay_cpu_s",
        amount_words="relay CPU",
        words="the relays' CPU",
        busy_words="relay cores busy",
        option="--relay-cores",
        metavar="",
        parse=float,
        help="Cores of all relays together, for profiles with routes through relays; no limit if left out.",
        remedy="give the cores of all relays, zero or more (--relay-cores 4), or leave it out when there are none",
        show=_cores("relay"),
        is_of_node=False,
        may_be_zero=True,
    ),
    Kind(
        name="relay-link",
        rate="relay_link_bytes_per_s",
        uses=(Use("relay_bytes"),),
        amount="relay_bytes",
        amount_words="bytes from relays",
        words="the link from the relays",
        busy_words="link from relays busy",
        option="--relay-link",
        metavar="BANDWIDTH",
        parse=parse_bandwidth,
        help="Total bandwidth from all relays to the trainer, such as 2gbit; no limit if left out.",
        remedy="give the bytes per second from all relays, more than zero (--relay-link 2gbit), or leave it out when "
        "there are none",
        show=lambda rate: f"relay link {format_bandwidth(rate)}",
        is_of_node=False,
    ),
)
"""All kinds, in the order in which rates are given, shown and saved. New kinds come last."""

OVERHEADS = ("sending_s_per_byte", "sending_s_per_sample")
"""Overheads: how much of a resource one unit of a measure takes on top of what was measured; see `Use.factor`."""

_BY_RATE = {kind.rate: place for place, kind in enumerate(KINDS)}
_BY_NAME = {kind.name: kind for kind in KINDS}


@dataclass(frozen=True)
class Node:
    """The rates of one storage node, which only the samples of its part use.

    Args:
        name: Name to show.
        rates: Rates by name, of the kinds that a node has.
    """

    name: str
    rates: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        checked = {}
        for rate, value in self.rates.items():
            if rate not in _BY_RATE or not KINDS[_BY_RATE[rate]].is_of_node:
                known = ", ".join(kind.rate for kind in KINDS if kind.is_of_node)
                raise ConfigError(f"node {self.name}: {rate!r} is not a per-node rate; choose from {known}.")
            checked[rate] = _checked(KINDS[_BY_RATE[rate]], value, needed=False)
        object.__setattr__(self, "rates", checked)


@dataclass(frozen=True)
class Resource:
    """One resource of a job: its kind, its amount, and which samples spend it.

    Args:
        kind: The row of the table.
        rate: Amount of the resource, in the kind's unit.
        part: Number of the part whose samples spend it; None if all samples do.
        label: Short name: that of the kind, with the node's name if it belongs to one node.
    """

    kind: Kind
    rate: float
    part: int | None
    label: str


@dataclass(frozen=True, init=False)
class Resources:
    """The resources that an epoch may use.

    Args:
        given: Rates in the order of `KINDS`: link bytes/s, storage cores, trainer cores, consumer samples/s, …
        nodes: The rates of single nodes, one for each part of the data set; empty if all samples share the resources.
        named: Rates by name, such as ``store_reads_per_s=200``, and overheads, such as ``sending_s_per_byte=1e-9``.
    """

    rates: tuple[float, ...]
    nodes: tuple[Node, ...]
    overheads: tuple[float, ...]

    def __init__(self, *given: float, nodes: Sequence[Node] = (), **named: Any) -> None:
        if len(given) > len(KINDS):
            raise ConfigError(f"{len(given)} rates were given for {len(KINDS)} resources.")
        both = {kind.rate: value for kind, value in zip(KINDS, given, strict=False)}
        odd = [name for name in named if name in both or (name not in _BY_RATE and name not in OVERHEADS)]
        if odd:
            known = ", ".join((*_BY_RATE, *OVERHEADS))
            raise ConfigError(f"{odd[0]!r} was given twice or is not a resource; give each of {known} at most once.")
        both |= {name: value for name, value in named.items() if name in _BY_RATE}
        rates = []
        for kind in KINDS:
            missing = not all(kind.rate in node.rates for node in nodes) if nodes and kind.is_of_node else True
            needed = kind.is_required and missing
            if needed and kind.rate not in both:
                raise ConfigError(f"{kind.rate} is missing; {kind.remedy}.")
            rates.append(_checked(kind, both.get(kind.rate, math.inf), needed=needed))
        object.__setattr__(self, "rates", tuple(rates))
        object.__setattr__(self, "nodes", tuple(nodes))
        object.__setattr__(self, "overheads", tuple(_overhead(name, named.get(name, 0.0)) for name in OVERHEADS))

    def __getattr__(self, name: str) -> float:
        if name in _BY_RATE:
            return self.rates[_BY_RATE[name]]
        if name in OVERHEADS:
            return self.overheads[OVERHEADS.index(name)]
        raise AttributeError(name)

    def having(self, **named: float) -> Resources:
        """Return the same resources with some rates or overheads replaced."""
        before = dict(zip((kind.rate for kind in KINDS), self.rates, strict=True))
        before |= zip(OVERHEADS, self.overheads, strict=True)
        return Resources(nodes=self.nodes, **{**before, **named})

    def without_nodes(self) -> Resources:
        """Return the same resources without per-node rates."""
        if not self.nodes:
            return self
        overheads: dict[str, Any] = dict(zip(OVERHEADS, self.overheads, strict=True))
        return Resources(*self.rates, **overheads)

    def rows(self) -> Iterator[Resource]:
        """Yield each resource whose rate is known, in the order of the table, then node by node."""
        for kind, rate in zip(KINDS, self.rates, strict=True):
            if math.isfinite(rate):
                yield Resource(kind, rate, None, kind.name)
            for part, node in enumerate(self.nodes):
                if math.isfinite(node.rates.get(kind.rate, math.inf)):
                    yield Resource(kind, node.rates[kind.rate], part, f"{kind.name} of {node.name}")

    def to_json(self) -> dict[str, Any]:
        """Return the resources as a JSON object; unknown rates are null, or left out if optional."""
        said: dict[str, Any] = {}
        for kind, rate in zip(KINDS, self.rates, strict=True):
            if kind.is_required or math.isfinite(rate) or kind.name == "consumer":
                said[kind.rate] = rate if math.isfinite(rate) else None
        said |= {name: value for name, value in zip(OVERHEADS, self.overheads, strict=True) if value}
        if self.nodes:
            said["nodes"] = [{"name": node.name, "rates": dict(node.rates)} for node in self.nodes]
        return said

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Resources:
        """Return the resources from the result of `to_json`."""
        try:
            values = dict(fields)
            said = values.pop("nodes", [])
            nodes = [Node(str(node["name"]), dict(node["rates"])) for node in said]
        except (TypeError, KeyError, ValueError, AttributeError):
            raise ConfigError(f"expected rates by name, got resources {str(fields)[:80]}.") from None
        odd = [name for name in values if name not in _BY_RATE and name not in OVERHEADS]
        missing = [kind.rate for kind in KINDS if kind.is_required and kind.rate not in values]
        if odd or missing:
            expected = sorted(kind.rate for kind in KINDS if kind.is_required)
            raise ConfigError(f"expected {expected}, got resources {str(fields)[:80]}.")
        return cls(nodes=nodes, **{name: math.inf if value is None else value for name, value in values.items()})

    def __str__(self) -> str:
        shown = [resource.kind.show(resource.rate) for resource in self.rows() if resource.part is None]
        if math.isinf(self.consumer_samples_per_s):
            shown.append(_BY_NAME["consumer"].show(math.inf))
        for part, node in enumerate(self.nodes):
            own = [resource.kind.show(resource.rate) for resource in self.rows() if resource.part == part]
            shown.append(f"{node.name} ({', '.join(own)})")
        return ", ".join(shown)


def kind_named(name: str) -> Kind:
    """Return the kind that a resource's label or a bottleneck names."""
    found = _BY_NAME.get(name.split(" ", 1)[0])
    if found is None:
        raise ConfigError(f"there is no resource {name!r}; choose from {', '.join(_BY_NAME)}.")
    return found


def _checked(kind: Kind, value: object, *, needed: bool) -> float:
    if isinstance(value, bool) or not isinstance(value, Real):
        raise ConfigError(f"{kind.rate} is {value!r}; it must be a number: {kind.remedy}.")
    number = float(value)
    low_enough = number >= 0 if kind.may_be_zero else number > 0
    high_enough = number < math.inf if needed else number <= math.inf
    if not (low_enough and high_enough):  # also catches NaN
        raise ConfigError(f"{kind.rate} is {value}; {kind.remedy}.")
    return number


def _overhead(name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, Real) or not 0 <= float(value) < math.inf:
        raise ConfigError(f"{name} is {value!r}; give CPU seconds, zero or more; 1e-9 means one second per GB.")
    return float(value)
