"""What a node tells of its errors: what happened and what to try, but nothing of its own insides.

Tracebacks and absolute paths show how a machine is set up. They stay there, in its log, unless it was started with
``--debug``. Ids of samples are relative to their data set and are sent: people look for them.
"""

from __future__ import annotations

import re
import traceback

from sophon.errors import AccessError, ConfigError, Error

_MOST_TRACEBACK = 8000  # characters that are sent: people read the end
# A path is a slash at the beginning of a word and what follows it; what comes after "://" is an address.
_PATH = re.compile(r"(?<![\w:/.…])/(?:[^\s'\"`,;:()\[\]]*/)?([^\s'\"`,;:()\[\]/]*)")
_tells_all = False


def tell_all(is_told: bool = True) -> None:
    """Tell trainers everything about errors of this process, or no longer."""
    global _tells_all  # noqa: PLW0603 - one process is one node
    _tells_all = is_told


def told_text(error: BaseException) -> str:
    """Return the text of an error as others may read it: of an absolute path the last part alone."""
    return str(error) if _tells_all else _PATH.sub(r"…/\1", str(error))


def told_traceback(error: Error) -> str:
    """Return the end of an error's traceback if others may read it.

    A caller who is refused learns nothing about this node in any case, and what is wrong with a configuration is not
    found in its code: neither has a traceback.
    """
    if not _tells_all or error.__traceback__ is None or isinstance(error, AccessError | ConfigError):
        return ""
    return "".join(traceback.format_exception(error))[-_MOST_TRACEBACK:]
