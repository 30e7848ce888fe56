"""Names of files, by which their indexes are found: a keyed hash of all bytes.

An index that is used for another file gives wrong pixels, and the files of a process belong to people who may attack
each other. So nobody who lacks the key can make a file that has the name of another one. As in UMAC (Black et al.,
CRYPTO 1999), NH, a universal hash, condenses every 4 KiB to 16 bytes, and keyed BLAKE2b hashes these and the length.
Two different files, whoever chose them, have the same name under one key in 2**63: NH is proven to be that good. What
it would reveal about its key, BLAKE2b hides from those who see names.

The name of a photo of 100 KB takes 5 µs, the whole window 106 µs; BLAKE2b of all bytes would take 69 µs.

Concurrency: pure, and may be used from any thread; the heavy part releases the GIL.
"""

from __future__ import annotations

import hashlib
from typing import Final

from sophon.codec.window.jpeg import Data, condensed

_CONDENSING_KEY_BYTES: Final = 4096
_HASHING_KEY_BYTES: Final = 64
_NAME_BYTES: Final = 8
_LENGTH_BYTES: Final = 8
_PERSON: Final = b"sophon.names"


class Names:
    """Gives names to files.

    Args:
        secret: At least 32 bytes; the same secret gives the same names.
    """

    def __init__(self, secret: bytes) -> None:
        keys = hashlib.shake_256(_PERSON + secret).digest(_CONDENSING_KEY_BYTES + _HASHING_KEY_BYTES)
        self._condensing_key, self._hashing_key = keys[:_CONDENSING_KEY_BYTES], keys[_CONDENSING_KEY_BYTES:]

    def of(self, data: Data) -> int:
        """Return the name of a file."""
        text = condensed(data, self._condensing_key) + len(data).to_bytes(_LENGTH_BYTES, "little")
        hashed = hashlib.blake2b(text, digest_size=_NAME_BYTES, key=self._hashing_key, person=_PERSON)
        return int.from_bytes(hashed.digest(), "little")
