"""Addresses of data sets in object stores: ``s3://bucket/train``, ``gs://…``, ``az://container/…``, ``https://…``.

An `Address` stands in for a path on disk, with the few properties of a path that are needed.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from glob import has_magic
from pathlib import Path
from typing import Final, TypeAlias

from sophon.errors import ConfigError

SCHEMES: Final = ("s3", "gs", "az", "http", "https")
_FORM: Final = re.compile(r"(s3|gs|az|https?)://([^/]*)/?(.*)", re.DOTALL | re.IGNORECASE)


@dataclass(frozen=True, order=True)
class Address:
    """A location in an object store.

    Args:
        scheme: Kind of object store, one of `SCHEMES`.
        bucket: Bucket or container; host and port of an HTTP server.
        key: Name of an object, or the common prefix of several; no slash at either end.
    """

    scheme: str
    bucket: str
    key: str = ""

    @property
    def name(self) -> str:
        """The last part of the key, or the bucket if there is no key."""
        return self.key.rpartition("/")[2] or self.bucket

    @property
    def suffix(self) -> str:
        """The ending of the name from its last dot, in lower case."""
        return os.path.splitext(self.name)[1].lower() if self.key else ""  # noqa: PTH122 - not a path

    @property
    def parent(self) -> Address:
        """The address without the last part of the key."""
        return Address(self.scheme, self.bucket, self.key.rpartition("/")[0])

    @property
    def root(self) -> str:
        """The prefix of the keys of all objects below this address."""
        return f"{self.key}/" if self.key else ""

    @property
    def is_pattern(self) -> bool:
        """Whether the last part of the key names several objects by a pattern."""
        return has_magic(self.key.rpartition("/")[2])

    def below(self, name: str) -> Address:
        """Return the address of something below this one."""
        return Address(self.scheme, self.bucket, self.root + name)

    def __str__(self) -> str:
        return f"{self.scheme}://{self.bucket}/{self.key}".rstrip("/")


Place: TypeAlias = Path | Address
"""Location of a data set."""


def is_address(text: str) -> bool:
    """Return whether a string is the address of an object store rather than a path."""
    return _FORM.match(text) is not None


def parse_address(text: str) -> Address:
    """Parse the address of an object store.

    Raises:
        ConfigError: There is no bucket, or the address contains a secret that would show up in logs.
    """
    match = _FORM.match(text)
    if match is None or not match[2]:
        raise ConfigError(f"expected an address such as s3://bucket/train, got {text!r:.80}")
    scheme, bucket, key = match[1].lower(), match[2], match[3].strip("/")
    if "@" in bucket or (scheme.startswith("http") and "?" in key):  # the message must not repeat either
        raise ConfigError(
            f"a password or signature in a {scheme}:// address would end up in logs; remove it, "
            "and give credentials in environment variables"
        )
    if "//" in f"/{key}" or any(part in (".", "..") for part in key.split("/")):
        raise ConfigError(f"{text!r:.200}: empty parts, '.' and '..' are not allowed in object names")
    return Address(scheme, bucket, key)
