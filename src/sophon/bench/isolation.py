"""`sophon bench isolation`: the cost of running ops in child processes instead of threads of the server."""

from __future__ import annotations

import statistics
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

from sophon.bench.harness import OnStep, nothing
from sophon.codec.cut import Cut, legal_cuts
from sophon.errors import ConfigError
from sophon.link.flight import FlightTransport
from sophon.link.wire import Request
from sophon.loader.local_server import LocalServer
from sophon.pipeline import Pipeline, ops
from sophon.process.children import tree_cpu_s
from sophon.process.scratch import scratch_folder

RECIPE = Pipeline([ops.Decode(), ops.RandomResizedCrop(224), ops.RandomHorizontalFlip(), ops.ToTensor()])
CUTS = ("0:window", "2:raw", "2:webp")
KINDS = ("thread", "process")
_REQUEST_SAMPLES = 64
_TIMEOUT_S = 120.0
_MIN_ROUNDS = 3


def bench_isolation(
    folder: Path, seconds: float, cores: float = 1, on_step: OnStep | None = None
) -> dict[str, dict[str, float]]:
    """Fetch the same cuts of the same images from two servers in turns, and count the CPU of all their processes.

    Args:
        folder: Images.
        seconds: Approximate time for each cut; at least three rounds.
        cores: Number of cores for ops.
        on_step: Called with the name, number and count of the next step.

    Returns:
        For each cut ``{"thread_ms", "process_ms", "thread_per_s", "process_per_s"}``: CPU milliseconds per sample near
        storage, and samples per second; a cut that is impossible for every sample is left out.

    Raises:
        ConfigError: No sample can be cut.
    """
    report = on_step or nothing
    legal = set(map(str, legal_cuts(RECIPE)))
    result = {}
    with ExitStack() as stack:
        cache = str(stack.enter_context(scratch_folder("isolation")))
        pool = stack.enter_context(ThreadPoolExecutor(2))
        servers = {
            kind: stack.enter_context(
                LocalServer(folder, cores, options=("--isolation", kind, "--cache-dir", cache, "--patience", "1000"))
            )
            for kind in KINDS
        }
        transports = {kind: FlightTransport(server.url) for kind, server in servers.items()}
        count = transports["thread"].open(RECIPE).samples
        for number, cut in enumerate(cut for cut in CUTS if cut in legal):
            report(cut, number, len(CUTS))
            # A warm-up that builds indexes. If no sample can be cut, both servers would only send whole files.
            if not all(_fetch_all(transports[kind], pool, Cut.parse(cut), 0, count) for kind in KINDS):
                continue
            rows: dict[str, list[tuple[float, float]]] = {kind: [] for kind in KINDS}
            end_s = time.monotonic() + seconds
            epoch = 1
            while epoch <= _MIN_ROUNDS or time.monotonic() < end_s:
                for kind in KINDS if epoch % 2 else reversed(KINDS):
                    cpu_s, start_s = tree_cpu_s(servers[kind].pid), time.monotonic()
                    _fetch_all(transports[kind], pool, Cut.parse(cut), epoch, count)
                    wall_s = time.monotonic() - start_s
                    rows[kind].append(((tree_cpu_s(servers[kind].pid) - cpu_s) / count, count / wall_s))
                epoch += 1
            result[cut] = {
                f"{kind}_{what}": statistics.median(row[i] for row in rows[kind]) * scale
                for kind in KINDS
                for i, (what, scale) in enumerate((("ms", 1e3), ("per_s", 1.0)))
            }
        for transport in transports.values():
            transport.close()
    if not result:
        raise ConfigError(f"no sample of {folder} can be cut at any of {', '.join(CUTS)}; give a folder of photos")
    return result


def _fetch_all(transport: FlightTransport, pool: ThreadPoolExecutor, cut: Cut, epoch: int, count: int) -> int:
    """Fetch all samples, two requests at a time as in the loader; return how many were cut as requested."""

    def fetch(start: int) -> int:
        samples = tuple(range(start, min(start + _REQUEST_SAMPLES, count)))
        cuts = (cut,) * len(samples)
        request = Request(transport.dataset, RECIPE.to_spec(), 0, epoch, samples, cuts, patience_s=1000.0)
        return sum(reply.cut == cut for reply in transport.fetch(request, _TIMEOUT_S))

    return sum(pool.map(fetch, range(0, count, _REQUEST_SAMPLES)))
