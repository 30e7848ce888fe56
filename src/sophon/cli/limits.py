"""The options of `sophon serve` that set its limits."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import click

from sophon.cli.options import parsed
from sophon.units import parse_bytes, parse_seconds

if TYPE_CHECKING:
    from sophon.server.limits import Limits

# Field of Limits, option, metavar, default, help. Limits itself is loaded only when a server starts; a test compares
# the two.
_OPTIONS = (
    ("request_samples", "--max-request-samples", "N", "8192", "Samples in one request."),
    ("request_bytes", "--max-request-bytes", "SIZE", "16GiB", "Bytes of the files in one request."),
    ("sample_bytes", "--max-sample-bytes", "SIZE", "1GiB", "Bytes of one file."),
    ("pixels", "--max-pixels", "N", "as many as Pillow allows", "Pixels of a picture that ops may work on."),
    ("sample_cpu_s", "--max-sample-cpu", "TIME", "10s", "CPU time for one sample."),
    ("child_bytes", "--max-child-memory", "SIZE", "4GiB", "Memory of a child process, in which ops run."),
    ("requests", "--max-requests", "N", "256", "Requests answered at once."),
    ("in_flight_bytes", "--max-in-flight", "SIZE", "1GiB", "Bytes read but not sent yet, over all requests."),
    ("reads", "--max-reads", "N", "64", "Concurrent reads of one data set; fewer are used if reads are quick."),
    ("read_bytes", "--max-read-bytes", "SIZE", "256MiB", "Bytes of one data set that are being read at once."),
)
_PARSERS: dict[str, Callable[[str], float]] = {"SIZE": parse_bytes, "TIME": parse_seconds}


def limit_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options to a command."""
    for name, option, metavar, default, text in reversed(_OPTIONS):
        read: dict[str, Any] = (
            {"callback": parsed(_PARSERS[metavar])} if metavar in _PARSERS else {"type": click.IntRange(1)}
        )
        command = click.option(option, name, metavar=metavar, show_default=default, help=text, **read)(command)
    return command


def limits_from(given: Mapping[str, Any]) -> Limits:
    """Return the limits that were given, and defaults for the rest."""
    from sophon.server.limits import Limits

    return Limits(**{name: given[name] for name, *_ in _OPTIONS if given[name] is not None})
