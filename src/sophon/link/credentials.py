"""Credentials of a trainer for a storage node: a token, and certificates for TLS.

A token never appears in a repr, a message or a log. A pickle, which torch's DataLoader uses to start worker processes,
contains the token only if it was given as an argument; a token from the environment is read again in each process. Only
the paths of certificates are kept, and the files are read for every connection, so renewed certificates are picked up.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Any

from sophon.errors import ConfigError

TOKEN_VARIABLE = "SOPHON_TOKEN"
_FILES = {"tls_ca": "SOPHON_TLS_CA", "tls_cert": "SOPHON_TLS_CERT", "tls_key": "SOPHON_TLS_KEY"}
_LONGEST_TOKEN = 4096
_REASONS = {
    "Connection refused": "connection refused: nothing is listening on that port",
    "hostname lookup error": "that host name cannot be resolved",
    "DNS resolution failed": "that host name cannot be resolved",
    "No route to host": "no route to that host",
    "Network is unreachable": "the network of that host cannot be reached",
    "http1.x server": "the server there is not a storage node: it speaks HTTP",
    "Deadline Exceeded": "no answer in time",
}


class Credentials:
    """A token and files for TLS; what is None is taken from the environment, if it is set there.

    Args:
        token: Bearer token; SOPHON_TOKEN by default.
        tls_ca: PEM file with the authority that signed the node's certificate; SOPHON_TLS_CA by default, or else the
            authorities that the system trusts.
        tls_cert: PEM file with this trainer's certificate, for mutual TLS; SOPHON_TLS_CERT by default.
        tls_key: PEM file with the key of that certificate; SOPHON_TLS_KEY by default.
        trusted: Whether the node is your own, so that its sizes are trusted: data sets of up to 268,435,456 samples
            instead of 16,777,216.
    """

    __slots__ = ("_files", "_token", "trusted")

    def __init__(
        self,
        token: str | None = None,
        tls_ca: str | PathLike[str] | None = None,
        tls_cert: str | PathLike[str] | None = None,
        tls_key: str | PathLike[str] | None = None,
        *,
        trusted: bool = False,
    ) -> None:
        self._token = token
        self.trusted = trusted
        given = {"tls_ca": tls_ca, "tls_cert": tls_cert, "tls_key": tls_key}
        self._files = {name: os.fspath(path) for name, path in given.items() if path is not None}

    def __repr__(self) -> str:
        shown = [f"{name}={path!r}" for name, path in self._files.items()]
        shown += ["trusted=True"] if self.trusted else []
        return f"Credentials({', '.join((['token=…'] if self._token else []) + shown)})"

    def check(self, *, encrypted: bool) -> None:
        """Raise unless these credentials can be used; files are only checked when they are read."""
        token = self._current_token()
        if token is not None and not (token.isascii() and token.isprintable() and 0 < len(token) <= _LONGEST_TOKEN):
            raise ConfigError(
                f"token: expected up to {_LONGEST_TOKEN} ASCII characters, or a line of a token file, got something "
                f"else; give Credentials(token=…) or set {TOKEN_VARIABLE} to the first word of a line in the node's "
                "--token-file"
            )
        files = self._current_files()
        if ("tls_cert" in files) != ("tls_key" in files):
            raise ConfigError("tls_cert and tls_key go together; give both")
        if self._files and not encrypted:
            raise ConfigError(f"{min(self._files)} needs an address like grpc+tls://host:port/dataset")

    def headers(self) -> list[tuple[bytes, bytes]]:
        """Return the headers to send with every call."""
        token = self._current_token()
        return [] if token is None else [(b"authorization", b"Bearer " + token.encode())]

    def tls_options(self) -> dict[str, Any]:
        """Return Flight's options for a connection over TLS."""
        names = {"tls_ca": "tls_root_certs", "tls_cert": "cert_chain", "tls_key": "private_key"}
        return {names[name]: _read(name, path) for name, path in self._current_files().items()}

    def _current_token(self) -> str | None:
        told = self._token if self._token is not None else _variable(TOKEN_VARIABLE)
        return None if told is None else _token_of(told)

    def _current_files(self) -> Mapping[str, str]:
        from_environment = {name: _variable(variable) for name, variable in _FILES.items()}
        return {name: path for name, path in (from_environment | self._files).items() if path is not None}

    def __reduce__(self) -> tuple[object, ...]:
        return (_made, ({"token": self._token, "trusted": self.trusted, **self._files},))


def _made(given: dict[str, Any]) -> Credentials:
    return Credentials(**given)


def _token_of(text: str) -> str:
    """Return the token in a text: a token, or a one-line token file, whose data sets concern only the node."""
    lines = [words for line in text.splitlines() if (words := line.split("#", 1)[0].split())]
    if len(lines) > 1:
        raise ConfigError(
            f"token: {len(lines)} lines were given, which means several tokens; give one of them: "
            f"Credentials(token=…), or {TOKEN_VARIABLE}"
        )
    found = lines[0][0] if lines else ""
    if found.startswith("sha256:"):
        raise ConfigError("token: this is the SHA-256 of a token, as in the node's file; give the token itself")
    return found


def _variable(name: str) -> str | None:
    return os.environ.get(name) or None  # an empty variable counts as not set


def _read(name: str, path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise ConfigError(f"{name}: {path} cannot be read: {error.strerror}; give a PEM file") from error


def certificate_problem(message: str) -> str | None:
    """Return the remedy for a failed connection if gRPC's message blames certificates or TLS; None otherwise."""
    text = message.lower()
    if "certificate verify failed" in text or "hostname verification" in text:
        return (
            "the node's certificate is not trusted (unknown authority, expired, or for a different host name); "
            "give the PEM file of the authority that signed it as tls_ca"
        )
    if "wrong version number" in text:
        return "the node answers without TLS; use grpc:// instead of grpc+tls://, or start it with --tls-cert"
    return None


def plain_reason(message: str) -> str | None:
    """Return in plain words why the node cannot be reached, if gRPC's message says so; None otherwise."""
    for sign, words in _REASONS.items():
        if sign in message:
            return words
    return None


def connection_hint(message: str) -> str:
    """Return a likely reason why the node closed a connection immediately, since gRPC gives none."""
    if "failed to connect" not in message or "Socket closed" not in message:
        return ""
    return (
        " (closed by the node at once: it may require grpc+tls://, or tls_cert and tls_key of a trainer that it trusts)"
    )
