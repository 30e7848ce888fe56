"""Seals: what shows that an index in a file was made by this user, and for which picture.

Anyone can compute a checksum, and a wrong index would silently give wrong pixels. So each index is sealed, together
with the name of its picture, with a key of the user who made it (`process.folders.secret_key`); names are made with the
same key.
"""

from __future__ import annotations

import hashlib
import hmac
from functools import lru_cache
from typing import Final

from sophon.codec.window.names import Names

SEAL_BYTES: Final = 16
_NAME_BYTES: Final = 8


class Seals:
    """Seals of one user.

    Args:
        key: The user's key.

    Attributes:
        names: Names that only this user can give.
    """

    def __init__(self, key: bytes) -> None:
        self._key = key
        self.names = Names(key)

    def sealed(self, name: int, packed: bytes) -> bytes:
        """Return an index with its seal, ready to be written."""
        return packed + self._seal(name, packed)

    def opened(self, name: int, sealed: bytes) -> tuple[bytes, bool]:
        """Return an index without its seal, and whether this user sealed it for a picture of this name."""
        packed, seal = sealed[:-SEAL_BYTES], sealed[-SEAL_BYTES:]
        return packed, hmac.compare_digest(seal, self._seal(name, packed))

    def _seal(self, name: int, packed: bytes) -> bytes:
        text = name.to_bytes(_NAME_BYTES, "little") + packed
        return hashlib.blake2b(text, digest_size=SEAL_BYTES, key=self._key, person=b"sophon.windows").digest()


@lru_cache(maxsize=4)
def seals_of(key: bytes) -> Seals:
    """Return the seals made with a key: the same object for all files of one user, who names a picture only once."""
    return Seals(key)
