"""The messages between a trainer and a storage node.

A request is JSON, since it is small and anyone can read it. A reply is a stream of Arrow record batches, one row per
sample, so that payloads are copied no more than necessary. Neither carries code: a pipeline travels as its JSON spec.

Request (the ticket of a Flight DoGet)::

    {"protocol": 2, "dataset": "train", "dataset_fingerprint": "…" | "", "pipeline": {…}, "seed": 0, "epoch": 3,
     "samples": [17, 4, …], "cuts": ["0:raw", "2:webp"], "cut_of": [0, 1, …], "in_order": true, "patience_s": 5.0,
     "columns": ["id"], "fields": ["seg.png"], "closed": true, "columns_digest": "…",
     "versions": "…"}

The payload of a sample is that of its first field, the one that the pipeline is for. If further `fields` are requested,
it is a bundle (`sophon.bundle`): a payload for each field, one after another, each in a codec for its kind.

Versions: a node announces at opening which versions of this protocol it speaks, and a trainer uses the highest that
both know (`agreed`), so nodes can be upgraded one by one, before or after trainers. A release speaks its own version
and the one before. Version 2 brought `fields` and `closed`, which says that record batches come in envelopes
(`sophon.link.closed`); a trainer requests envelopes unless its user trusts the node.

If a node holds a part of a data set, a sample is a pair ``[17, 1003]``: its index on that node, and its index in the
whole data set, on which random ops depend. A node whose release does not know pairs rejects them.

A relay announces at opening that it is one (``relay`` in its answer). A request to it names routes instead of cuts:
``"cuts": ["0:window/2:raw"]``, the cut to request from its node and the cut to make from it. Its replies then have
three more columns: ``first``, the cut that the node actually made, ``relay_s``, the CPU seconds that the relay spent,
and ``first_bytes``, the bytes that came from the node; ``cut`` is the cut with which the sample reaches the trainer,
which is the first one if the relay did nothing. In the request, ``node_versions`` is for the node what ``versions`` is
for the relay.

Reply columns: ``position`` in the request, ``cut`` actually made, ``payload``, ``label`` (null if the data set has
none), ``cpu_s`` spent on ops and codec near storage, ``error`` (null, or JSON with type, message and traceback),
``columns`` (null, or JSON of the requested columns), ``reason`` for a smaller cut than requested (null if there is
none), and what a trainer needs to learn costs: ``op_s`` (CPU seconds of each op that ran), ``raw_bytes`` of the file,
``height`` and ``width`` of the picture (0 if unknown).

The sizes of all files (the answer to the Flight action ``sizes``, whose body is ``{"dataset": "train"}``) are unsigned
32-bit integers, little-endian, one per sample, in parts of a mebibyte; for a file of 4 GiB or more, the number is the
largest that fits.

Each record batch comes with JSON about its stream so far (`StreamClock`): ``computing_s`` says how long the stream had
nothing to send because it waited for ops, ``reading_s`` how long because it waited for the store. That distinguishes a
slow node and a slow disk from a slow link. ``reads``, ``read_bytes`` and ``read_s`` say how many samples were read, and
how long the reads took, with the times of concurrent reads added up. A batch without rows means that the node is still
working.
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from sophon import errors
from sophon.bundle import MOST_PARTS
from sophon.codec.codec import Payload
from sophon.codec.cut import RAW, Cut
from sophon.codec.route import Route
from sophon.errors import ConfigError, Error, ProtocolError, printable
from sophon.link.closed import Envelope
from sophon.link.telling import told_text, told_traceback
from sophon.pipeline import Key
from sophon.store.pages.columns import plain_array

PROTOCOL = 2
OLDEST_PROTOCOL = 1
PROTOCOLS = tuple(range(OLDEST_PROTOCOL, PROTOCOL + 1))
"""The versions that this release speaks."""
MAX_REQUEST_BYTES = 1 << 19  # twice the largest request; always read in less than 50 ms
MAX_SAMPLES = 8192  # in one request
_WITH_FIELDS = 2
_OLD_NODE = "the storage node's release does not know fields; upgrade it"
_MAX_CUTS = 256
_MOST_VERSIONS = 64
_MOST_SIZE = (1 << 32) - 1
_SIZES_PART_BYTES = 1 << 20
_MOST_CLOCK = 1 << 62  # bound of a stream's sums; no stream lasts that long or reads that much
_MAX_TRACEBACK = 8000  # characters of a traceback that are sent: its end matters most

_NEVER_NULL = ("position", "cut", "payload", "cpu_s", "op_s", "raw_bytes", "height", "width")

_OF_RELAYS = ("first", "relay_s", "first_bytes")

REPLY_SCHEMA = pa.schema(
    [
        ("position", pa.int32()),
        ("cut", pa.string()),
        ("payload", pa.binary()),
        ("label", pa.int64()),
        ("cpu_s", pa.float32()),
        ("error", pa.string()),
        ("columns", pa.string()),
        ("reason", pa.string()),
        ("op_s", pa.list_(pa.float32())),
        ("raw_bytes", pa.int64()),
        ("height", pa.int32()),
        ("width", pa.int32()),
    ]
)
_POSITION, _PAYLOAD, _LABEL = (REPLY_SCHEMA.names.index(name) for name in ("position", "payload", "label"))
_BARE = [number for number in range(len(REPLY_SCHEMA)) if number not in (_POSITION, _PAYLOAD, _LABEL)]
_COUNTS_KEPT = 128  # numbers of samples whose bare columns are kept; a request of a loader has at most 64

RELAYED_SCHEMA = pa.schema(
    [*REPLY_SCHEMA, ("first", pa.string()), ("relay_s", pa.float32()), ("first_bytes", pa.int64())]
)
"""Columns of replies to a request with routes through a relay."""


def agreed(said: object) -> int:
    """Return the protocol version to use with a node that speaks the given ones; an early release announces none.

    Raises:
        ProtocolError: There is no version that both sides speak.
    """
    theirs = said if isinstance(said, list) else [1]
    both = [version for version in PROTOCOLS if version in theirs[:_MOST_VERSIONS]]
    if not both:
        raise ProtocolError(
            f"the node speaks protocol {printable(', '.join(map(str, theirs[:4]))[:40])}, but this release speaks "
            f"{' and '.join(map(str, PROTOCOLS))}; upgrade the older of the two"
        )
    return max(both)


@dataclass(frozen=True)
class Request:
    """Which samples of which data set, each with its own cut.

    Args:
        dataset: Name of the data set.
        pipeline: JSON spec of the pipeline, or of as many of its first ops as any cut needs.
        seed: Seed of the run.
        epoch: Number of the epoch.
        samples: Indexes into the data set on the node.
        cuts: One cut per sample.
        dataset_fingerprint: Fingerprint of the data set that the trainer expects; empty to accept any.
        in_order: Whether replies come in the order of the request instead of as they are finished.
        patience_s: How long a sample may wait for a free core before it is sent raw.
        columns: Names of further columns to send; "id" is the sample's id.
        keys: The numbers by which random ops identify the samples: their indexes in the whole data set, or larger
            numbers for a sample that is repeated in an epoch; empty if they are the same as `samples`.
        fields: Names of the fields to send besides the first.
        protocol: Version of the protocol that both sides speak.
        is_closed: Whether record batches come in envelopes, which the trainer checks first (`closed`).
        columns_digest: Digest of the further columns that the trainer expects; empty to accept any values.
        versions: Digest of the node's versions when its bits were compared; empty to accept any.
        firsts: What a relay asks its node for, one cut per sample; empty if the request does not go to a relay.
        node_versions: Like `versions`, for the node behind the relay.
    """

    dataset: str
    pipeline: dict[str, Any]
    seed: int
    epoch: int
    samples: tuple[int, ...]
    cuts: tuple[Cut, ...]
    dataset_fingerprint: str = ""
    in_order: bool = False
    patience_s: float = 5.0
    columns: tuple[str, ...] = ()
    keys: tuple[int, ...] = ()
    fields: tuple[str, ...] = ()
    protocol: int = PROTOCOL
    is_closed: bool = False
    columns_digest: str = ""
    versions: str = ""
    firsts: tuple[Cut, ...] = ()
    node_versions: str = ""

    @property
    def schema(self) -> pa.Schema:
        """The columns of the replies to this request."""
        return RELAYED_SCHEMA if self.firsts else REPLY_SCHEMA

    def key(self, position: int) -> Key:
        """Return what the random ops of a sample depend on."""
        return Key(self.seed, self.epoch, self.keys[position] if self.keys else self.samples[position])

    def to_bytes(self) -> bytes:
        """Return the request in the form in which it is sent."""
        ways = list(zip(self.firsts, self.cuts, strict=True)) if self.firsts else [(cut,) for cut in self.cuts]
        table = list(dict.fromkeys(ways))
        number = {way: i for i, way in enumerate(table)}
        message = {
            "protocol": self.protocol,
            "dataset": self.dataset,
            "dataset_fingerprint": self.dataset_fingerprint,
            "pipeline": self.pipeline,
            "seed": self.seed,
            "epoch": self.epoch,
            "samples": list(zip(self.samples, self.keys, strict=True)) if self.keys else self.samples,
            "cuts": ["/".join(map(str, way)) for way in table],
            "cut_of": [number[way] for way in ways],
            "in_order": self.in_order,
            "patience_s": self.patience_s,
            "columns": self.columns,
        }
        if self.protocol >= _WITH_FIELDS:
            message |= {"fields": self.fields, "closed": self.is_closed}
            message |= {"columns_digest": self.columns_digest, "versions": self.versions}
        elif self.fields:
            raise ConfigError(f"fields: {self.fields[0]!r} cannot be requested: {_OLD_NODE}")
        if self.node_versions:
            message["node_versions"] = self.node_versions
        return json.dumps(message, separators=(",", ":")).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> Request:
        """Parse a request that was received; raise `ProtocolError` for anything else."""
        message = parse_json(data)
        protocol = message.get("protocol")
        if isinstance(protocol, bool) or protocol not in PROTOCOLS:
            raise ProtocolError(
                f"expected protocol {' or '.join(map(str, PROTOCOLS))}, got {protocol!r:.40}; the releases of the "
                "trainer and the storage node are too far apart: upgrade the older one"
            )
        samples, keys = _samples(message)
        table = _strings(message, "cuts", _MAX_CUTS)
        cut_of = _integers(message, "cut_of", MAX_SAMPLES)
        if len(cut_of) != len(samples) or any(number >= len(table) for number in cut_of):
            raise ProtocolError(f"expected a cut for each of {len(samples)} samples, got {len(cut_of)}")
        if not isinstance(message.get("pipeline"), dict):
            raise ProtocolError("expected a pipeline spec")
        try:
            ways = [_way(text) for text in table]
        except ConfigError as error:
            raise ProtocolError(str(error)) from error
        return cls(
            dataset=_string(message, "dataset"),
            dataset_fingerprint=_string(message, "dataset_fingerprint"),
            pipeline=message["pipeline"],
            seed=_integer(message, "seed"),
            epoch=_integer(message, "epoch"),
            samples=samples,
            cuts=tuple(ways[number][-1] for number in cut_of),
            in_order=message.get("in_order") is True,
            patience_s=_seconds(message, "patience_s"),
            columns=_strings(message, "columns", 64),
            keys=keys,
            fields=_strings(message, "fields", MOST_PARTS) if protocol >= _WITH_FIELDS else (),
            protocol=protocol,
            is_closed=protocol >= _WITH_FIELDS and message.get("closed") is True,
            columns_digest=_string(message, "columns_digest") if "columns_digest" in message else "",
            versions=_string(message, "versions") if "versions" in message else "",
            firsts=tuple(ways[number][0] for number in cut_of) if any(len(way) > 1 for way in ways) else (),
            node_versions=_string(message, "node_versions") if "node_versions" in message else "",
        )


def _way(text: str) -> tuple[Cut, ...]:
    """Return the cut, or the two cuts, of a request's table."""
    found = tuple(Cut.parse(part) for part in text.split("/"))
    return found if len(found) == 1 else Route(found).cuts


@dataclass(slots=True)
class Reply:
    """The reply for one sample."""

    position: int
    cut: Cut = RAW
    payload: Payload = b""
    label: int | None = None
    cpu_s: float = 0.0
    error: Error | None = None
    columns: dict[str, Any] = field(default_factory=dict)
    reason: str | None = None
    op_s: tuple[float, ...] = ()
    raw_bytes: int = 0
    size: tuple[int, ...] = (0, 0)  # by axis; for values with more than two, the decoder reports the size
    first: Cut | None = None  # from a relay: the cut that its node actually made
    relay_s: float = 0.0
    first_bytes: int = 0
    is_cached: bool = False  # not on the wire: whether the trainer already had the sample


WHOLE = "whole"
"""Reason of a reply with the raw file: the pass needs all of it, so that the requested window is the file."""


@dataclass
class StreamClock:
    """How a stream has spent its time near storage so far.

    Args:
        computing_s: How long there was nothing to send because the stream waited for ops.
        reading_s: How long there was nothing to send because the stream waited for the store.
        reads: Number of samples that were read.
        read_bytes: Bytes of these samples.
        read_s: Total seconds of the reads; the times of concurrent reads are added up.
    """

    computing_s: float = 0.0
    reading_s: float = 0.0
    reads: int = 0
    read_bytes: int = 0
    read_s: float = 0.0

    def to_bytes(self) -> bytes:
        """Return the clock in the form in which it is sent."""
        return json.dumps(vars(self)).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> StreamClock:
        """Parse a received clock; a node of an earlier release sends less."""
        message = parse_json(data)
        made = cls()
        for name, default in vars(made).items():
            value = message.get(name, default)
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < _MOST_CLOCK:
                raise ProtocolError(f"the clock of a record batch is invalid: {name} is {value!r:.80}")
            setattr(made, name, type(default)(value))
        return made

    def __add__(self, other: StreamClock) -> StreamClock:
        return StreamClock(*(mine + theirs for mine, theirs in zip(_values(self), _values(other), strict=True)))


def _values(clock: StreamClock) -> tuple[Any, ...]:
    return tuple(vars(clock).values())


def batch_of(
    replies: Sequence[Reply], envelope: Envelope | None = None, schema: pa.Schema = REPLY_SCHEMA
) -> pa.RecordBatch:
    """Return replies as one record batch; their payloads are put into `envelope`, if it is given."""
    more = []
    if schema is RELAYED_SCHEMA:
        more = [
            pa.array([str(RAW if r.first is None else r.first) for r in replies], pa.string()),
            pa.array([r.relay_s for r in replies], pa.float32()),
            pa.array([r.first_bytes for r in replies], pa.int64()),
        ]
    return pa.record_batch(
        [
            pa.array([r.position for r in replies], pa.int32()),
            pa.array([str(r.cut) for r in replies], pa.string()),
            _payloads([r.payload for r in replies], envelope),
            pa.array([r.label for r in replies], pa.int64()),
            pa.array([r.cpu_s for r in replies], pa.float32()),
            pa.array([None if r.error is None else error_to_json(r.error) for r in replies], pa.string()),
            pa.array([json.dumps(r.columns) if r.columns else None for r in replies], pa.string()),
            pa.array([r.reason for r in replies], pa.string()),
            pa.array([r.op_s for r in replies], pa.list_(pa.float32())),
            pa.array([r.raw_bytes for r in replies], pa.int64()),
            pa.array([two_of(r.size)[0] for r in replies], pa.int32()),
            pa.array([two_of(r.size)[1] for r in replies], pa.int32()),
            *more,
        ],
        schema=schema,
    )


def two_of(size: tuple[int, ...]) -> tuple[int, int]:
    """Return a size as two numbers: height and width, or a length and 0; (0, 0) for values with more axes."""
    height, width = (*size, 0, 0)[:2] if len(size) <= 2 else (0, 0)
    return height, width


def _payloads(parts: list[Payload], envelope: Envelope | None) -> pa.Array:
    """Return payloads as one column, with one copy; pyarrow's builder would grow its buffer repeatedly."""
    offsets = np.zeros(len(parts) + 1, np.int32)
    np.cumsum([len(part) for part in parts], out=offsets[1:])
    if envelope is None:
        data = pa.py_buffer(b"".join(parts))
    else:
        data = envelope.payloads
        for part, start, end in zip(parts, offsets[:-1], offsets[1:], strict=True):
            envelope.memory[start:end] = part
    return pa.Array.from_buffers(pa.binary(), len(parts), [None, pa.py_buffer(offsets), data])


def raw_batch(
    positions: NDArray[np.int32], ends: NDArray[np.int32], data: pa.Buffer, labels: NDArray[np.int64] | None
) -> pa.RecordBatch:
    """Return raw samples as one record batch, without a copy or a Python object per sample.

    Args:
        positions: Positions of the samples in the request.
        ends: End of each sample in the data; samples are contiguous, starting at 0.
        data: Buffer that begins with the bytes of all samples.
        labels: Labels of the samples, if they have any.
    """
    count = len(positions)
    offsets = np.zeros(count + 1, np.int32)
    offsets[1:] = ends
    held = data.slice(0, int(offsets[-1]))
    payload = pa.Array.from_buffers(pa.binary(), count, [None, pa.py_buffer(offsets), held])
    columns = list(_bare(count))
    columns[_POSITION], columns[_PAYLOAD] = plain_array(pa.int32(), positions), payload
    if labels is not None:
        columns[_LABEL] = plain_array(pa.int64(), labels)
    return pa.RecordBatch.from_arrays(columns, schema=REPLY_SCHEMA)


@functools.lru_cache(_COUNTS_KEPT)
def _bare(count: int) -> tuple[pa.Array, ...]:
    """Return the columns for a number of raw samples that have nothing else to report."""
    if count < _COUNTS_KEPT:
        return tuple(column.slice(0, count) for column in _bare(_COUNTS_KEPT))
    return tuple(batch_of([Reply(0)] * count).columns)


def replies_of(batch: pa.RecordBatch, request: Request) -> Iterator[Reply]:
    """Return the replies in a record batch, checked against the request; payloads are views of its memory.

    The other side is not trusted: offsets, strings and nulls are validated before anything is read, a position must be
    one that was requested, and a cut must be the requested one or raw.
    """
    if batch.schema != request.schema:
        raise ProtocolError(f"expected replies with columns {request.schema.names}, got {batch.schema.names}")
    if batch.num_rows > len(request.samples):  # before anything is made of them
        raise ProtocolError(f"got {batch.num_rows:,} replies to a request for {len(request.samples):,} samples")
    try:
        batch.validate(full=True)
    except pa.ArrowInvalid as error:
        raise ProtocolError(f"the record batch is damaged: {error}") from error
    never_null = (*_NEVER_NULL, *_OF_RELAYS) if request.firsts else _NEVER_NULL
    if any(batch.column(name).null_count for name in never_null):
        raise ProtocolError(f"expected {', '.join(never_null)} in every reply")
    positions = batch.column("position").to_numpy()
    if len(positions) and not (positions.min() >= 0 and positions.max() < len(request.samples)):
        wrong = positions[(positions < 0) | (positions >= len(request.samples))][0]
        raise ProtocolError(f"got a reply to position {wrong} of a request for {len(request.samples)} samples")
    views = _views(batch.column("payload"))
    is_bare = not request.columns and not request.firsts and _is_bare(batch)
    yield from _bare_replies(batch, views) if is_bare else _full_replies(batch, views, request)


def _is_bare(batch: pa.RecordBatch) -> bool:
    """Return whether all samples were sent raw and nothing else is reported about them."""
    count = batch.num_rows
    if not 0 < count <= MAX_SAMPLES:
        return False
    bare = _bare(count)
    return all(batch.column(number).equals(bare[number]) for number in _BARE)


def _bare_replies(batch: pa.RecordBatch, views: Iterator[memoryview]) -> Iterator[Reply]:
    positions, labels = batch.column("position").to_pylist(), batch.column("label").to_pylist()
    for position, label, payload in zip(positions, labels, views, strict=True):
        yield Reply(position, RAW, payload, label)


def _full_replies(batch: pa.RecordBatch, views: Iterator[memoryview], request: Request) -> Iterator[Reply]:
    found = {name: batch.column(name).to_pylist() for name in request.schema.names if name != "payload"}
    positions, cuts, problems, columns = (found[name] for name in ("position", "cut", "error", "columns"))
    for row, payload in enumerate(views):
        position, problem = positions[row], problems[row]
        cut = _parse_cut(cuts[row])
        first = _parse_cut(found["first"][row]) if request.firsts else None
        if problem is None and not _is_answer(request, position, first, cut):
            raise ProtocolError(f"asked for {request.cuts[position]} or less, got {cut}")
        op_s = found["op_s"][row]
        if len(op_s) > len(request.pipeline.get("ops", ())):
            raise ProtocolError(f"got the times of {len(op_s):,} ops, more than the pipeline has")
        yield Reply(
            position=position,
            cut=cut,
            payload=payload,
            label=found["label"][row],
            cpu_s=_number(found["cpu_s"][row]),
            error=None if problem is None else error_from_json(problem),
            columns=_columns(columns[row], request, is_whole=problem is None),
            reason=found["reason"][row],
            op_s=tuple(map(_number, op_s)),
            raw_bytes=max(found["raw_bytes"][row], 0),
            size=(max(found["height"][row], 0), max(found["width"][row], 0)),
            first=first,
            relay_s=0.0 if first is None else _number(found["relay_s"][row]),
            first_bytes=0 if first is None else max(found["first_bytes"][row], 0),
        )


def _is_answer(request: Request, position: int, first: Cut | None, cut: Cut) -> bool:
    """Return whether a cut is the requested one or a smaller one; for a relay, the same holds for its node's cut."""
    if first is None:
        return cut in (request.cuts[position], RAW)
    return first in (request.firsts[position], RAW) and cut in (request.cuts[position], first)


def _columns(text: str | None, request: Request, is_whole: bool) -> dict[str, Any]:
    """Return the columns of a sample: exactly those that were requested, unless the sample failed."""
    found = {} if text is None else parse_json(text.encode())
    if is_whole and found.keys() != set(request.columns):
        raise ProtocolError(f"asked for the columns {list(request.columns)!r:.80}, got {list(found)!r:.80}")
    return {name: found[name] for name in request.columns if name in found}


def _number(seconds: float | None) -> float:
    """Return seconds that are safe to add up, whatever was sent."""
    return seconds if seconds is not None and 0 <= seconds < math.inf else 0.0


def _views(column: pa.Array) -> Iterator[memoryview]:
    _, offsets_buffer, data_buffer = column.buffers()
    if not len(column):  # then there may be no offsets at all
        return
    # Validation has made sure that there are this many; bytes of another buffer may follow.
    offsets = np.frombuffer(offsets_buffer, np.int32, column.offset + len(column) + 1)[column.offset :]
    # Arrow's buffers export signed bytes, so a payload would not compare equal to its own bytes.
    view = memoryview(b"") if data_buffer is None else memoryview(data_buffer).cast("B")
    if len(offsets) and not (offsets[0] >= 0 and (np.diff(offsets) >= 0).all() and offsets[-1] <= len(view)):
        raise ProtocolError("expected payloads inside their buffer")
    for start, end in zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True):
        yield view[start:end]


def _parse_cut(text: str | None) -> Cut:
    try:
        return Cut.parse(text or "")
    except ConfigError as error:
        raise ProtocolError(f"the reply has an unknown cut: {error}") from error


def error_to_json(error: Error) -> str:
    """Return an error in a form that the other side can raise, with only what it may know (`telling`)."""
    message = {"type": type(error).__name__, "message": told_text(error), "traceback": told_traceback(error)}
    return json.dumps(message)


def error_from_json(text: str) -> Error:
    """Return the error that the other side raised, with the same type if it is a sophon error."""
    message = parse_json(text.encode())
    kind = getattr(errors, str(message.get("type")), None)
    if not (isinstance(kind, type) and issubclass(kind, Error)):
        kind = errors.TransportError
    error: Error = kind(errors.printable(f"{message.get('message')}"))
    there = message.get("traceback")
    if not isinstance(there, str) or not there:
        return error
    return errors.with_remote_traceback(error, errors.printable(there[-_MAX_TRACEBACK:]))


def parse_json(data: bytes, max_bytes: int = MAX_REQUEST_BYTES) -> dict[str, Any]:
    """Return a JSON object of bounded size; raise `ProtocolError` for anything else."""
    if len(data) > max_bytes:
        raise ProtocolError(f"expected a message of at most {max_bytes:,} bytes, got {len(data):,}")
    try:
        message = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ProtocolError(f"expected a JSON object, got something else: {error}") from error
    if not isinstance(message, dict):
        raise ProtocolError("expected a JSON object, got a different JSON value")
    return message


def _integer(message: dict[str, Any], name: str) -> int:
    value = message.get(name)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 1 << 64:
        raise ProtocolError(f"{name}: expected an integer in 0 … 2**64 - 1, got {value!r:.80}")
    return value


def _integers(message: dict[str, Any], name: str, most: int) -> tuple[int, ...]:
    values = message.get(name)
    if not isinstance(values, list) or len(values) > most:
        found = f"{len(values):,}" if isinstance(values, list) else repr(values)[:40]
        raise ProtocolError(f"{name}: expected a list of at most {most:,} integers, got {found}")
    for value in values:
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 1 << 63:
            raise ProtocolError(f"{name}: expected integers in 0 … 2**63 - 1, got {value!r:.80}")
    return tuple(values)


def _samples(message: dict[str, Any]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the indexes of samples, and their indexes in the whole data set if these are given too."""
    values = message.get("samples")
    if not isinstance(values, list) or not values or not isinstance(values[0], list):
        return _integers(message, "samples", MAX_SAMPLES), ()
    if len(values) > MAX_SAMPLES or not all(isinstance(pair, list) and len(pair) == 2 for pair in values):
        raise ProtocolError(f"samples: expected at most {MAX_SAMPLES:,} integers or pairs of integers")
    own, keys = ({"samples": [pair[side] for pair in values]} for side in (0, 1))
    return _integers(own, "samples", MAX_SAMPLES), _integers(keys, "samples", MAX_SAMPLES)


def _string(message: dict[str, Any], name: str) -> str:
    value = message.get(name)
    if not isinstance(value, str) or len(value) > 1024:
        raise ProtocolError(f"{name}: expected a short string, got {value!r:.80}")
    return value


def _strings(message: dict[str, Any], name: str, most: int) -> tuple[str, ...]:
    values = message.get(name)
    if (
        not isinstance(values, list)
        or len(values) > most
        or not all(isinstance(v, str) and len(v) < 1024 for v in values)
    ):
        raise ProtocolError(f"{name}: expected a list of at most {most} short strings")
    return tuple(values)


def _seconds(message: dict[str, Any], name: str) -> float:
    value = message.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= 1e6:
        raise ProtocolError(f"{name}: expected seconds in 0 … 1,000,000, got {value!r:.80}")
    return float(value)


def sizes_to_bytes(sizes: NDArray[np.int64]) -> Iterator[bytes]:
    """Yield the sizes of files in the form in which they are sent."""
    rows = _SIZES_PART_BYTES // 4
    for start in range(0, len(sizes), rows):  # part by part: a slow reader holds no more than one of them
        yield np.minimum(sizes[start : start + rows], _MOST_SIZE).astype("<u4").tobytes()


def sizes_from_bytes(parts: Iterable[bytes], samples: int) -> NDArray[np.int64]:
    """Return the received sizes of a number of files; raise `ProtocolError` for anything else."""
    data = bytearray()
    for part in parts:
        data += part
        if len(data) > 4 * samples:
            break
    if len(data) != 4 * samples:
        raise ProtocolError(f"expected the sizes of {samples:,} files in {4 * samples:,} bytes, got {len(data):,}")
    return np.frombuffer(data, "<u4").astype(np.int64)
