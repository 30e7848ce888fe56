"""What it costs the trainer's CPU to get samples, whatever is done to them afterwards.

Sending requests, receiving payloads, queueing samples and making batches take CPU time on the cores that finish
samples. It is measured with the clocks of the threads involved, and divided into an amount per sample and an amount per
byte, which is possible because the samples of different requests have different sizes.

Concurrency: the caller makes sure that only one thread at a time uses this.
"""

from __future__ import annotations

_FEW = 200  # samples: before that, connecting and loading libraries would be taken for their cost
_FADING = 0.995  # weight of all earlier requests at each new one: about 200 of them count
_TYPICAL_S_PER_BYTE = 0.6e-9  # measured over loopback: two copies, and the kernel's
_TRUST = 0.05  # weight of that against the measurements, while all requests have the same mean size


class Receiving:
    """The cost of receiving, measured by one loader."""

    def __init__(self) -> None:
        self._seen = 0
        # Faded sums over requests, for a line through (samples, bytes, CPU seconds).
        self._nn = self._nb = self._bb = self._nc = self._bc = 0.0
        self._samples = self._bytes = self._other_s = self._library_s = 0.0
        self._library_at_s: float | None = None

    def received(self, samples: int, size_bytes: int, cpu_s: float) -> None:
        """Record a request that has ended.

        Args:
            samples: Number of samples that it returned.
            size_bytes: Bytes of their payloads.
            cpu_s: CPU seconds of the thread that received them, from one request to the next.
        """
        n, b = float(samples), float(size_bytes)
        for name, more in (("_nn", n * n), ("_nb", n * b), ("_bb", b * b), ("_nc", n * cpu_s), ("_bc", b * cpu_s)):
            setattr(self, name, _FADING * getattr(self, name) + more)
        for name, more in (("_samples", n), ("_bytes", b)):
            setattr(self, name, _FADING * getattr(self, name) + more)
        self._other_s *= _FADING
        self._library_s *= _FADING
        self._seen += samples

    def spent(self, cpu_s: float) -> None:
        """Record CPU seconds of other threads, spent on queues and batches rather than on finishing."""
        self._other_s += cpu_s

    def library(self, cpu_s: float) -> None:
        """Record the CPU seconds that the library's own threads have used since they were started."""
        if self._library_at_s is not None:
            self._library_s += max(cpu_s - self._library_at_s, 0.0)
        self._library_at_s = cpu_s

    @property
    def is_known(self) -> bool:
        """Whether enough samples have passed."""
        return self._seen >= _FEW and self._samples > 0

    @property
    def costs_s(self) -> tuple[float, float]:
        """CPU seconds for each sample and for each byte; zero while too few samples have passed."""
        if not self.is_known:
            return 0.0, 0.0
        # Least squares for nc = nn·a + nb·b and bc = nb·a + bb·b, with b drawn a little towards a typical value.
        pull = _TRUST * self._bb
        bb, bc = self._bb + pull, self._bc + pull * _TYPICAL_S_PER_BYTE
        size = self._nn * bb - self._nb * self._nb
        each_s, byte_s = 0.0, 0.0
        if size > 0:
            each_s = (self._nc * bb - bc * self._nb) / size
            byte_s = (self._nn * bc - self._nb * self._nc) / size
        if byte_s < 0 or size <= 0:
            each_s, byte_s = self._nc / self._nn, 0.0
        elif each_s < 0:
            each_s, byte_s = 0.0, max(self._bc, 0.0) / self._bb
        byte_s += self._library_s / self._bytes if self._bytes else 0.0
        return each_s + self._other_s / self._samples, byte_s
