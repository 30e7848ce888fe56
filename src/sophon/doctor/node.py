"""Checks that a node answers, can be read and is set up properly: host, port, access, release, clock, cores, codecs."""

from __future__ import annotations

import ipaddress
import os
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from sophon.codec.table import offered
from sophon.doctor.finding import ADVICE, FAULT, FINE, NOTE, Finding
from sophon.errors import AccessError, ConfigError, Error, ProtocolError
from sophon.link.credentials import TOKEN_VARIABLE
from sophon.link.schemes import open_address
from sophon.link.transport import Opened, Transport
from sophon.pipeline import Pipeline
from sophon.units import counted, format_seconds

_CONNECT_S: Final = 5.0
_CLOCK_NOTED_S: Final = 5.0
_CLOCK_WRONG_S: Final = 300.0  # beyond this, certificates and signatures of object stores start to fail


@dataclass
class Node:
    """A node that is being examined.

    Args:
        url: Address of the data set.

    Attributes:
        transport: The transport to the node, once its address is known to be valid.
        opened: The node's description of the data set; None if it could not be opened.
    """

    url: str
    transport: Transport | None = None
    opened: Opened | None = None

    def examine(self, pipeline: Pipeline) -> Iterator[Finding]:
        """Examine the node from the outside in; stop where nothing further can be checked."""
        try:
            self.transport = open_address(self.url, None, _CONNECT_S)
        except ConfigError as error:
            yield self._fault("address", str(error), "Give the address that `sophon serve` prints.")
            return
        parts = urlsplit(self.url)
        reached = self._reach(str(parts.hostname), parts.port or 0)
        yield reached
        if reached.level == FAULT:
            return
        began_s, began = time.time(), time.monotonic()
        try:
            self.opened = self.transport.open(pipeline)
        except Error as error:
            yield self._refused(error)
            return
        took_s = time.monotonic() - began
        yield self._data(self.opened)
        yield from self._secrecy(str(parts.hostname), parts.scheme)
        yield from self._clock(self.opened, began_s + took_s / 2, took_s)
        yield from self._offer(self.opened)

    def _fault(self, name: str, text: str, remedy: str) -> Finding:
        return Finding(self.url, name, FAULT, text, remedy)

    def _reach(self, host: str, port: int) -> Finding:
        try:
            socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except OSError as error:
            return self._fault(
                "host", f"the host name {host} cannot be resolved: {error}", "Check its spelling or DNS."
            )
        began_s = time.monotonic()
        try:
            socket.create_connection((host, port), _CONNECT_S).close()
        except ConnectionRefusedError:
            remedy = "Start `sophon serve` there, with --host 0.0.0.0 if it is another machine, or give its --port."
            return self._fault("port", f"nothing is listening on port {port} of {host}", remedy)
        except OSError as error:
            remedy = "Is the machine up? Open the port in any firewalls in between."
            return self._fault("port", f"no connection to port {port} of {host}: {error}", remedy)
        return Finding(self.url, "port", FINE, f"port {port} answers in {format_seconds(time.monotonic() - began_s)}")

    def _refused(self, error: Error) -> Finding:
        text = str(error).removeprefix(f"{self.url}: ")
        if isinstance(error, AccessError) and ("certificate" in text or "TLS" in text):
            return self._fault("tls", text, "Set SOPHON_TLS_CA to the PEM file of the authority that signed it.")
        if isinstance(error, AccessError):
            remedy = f"Set {TOKEN_VARIABLE} to a token that the node's --token-file lists for this data set."
            return self._fault("rights", text, remedy)
        if isinstance(error, ProtocolError):
            return self._fault("release", text, "Install the same release of sophon on both sides.")
        if isinstance(error, ConfigError):
            return self._fault("dataset", text, "Correct the last part of the address.")
        remedy = "Is `sophon serve` listening there, with TLS if the address starts with grpc+tls://? Check its log."
        return self._fault("answer", f"the node does not answer correctly: {text}", remedy)

    def _data(self, opened: Opened) -> Finding:
        if not opened.samples:
            return self._fault("dataset", f"data set {opened.name!r} is empty", "Serve a folder with samples.")
        text = f"data set {opened.name!r}: {contents(opened)}, fingerprint {opened.fingerprint}"
        return Finding(self.url, "dataset", FINE, text)

    def _secrecy(self, host: str, scheme: str) -> Iterator[Finding]:
        if scheme == "grpc" and os.environ.get(TOKEN_VARIABLE) and not _is_loopback(host):
            remedy = "Serve with --tls-cert and --tls-key, and use a grpc+tls:// address, unless you trust the network."
            yield Finding(self.url, "secrecy", ADVICE, "the token crosses the network in the clear", remedy)

    def _clock(self, opened: Opened, here_s: float, took_s: float) -> Iterator[Finding]:
        if not opened.time_s:  # a node of an earlier release does not report its time
            return
        apart_s = opened.time_s - here_s
        if abs(apart_s) <= _CLOCK_NOTED_S + took_s:
            yield Finding(self.url, "clock", FINE, "its clock agrees with this machine's")
            return
        text = f"its clock is {format_seconds(abs(apart_s))} {'ahead of' if apart_s > 0 else 'behind'} this machine's"
        remedy = "Correct the wrong clock (NTP): certificates and requests to object stores depend on the time."
        yield Finding(self.url, "clock", FAULT if abs(apart_s) > _CLOCK_WRONG_S else ADVICE, text, remedy)

    def _offer(self, opened: Opened) -> Iterator[Finding]:
        missing = [name for name in offered() if name not in opened.codecs]
        if "window" in missing:
            remedy = "Run `sophon doctor` there: the compiled extensions are probably missing."
            text = "the node has no `window` codec, which saves most of the bytes of JPEG files"
            yield Finding(self.url, "codecs", ADVICE, text, remedy)
        elif missing:
            text = f"the node lacks codecs that are available here: {', '.join(missing)}"
            yield Finding(self.url, "codecs", NOTE, text, "They are optional; install the same extras there.")
        else:
            yield Finding(self.url, "codecs", FINE, ", ".join(opened.codecs))
        if not opened.cores:
            remedy = "Start it with --cores 1 or more."
            text = "the node has no cores for ops (--cores 0): it sends raw files"
            yield Finding(self.url, "cores", ADVICE, text, remedy)
        else:
            yield Finding(
                self.url, "cores", FINE, f"{opened.cores:g} core{'s run' if opened.cores != 1 else ' runs'} ops there"
            )


def contents(opened: Opened) -> str:
    """Return the contents of a data set, in words."""
    text = counted(opened.samples, "sample", "samples")
    if opened.classes:
        text += f" in {counted(len(opened.classes), 'class', 'classes')}"
    return f"{text} with {', '.join(one.name for one in opened.fields)}" if len(opened.fields) > 1 else text


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
