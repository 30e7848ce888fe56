"""The options of `sophon serve` that set its limits."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from sophon.server.limits import Limits

# Field of Limits, option, metavar, help. The defaults are those of Limits, which is loaded when a server starts.
_OPTIONS = (
    ("request_samples", "--max-request-samples", "N", "Samples in one request; 8192."),
    ("request_bytes", "--max-request-bytes", "SIZE", "Bytes of the files in one request; 16GiB."),
    ("sample_bytes", "--max-sample-bytes", "SIZE", "Bytes of one file; 1GiB."),
    ("pixels", "--max-pixels", "N", "Pixels of a picture that ops may work on; as many as Pillow allows."),
    ("sample_cpu_s", "--max-sample-cpu", "TIME", "CPU time for one sample; 10s."),
    ("worker_bytes", "--max-worker-memory", "SIZE", "Memory of a worker process; 4GiB."),
    ("requests", "--max-requests", "N", "Requests answered at once; 256."),
    ("in_flight_bytes", "--max-in-flight", "SIZE", "Bytes read and not sent yet, of all requests; 1GiB."),
)


def limit_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options to a command."""
    for name, option, metavar, text in reversed(_OPTIONS):
        kind = click.IntRange(1) if metavar == "N" else None
        command = click.option(option, name, metavar=metavar, help=text, type=kind)(command)
    return command


def limits_from(given: Mapping[str, Any]) -> Limits:
    """Return the limits that were set, and the defaults for the rest."""
    from sophon.server.limits import Limits
    from sophon.units import parse_bytes, parse_seconds

    parse: dict[str, Callable[[Any], float]] = {"SIZE": parse_bytes, "TIME": parse_seconds, "N": int}
    found: dict[str, Any] = {name: parse[kind](given[name]) for name, _, kind, _ in _OPTIONS if given[name] is not None}
    return Limits(**found)
