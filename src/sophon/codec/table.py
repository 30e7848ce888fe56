"""The table of codecs. To add a codec, write its file, then add a row here and a test."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial

from sophon.codec import jxl
from sophon.codec.audio.flac import FlacCodec
from sophon.codec.codec import Codec
from sophon.codec.jpeg import Jpeg
from sophon.codec.raw import Raw
from sophon.codec.webp import Webp
from sophon.codec.windows import Window, available, can_cut
from sophon.codec.zstd import Zstd
from sophon.errors import ConfigError
from sophon.pipeline import Pipeline
from sophon.pipeline.ops.audio import flac

CODECS: dict[str, Callable[..., Codec]] = {
    "raw": Raw,
    "zstd": Zstd,
    "webp": Webp,
    "jxl1": partial(jxl.Jxl, 1),
    "jxl3": partial(jxl.Jxl, 3),
    "flac": FlacCodec,
    "jpeg": Jpeg,
    "window": Window,
}

# Requirements of a codec besides the package itself: an extension that needs a compiler, or an extra.
_NEEDS: dict[str, Callable[[], bool]] = {
    "window": available,
    "jxl1": jxl.available,
    "jxl3": jxl.available,
    "flac": flac.available,
}


def offered(pipeline: Pipeline | None = None) -> list[str]:
    """Return the codecs that work here, for files of a pipeline's kind of data if there is one."""
    found = [name for name in CODECS if name not in _NEEDS or _NEEDS[name]()]
    return [name for name in found if name != "window" or pipeline is None or can_cut(pipeline)]


@lru_cache(maxsize=64)
def codec_named(name: str) -> Codec:
    """Return a codec by its name, which may include one number: ``jpeg:90``."""
    family, _, number = name.partition(":")
    make = CODECS.get(family)
    if make is None:
        raise ConfigError(f"unknown codec {name[:40]!r}; known: {', '.join(CODECS)}")
    if not number:
        return make()
    if family != "jpeg" or not number.isdecimal() or len(number) > 3:
        raise ConfigError(f"expected a codec as jpeg:QUALITY or one of {', '.join(CODECS)}, got {name[:40]!r}")
    return make(int(number))
