"""The options of `sophon serve` for access control and TLS."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from sophon.errors import ConfigError

if TYPE_CHECKING:
    from sophon.server.access import Access, Tokens

TOKENS_VARIABLE = "SOPHON_TOKENS"
_FILE = click.Path(path_type=Path, dir_okay=False)
_OPTIONS = (
    click.option(
        "--token-file",
        type=_FILE,
        help="Who may read what: one line per token, with the data sets it may read, or '*' for all. The variable "
        f"{TOKENS_VARIABLE} may hold the same text.",
    ),
    click.option("--tls-cert", type=_FILE, help="PEM file of the certificate."),
    click.option("--tls-key", type=_FILE, help="PEM file of the certificate's key."),
    click.option(
        "--tls-client-ca",
        type=_FILE,
        help="PEM file of the authority that signs trainers' certificates; trainers then need one (mutual TLS).",
    ),
    click.option("--insecure", is_flag=True, help="Listen on a public address even though anyone may read."),
)


def access_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options to a command."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def relay_access_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options to a command that has no tokens of its own."""
    for option in reversed(_OPTIONS[1:]):
        command = option(command)
    return command


def access_from(given: Mapping[str, Any], names: list[str] | None) -> Access:
    """Return the access settings for the data sets called `names`, which may be None if they are not known yet."""
    from sophon.server.access import Access

    tokens = _tokens(given["token_file"], names)
    return Access(tokens, given["tls_cert"], given["tls_key"], given["tls_client_ca"], given["insecure"])


def _tokens(token_file: Path | None, names: list[str] | None) -> Tokens | None:
    from sophon.server.access import Tokens

    text = os.environ.get(TOKENS_VARIABLE)
    if token_file is not None and text is not None:
        raise ConfigError(f"give --token-file or {TOKENS_VARIABLE}, not both")
    if token_file is not None:
        return Tokens.load(token_file, names)
    return None if text is None else Tokens.parse(text, TOKENS_VARIABLE, names)
