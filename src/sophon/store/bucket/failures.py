"""What went wrong with a request, in words without addresses or secrets, and whether to try again.

obstore's texts hold URLs (with signatures, on Azure), and the server's whole answer; nothing of that is passed on but a
status, the server's code for the error and the kind of trouble.
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
    """What is to be done about a failure."""

    MISSING = "it does not exist"
    CHANGED = "it was changed after it was listed"
    SLOW = "the object store asks for fewer requests"
    AGAIN = "the object store cannot be reached, or is in trouble"
    RENEW = "the object store does not accept the credentials"
    WHOLE = "the object store sends no parts of objects"
    NEVER = "the object store refuses the request"
    ENDLESS = "the object store sends more than was asked for, or the same again and again"


class ObjectError(OSError):
    """An object cannot be had.

    Args:
        verdict: Why.
        detail: What the server said.
    """

    def __init__(self, verdict: Verdict, detail: str = "") -> None:
        number = errno.ENOENT if verdict is Verdict.MISSING else errno.EIO
        super().__init__(number, verdict.value + (f" ({detail})" if detail else ""))
        self.verdict = verdict

    def __reduce__(self) -> tuple[object, ...]:
        return (OSError, (self.errno, self.strerror))


def judged(error: Exception) -> ObjectError:  # noqa: PLR0911 - a table in words
    """Return what a failure of obstore means; what is wrong on this side, such as a missing profile, is raised."""
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
