"""Every bound that a server keeps to, in one place; each can be set with an option of `sophon serve`."""

from __future__ import annotations

from dataclasses import dataclass, fields

from sophon.codec.codec import MAX_VALUE_BYTES
from sophon.codec.wire import MAX_SAMPLES
from sophon.errors import ConfigError
from sophon.pipeline.ops.picture import MAX_PIXELS


@dataclass(frozen=True)
class Limits:
    """What one request, one sample and all of them together may take.

    Args:
        request_samples: Samples that one request may name; more is an error.
        request_bytes: Bytes of the files that one request may name; more is an error. The default is far beyond what a
            loader asks for at once, 8 MB.
        sample_bytes: Bytes of one file; a larger one is an error of that sample, before it is read.
        pixels: Of a picture, declared by its file or made by an op; one with more is sent as it is.
        sample_cpu_s: CPU seconds for one sample; what needs more is sent as it is. The default is a thousand times
            what a photo needs. Kept by worker processes only: a thread cannot be stopped.
        worker_bytes: Memory of a worker process; a sample that needs more is sent as it is. The default holds a
            picture with the largest number of pixels and what ops make of it.
        requests: Answered at once; one more is told to try again. Flight gives each of them a thread.
        in_flight_bytes: Of all samples that were read and are not sent yet. Beyond it a request works on one sample at
            a time, so it is exceeded by at most a sample and a record batch for each request.
    """

    request_samples: int = MAX_SAMPLES
    request_bytes: int = 16 << 30
    sample_bytes: int = MAX_VALUE_BYTES
    pixels: int = MAX_PIXELS
    sample_cpu_s: float = 10.0
    worker_bytes: int = 4 << 30
    requests: int = 256
    in_flight_bytes: int = 1 << 30

    def __post_init__(self) -> None:
        for field in fields(self):
            if not getattr(self, field.name) > 0:
                raise ConfigError(f"{field.name}: expected a number above 0, got {getattr(self, field.name)!r}")
        if self.request_samples > MAX_SAMPLES:
            raise ConfigError(f"request_samples: expected at most {MAX_SAMPLES:,}, got {self.request_samples:,}")
        if self.sample_bytes > MAX_VALUE_BYTES:
            raise ConfigError(f"sample_bytes: expected at most {MAX_VALUE_BYTES:,}, got {self.sample_bytes:,}")
