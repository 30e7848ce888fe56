"""What a node reveals about its errors: what happened and what to try, but nothing about its internals.

Tracebacks and absolute paths reveal how a machine is set up. They stay in the node's log, unless the node was started
with ``--debug``. Ids of samples are relative to their data set and are sent, since users need them.
"""

from __future__ import annotations

import re
import traceback

from sophon.errors import AccessError, ConfigError, Error

_MOST_TRACEBACK = 8000  # characters that are sent: the end matters most
# A path is a slash at the start of a word and what follows it; text after "://" is an address.
_PATH = re.compile(r"(?<![\w:/.…])/(?:[^\s'\"`,;:()\[\]]*/)?([^\s'\"`,;:()\[\]/]*)")
_tells_all = False


def tell_all(is_told: bool = True) -> None:
    """Set whether trainers receive all details of this process's errors."""
    global _tells_all  # noqa: PLW0603 - one process is one node
    _tells_all = is_told


def told_text(error: BaseException) -> str:
    """Return the text of an error as others may read it: absolute paths are reduced to their last part."""
    return str(error) if _tells_all else _PATH.sub(r"…/\1", str(error))


def told_traceback(error: Error) -> str:
    """Return the end of an error's traceback, or nothing if others may not read it.

    A caller without access learns nothing about this node, and a traceback does not help with a configuration error, so
    these errors have none.
    """
    if not _tells_all or error.__traceback__ is None or isinstance(error, AccessError | ConfigError):
        return ""
    return "".join(traceback.format_exception(error))[-_MOST_TRACEBACK:]
