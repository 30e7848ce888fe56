"""Describes failed requests without addresses or secrets, and decides whether to retry.

obstore's messages contain URLs (with signatures, on Azure) and the server's whole answer; only the status, the server's
error code and the kind of problem are passed on.
"""

from __future__ import annotations

import errno
import re
from enum import Enum
from typing import Final

from sophon.errors import Error

_STATUS: Final = re.compile(r"status(?: code)?:? (\d{3})")
_CODE: Final = re.compile(r"<Code>(\w{1,60})</Code>")
_SLOW: Final = (429, 503)
_TROUBLE: Final = (408, 500, 502, 504, *_SLOW)
_IDENTITY: Final = (401, 403)
_EXPIRED: Final = ("ExpiredToken", "ExpiredTokenException", "TokenRefreshRequired", "InvalidToken", "RequestExpired")
_WHOLE: Final = "non-partial response"


class Verdict(Enum):
    """How to handle a failure."""

    MISSING = "it does not exist"
    CHANGED = "it has changed since it was listed"
    SLOW = "the object store asks for fewer requests"
    AGAIN = "the object store cannot be reached, or has problems"
    RENEW = "the object store does not accept the credentials"
    WHOLE = "the object store does not support range requests"
    NEVER = "the object store refuses the request"
    ENDLESS = "the object store sends more data than requested, or the same data repeatedly"


class ObjectError(OSError):
    """An object cannot be read.

    Args:
        verdict: The reason.
        detail: The server's own description.
    """

    def __init__(self, verdict: Verdict, detail: str = "") -> None:
        number = errno.ENOENT if verdict is Verdict.MISSING else errno.EIO
        super().__init__(number, verdict.value + (f" ({detail})" if detail else ""))
        self.verdict = verdict

    def __reduce__(self) -> tuple[object, ...]:
        return (OSError, (self.errno, self.strerror))


def judged(error: Exception) -> ObjectError:  # noqa: PLR0911 - a table in words
    """Classify an obstore failure; errors on our side, such as a missing profile, are raised."""
    if isinstance(error, Error):
        raise error
    if isinstance(error, ObjectError):
        return error
    text, kind = str(error), type(error).__name__
    status = next((int(found) for found in _STATUS.findall(text)), 0)
    code = next(iter(_CODE.findall(text)), "")
    detail = " ".join(part for part in (str(status or ""), code) if part)
    if isinstance(error, FileNotFoundError) or kind == "NotFoundError":
        return ObjectError(Verdict.MISSING, code if code != "NoSuchKey" else "")
    if kind in ("PreconditionError", "NotModifiedError"):
        return ObjectError(Verdict.CHANGED)
    if status in _IDENTITY or code in _EXPIRED or kind in ("PermissionDeniedError", "UnauthenticatedError"):
        return ObjectError(Verdict.RENEW, detail)
    if status in _SLOW or code == "SlowDown":
        return ObjectError(Verdict.SLOW, detail)
    if _WHOLE in text:
        return ObjectError(Verdict.WHOLE)
    if status and status not in _TROUBLE:
        return ObjectError(Verdict.NEVER, detail)
    if isinstance(error, ValueError | TypeError | NotImplementedError) or kind in (
        "InvalidPathError",
        "NotSupportedError",
    ):
        return ObjectError(Verdict.NEVER, kind)
    return ObjectError(Verdict.AGAIN, detail or _trouble(text))


def _trouble(text: str) -> str:
    lower = text.lower()
    for word, said in (
        ("timed out", "no answer in time"),
        ("timeout", "no answer in time"),
        ("refused", "connection refused"),
        ("reset", "connection reset"),
        ("closed", "connection closed"),
        ("dns", "no such host"),
        ("certificate", "its certificate is not trusted"),
        ("credential", "no credentials found; set AWS_ACCESS_KEY_ID, AWS_PROFILE, or AWS_SKIP_SIGNATURE=true"),
        ("169.254.169.254", "no credentials found; set AWS_ACCESS_KEY_ID, AWS_PROFILE, or AWS_SKIP_SIGNATURE=true"),
    ):
        if word in lower:
            return said
    return "no connection"
