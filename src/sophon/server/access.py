"""Who may read what: bearer tokens with rights per data set, TLS, and where a server without either may listen.

A token file, like the variable SOPHON_TOKENS, has one line per token::

    # token                                          data sets, or * for all
    5f2c9c0e8b7d4a61b0f4a7d3e2c1905f                 train val
    sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f…   *

A line may hold the SHA-256 of a token instead of the token itself, so that the file is useless to anyone who reads it.
Only the SHA-256 of a token is kept in memory, and no token ever appears in a message, a log or a metric.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import re
import socket
import ssl
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from sophon.errors import AccessError, ConfigError

LEAST_TOKEN_LENGTH = 16  # characters: too many to guess, however fast a server answers
_MAX_FILE_BYTES = 1 << 20
_DIGEST = re.compile(r"sha256:([0-9a-fA-F]{64})")
_TOKEN = re.compile(r"[A-Za-z0-9._~+/=-]+")  # RFC 6750: what a bearer token is made of
_SCHEME = "bearer "
NEEDS_A_TOKEN = "this node needs a token; give credentials=Credentials(token=…), or set SOPHON_TOKEN on the trainer"


@dataclass(frozen=True)
class Rights:
    """Which data sets a caller may read.

    Args:
        datasets: Names of the data sets; None for all.
        tenant: Number of the caller's token; 0 if the server requires none.
        token: The caller's token, kept only at a relay, which passes it on to its node; None elsewhere.
    """

    datasets: frozenset[str] | None = None
    tenant: int = field(default=0, compare=False)
    token: str | None = field(default=None, compare=False, repr=False)

    def readable(self, names: Iterable[str]) -> list[str]:
        """Return the names of the data sets that may be read."""
        return [name for name in names if self.datasets is None or name in self.datasets]


EVERYTHING = Rights()


class Tokens:
    """The tokens that a server accepts.

    Args:
        entries: The SHA-256 of each token, with its rights.
    """

    def __init__(self, entries: Iterable[tuple[bytes, Rights]]) -> None:
        self._entries = tuple(entries)

    def __len__(self) -> int:
        return len(self._entries)

    def __repr__(self) -> str:
        return f"Tokens({len(self)})"

    @property
    def datasets(self) -> frozenset[str]:
        """Data sets that the lines of the tokens name; ``*`` names none."""
        return frozenset().union(*(rights.datasets or () for _, rights in self._entries))

    def to_text(self) -> str:
        """Return a text that `parse` reads, with the SHA-256 of each token."""
        return "".join(
            f"sha256:{digest.hex()} {' '.join(sorted(rights.datasets)) if rights.datasets is not None else '*'}\n"
            for digest, rights in self._entries
        )

    @classmethod
    def parse(cls, text: str, where: str, known: Iterable[str] | None = None) -> Tokens:
        """Parse the text of a token file.

        Args:
            text: Lines in the format shown in the module's docstring.
            where: Name of the text for messages, which never quote it.
            known: Names of the existing data sets; a line that names any other is rejected as a typo.
        """
        names = None if known is None else set(known)
        if names is not None and "*" in names:
            raise ConfigError(f"{where}: * means all data sets, but there is one with that name; rename it")
        entries: dict[bytes, Rights] = {}
        for number, line in enumerate(text.splitlines(), start=1):
            words = line.split("#", 1)[0].split()
            if not words:
                continue
            digest = _digest_of(words[0], f"{where}, line {number}")
            datasets = words[1:]
            if not datasets:
                raise ConfigError(f"{where}, line {number}: expected names of data sets after the token, or * for all")
            unknown = sorted(set(datasets) - {"*"} - names) if names is not None else []
            if unknown:
                there = ", ".join(sorted(names or ())) or "none"
                raise ConfigError(
                    f"{where}, line {number}: there is no data set {unknown[0]!r} here; available: {there}"
                )
            if digest in entries:
                raise ConfigError(
                    f"{where}, line {number}: this token is listed twice; name all its data sets on one line"
                )
            entries[digest] = Rights(None if "*" in datasets else frozenset(datasets), tenant=len(entries) + 1)
        if not entries:
            raise ConfigError(f"{where}: expected at least one token")
        return cls(entries.items())

    @classmethod
    def load(cls, path: Path, known: Iterable[str] | None = None) -> Tokens:
        """Read a token file."""
        return cls.parse(_text(path, "token file"), f"token file {path}", known)

    def rights_of(self, authorization: str | None) -> Rights:
        """Return the rights of a caller who sends this header; raise `AccessError` if it has none.

        The time taken depends neither on how much of a token is right nor on which token it is.
        """
        token = bearer_of(authorization)
        if token is None:
            raise AccessError(NEEDS_A_TOKEN)
        digest = hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()
        found = None
        for known, rights in self._entries:
            if hmac.compare_digest(known, digest):
                found = rights
        if found is None:
            raise AccessError(
                "this node does not know the token that was sent; compare it with the node's --token-file"
            )
        return found


def bearer_of(authorization: str | None) -> str | None:
    """Return the token in a header; None if there is none."""
    if authorization is None or authorization[: len(_SCHEME)].lower() != _SCHEME:
        return None
    return authorization[len(_SCHEME) :]


def _digest_of(word: str, where: str) -> bytes:
    ready = _DIGEST.fullmatch(word)
    if ready is not None:
        return bytes.fromhex(ready[1])
    if len(word) < LEAST_TOKEN_LENGTH or _TOKEN.fullmatch(word) is None:
        raise ConfigError(
            f"{where}: expected a token of at least {LEAST_TOKEN_LENGTH} letters, digits and ._~+/=-, or sha256:HEX; "
            'make one with python -c "import secrets; print(secrets.token_urlsafe(32))"'
        )
    return hashlib.sha256(word.encode()).digest()


@dataclass(frozen=True)
class Access:
    """How a server is protected.

    Args:
        tokens: Tokens and their rights; None if no token is required.
        tls_cert: PEM file with the server's certificate and its chain.
        tls_key: PEM file with the key of that certificate.
        client_ca: PEM file with the authority that signs trainers' certificates; if given, trainers without a
            certificate are rejected.
        insecure: Whether to listen on a public address even though anyone there may read.
    """

    tokens: Tokens | None = None
    tls_cert: Path | None = None
    tls_key: Path | None = None
    client_ca: Path | None = None
    insecure: bool = False
    scheme: str = field(init=False, default="grpc")

    def __post_init__(self) -> None:
        if (self.tls_cert is None) != (self.tls_key is None):
            raise ConfigError("--tls-cert and --tls-key go together; give both")
        if self.client_ca is not None and self.tls_cert is None:
            raise ConfigError("--tls-client-ca needs --tls-cert and --tls-key")
        if self.tls_cert is not None:
            object.__setattr__(self, "scheme", "grpc+tls")

    def check_place(self, host: str) -> str | None:
        """Raise unless a server with this protection may listen on an address; return a warning, if any."""
        if _is_loopback(host):
            return None
        if self.tokens is None and self.client_ca is None:
            if not self.insecure:
                raise ConfigError(
                    f"{host} can be reached from other machines, and anyone there could read the data: give "
                    "--token-file (or SOPHON_TOKENS) or --tls-client-ca, listen on 127.0.0.1, or give --insecure"
                )
            return f"anyone who can reach {host} may read the data"
        if self.tls_cert is None:
            return "tokens and data cross the network in the clear; give --tls-cert and --tls-key"
        return None

    def options(self) -> tuple[str, ...]:
        """Return the command-line options that protect another server in the same way, except for tokens."""
        files = {"--tls-cert": self.tls_cert, "--tls-key": self.tls_key, "--tls-client-ca": self.client_ca}
        given = [text for name, path in files.items() if path is not None for text in (name, str(path))]
        return (*given, *(["--insecure"] if self.insecure else []))

    def tls_options(self) -> dict[str, object]:
        """Return Flight's options for TLS, read from the files and checked."""
        if self.tls_cert is None or self.tls_key is None:
            return {}
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        try:
            context.load_cert_chain(self.tls_cert, self.tls_key, password="")
        except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
            raise ConfigError(
                f"{self.tls_cert} and {self.tls_key} are not a certificate and its key in PEM form: {_reason(error)}"
            ) from error
        options: dict[str, object] = {
            "tls_certificates": [(_text(self.tls_cert, "certificate"), _text(self.tls_key, "key"))]
        }
        if self.client_ca is not None:
            try:
                context.load_verify_locations(self.client_ca)
            except (OSError, ValueError) as error:
                raise ConfigError(f"{self.client_ca} is not a certificate in PEM form: {_reason(error)}") from error
            options |= {"verify_client": True, "root_certificates": _text(self.client_ca, "certificate")}
        return options


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error) or type(error).__name__


def _text(path: Path, what: str) -> str:
    try:
        with path.open("rb") as file:
            data = file.read(_MAX_FILE_BYTES + 1)
        if len(data) > _MAX_FILE_BYTES:
            raise ConfigError(f"{what} {path}: expected at most {_MAX_FILE_BYTES:,} bytes")
        return data.decode()
    except OSError as error:
        raise ConfigError(
            f"{what} {path} cannot be read: {error.strerror}; check the path and its permissions"
        ) from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{what} {path} is not a text file") from error


def _is_loopback(host: str) -> bool:
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise ConfigError(f"cannot listen on {host}: {error}; choose another --host") from error
    return all(ipaddress.ip_address(str(place[4][0]).split("%")[0]).is_loopback for place in found)
