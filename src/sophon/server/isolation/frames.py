"""The messages between a server and its child processes, over a pair of sockets.

Messages are not pickles. A child runs decoders and plug-in ops on untrusted bytes, so it only sends back bytes and
numbers, with lengths that are checked before anything is allocated.

A frame, little-endian::

    0    kind    uint8
    1    note    uint32  length of a short note, at most MAX_NOTE_BYTES
    5    data    uint64  length of the data
    13   the note, then the data
"""

from __future__ import annotations

import math
import socket
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum

from sophon.codec.codec import MAX_VALUE_BYTES, Payload
from sophon.link.wire import two_of

_HEAD = struct.Struct("<BIQ")
MAKE = struct.Struct("<32s3Q")  # fingerprint of the pipeline, seed, epoch, sample; then the cut as text
_COSTS = struct.Struct("<d2I")  # CPU seconds in total, height and width of the picture; then the seconds of each op
MAX_NOTE_BYTES = 1 << 20
MAX_DATA_BYTES = MAX_VALUE_BYTES + (1 << 20)
_WORTH_JOINING_BYTES = 1 << 12
_DROPPED_BYTES = 1 << 20  # read at a time when data that does not fit is discarded
_MAX_SIDE = (1 << 31) - 1  # of a picture: the largest number that fits into a reply


class Kind(IntEnum):
    """What a frame is for."""

    PIPELINE = 1  # to a child: the note is a fingerprint, the data is the spec to remember under it
    MAKE = 2  # to a child: the data is a file
    PROBE = 3  # to a child: the note is the fingerprint of a pipeline
    PAYLOAD = 4  # from a child: the note holds its cost
    FAILED = 5  # from a child: an op or codec raised; the note holds its cost
    DIGEST = 6  # from a child: the data is the digest of one more op
    END = 7  # from a child: there are no more digests
    READY = 8  # from a child: it has started
    CONTINUE = 9  # to a child: like MAKE, but the data is a window of a file
    WHOLE = 10  # from a child: the sample needs its whole file; the note holds the cost of finding out


@dataclass(frozen=True)
class Costs:
    """What a sample cost in a child.

    Args:
        cpu_s: CPU seconds, including those for receiving the file.
        size: Size of the decoded value along each axis; for a picture, height and width.
        op_s: CPU seconds of each op that ran.
    """

    cpu_s: float
    size: tuple[int, ...] = (0, 0)
    op_s: tuple[float, ...] = ()

    def pack(self) -> bytes:
        """Return the costs as the note of a frame."""
        return _COSTS.pack(self.cpu_s, *two_of(self.size)) + struct.pack(f"<{len(self.op_s)}d", *self.op_s)

    @classmethod
    def parse(cls, note: bytes, most_ops: int, most_s: float = math.inf) -> Costs:
        """Parse a note; numbers that make no sense become 0, and times are limited to `most_s`.

        A malicious file may have taken over the child, so its numbers are not trusted: the server pauses for as long as
        the child claims to have worked, and passes the size on in 32 bits.
        """
        count, rest = divmod(len(note) - _COSTS.size, 8)
        if not 0 <= count <= most_ops or rest:
            raise Broken(f"unexpected note of {len(note)} bytes")
        cpu_s, height, width = _COSTS.unpack_from(note)
        op_s = struct.unpack_from(f"<{count}d", note, _COSTS.size)
        size = (height, width) if max(height, width) <= _MAX_SIDE else (0, 0)
        return cls(_seconds(cpu_s, most_s), size, tuple(_seconds(value, most_s) for value in op_s))


def _seconds(value: float, most_s: float) -> float:
    return min(value, most_s) if math.isfinite(value) and value > 0 else 0.0


class Broken(Exception):  # noqa: N818 - a state of the line, and never shown to a user
    """The line was closed, fell silent or carried something invalid."""


def send(line: socket.socket, kind: Kind, note: bytes = b"", data: Payload = b"") -> None:
    """Send one frame."""
    parts: list[Payload] = [_HEAD.pack(kind, len(note), len(data)) + note, data]
    if len(data) < _WORTH_JOINING_BYTES:
        parts = [b"".join(parts)]
    try:
        _send_all(line, parts)
    except OSError as error:
        raise Broken(str(error)) from error


def _send_all(line: socket.socket, parts: Sequence[Payload]) -> None:
    left = [memoryview(part) for part in parts if len(part)]
    while left:
        sent = line.sendmsg(left)
        while left and sent >= len(left[0]):
            sent -= len(left.pop(0))
        if sent:
            left[0] = left[0][sent:]


def receive(line: socket.socket, claim: Callable[[int], bool] | None = None) -> tuple[Kind, bytes, bytes | None]:
    """Return the next frame: its kind, note and data; None for a payload that `claim` rejects for lack of space."""
    kind, note_bytes, data_bytes = _HEAD.unpack(_exactly(line, _HEAD.size))
    if note_bytes > MAX_NOTE_BYTES or data_bytes > MAX_DATA_BYTES:
        raise Broken(f"frame too large: a note of {note_bytes:,} bytes and data of {data_bytes:,} bytes")
    try:
        kind = Kind(kind)
    except ValueError as error:
        raise Broken(str(error)) from error
    note = _exactly(line, note_bytes)
    if claim is None or kind is not Kind.PAYLOAD or claim(data_bytes):
        return kind, note, _exactly(line, data_bytes)
    for start in range(0, data_bytes, _DROPPED_BYTES):
        _exactly(line, min(_DROPPED_BYTES, data_bytes - start))
    return kind, note, None


def _exactly(line: socket.socket, count: int) -> bytes:
    parts: list[bytes] = []
    while count:
        try:
            part = line.recv(count, socket.MSG_WAITALL)
        except OSError as error:  # including a line that was silent for too long
            raise Broken(str(error)) from error
        if not part:
            raise Broken("the other side is gone")
        parts.append(part)
        count -= len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def set_timeout(line: socket.socket, seconds: float) -> None:
    """Limit each wait on a line that stays blocking, so that one system call still receives a whole payload."""
    whole = int(seconds)
    for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
        line.setsockopt(socket.SOL_SOCKET, option, struct.pack("@ll", whole, int((seconds - whole) * 1e6)))
