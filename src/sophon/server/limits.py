"""All limits of a server in one place; each can be set with an option of `sophon serve`."""

from __future__ import annotations

from dataclasses import dataclass, fields

from sophon.codec.codec import MAX_VALUE_BYTES
from sophon.errors import ConfigError
from sophon.link.wire import MAX_SAMPLES
from sophon.pipeline.ops.picture import MAX_PIXELS
from sophon.store.reading import MOST_BYTES, MOST_READS


@dataclass(frozen=True)
class Limits:
    """What one request, one sample, and all of them together may use.

    Args:
        request_samples: Samples that one request may name; more is an error.
        request_bytes: Total size of the files that one request may name; more is an error. The default is far more
            than the 8 MB that a loader asks for at once.
        sample_bytes: Size of one file; a larger file is an error of that sample, before it is read.
        pixels: Pixels of a picture, as its file declares or as an op makes it; a larger picture is sent raw.
        sample_cpu_s: CPU seconds for one sample; one that needs more is sent raw. The default is a thousand times what
            a photo needs. Only child processes enforce it: a thread cannot be stopped.
        child_bytes: Memory of a child process; a sample that needs more is sent raw. The default is enough for a
            picture with the largest number of pixels and for what ops make of it.
        requests: Requests that are answered at the same time; further requests are told to try again. Flight uses a
            thread for each.
        in_flight_bytes: Size of all samples that were read but not sent yet. Reads beyond this limit wait; a payload
            that would exceed it is not made, and the file is sent instead. Each request may hold a mebibyte beyond the
            limit. With several tenants, one may use at most half of it.
        reads: Concurrent reads of one data set. Fewer are used if the store is quick (`store.reading`).
        read_bytes: Size of the samples of one data set that are being read, beyond which no further read begins.
    """

    request_samples: int = MAX_SAMPLES
    request_bytes: int = 16 << 30
    sample_bytes: int = MAX_VALUE_BYTES
    pixels: int = MAX_PIXELS
    sample_cpu_s: float = 10.0
    child_bytes: int = 4 << 30
    requests: int = 256
    in_flight_bytes: int = 1 << 30
    reads: int = MOST_READS
    read_bytes: int = MOST_BYTES

    def __post_init__(self) -> None:
        for field in fields(self):
            if not getattr(self, field.name) > 0:
                raise ConfigError(f"{field.name}: expected a number above 0, got {getattr(self, field.name)!r}")
        if self.request_samples > MAX_SAMPLES:
            raise ConfigError(f"request_samples: expected at most {MAX_SAMPLES:,}, got {self.request_samples:,}")
        if self.sample_bytes > MAX_VALUE_BYTES:
            raise ConfigError(f"sample_bytes: expected at most {MAX_VALUE_BYTES:,}, got {self.sample_bytes:,}")
