"""Known failures of third-party transforms, and what to do about each.

A transform that stays on the trainer runs with its own code, and fails as it would without us. If its error message
says little, a row here explains more; the text becomes the remedy of the `OpError`.
"""

from __future__ import annotations

import traceback
from dataclasses import dataclass


@dataclass(frozen=True)
class KnownFailure:
    """An error that one function raises when called by another.

    Args:
        caller: Module and name of the calling function.
        raiser: Module and name of the function that raises the error.
        text: Part of the error's message.
        remedy: The cause and what to do, in full sentences.
    """

    caller: tuple[str, str]
    raiser: tuple[str, str]
    text: str
    remedy: str


KNOWN_FAILURES = (
    KnownFailure(
        caller=("timm.data.auto_augment", "posterize"),
        raiser=("PIL.ImageOps", "posterize"),
        text="bits must be between",
        remedy=(
            "timm asks Pillow for a picture of 0 bits, which Pillow 13 refuses; this fails without sophon too. Limit "
            "the magnitude of a RandAugment policy with 'inc1' by adding '-mmax9' (rand-m9-mstd0.5-inc1-mmax9); give "
            "one without 'inc1' a magnitude of 3 or more and no 'mstd'; use AutoAugment's 'original' policy instead "
            "of 'v0'; or install Pillow 12."
        ),
    ),
)


def known_remedy(error: BaseException) -> str:
    """Return what to do about an error, or an empty string if the error is unknown."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)][-2:]
    functions = [(str(frame.f_globals.get("__name__")), frame.f_code.co_name) for frame in frames]
    for known in KNOWN_FAILURES:
        if functions == [known.caller, known.raiser] and known.text in str(error):
            return known.remedy
    return ""
