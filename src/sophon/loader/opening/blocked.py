"""Pipelines that cannot usefully run near storage: which step prevents it, and what to write instead."""

from __future__ import annotations

import warnings

from sophon.codec.cut import legal_cuts, looks_ahead
from sophon.loader.opening.caller import levels_to_user
from sophon.loader.sources.assignment import OffloadWarning
from sophon.pipeline import Call, Op, Pipeline
from sophon.pipeline.ops import Decode, Views
from sophon.pipeline.pipeline import title

_CONVERSIONS = ("ToImage", "ToTensor", "PILToTensor")


def warn_if_blocked(pipeline: Pipeline) -> None:
    """Warn if files have to cross the link whole: only Decode can run elsewhere, and no window can be cut."""
    blocked = why_blocked(pipeline)
    if blocked is not None:
        problem, remedy = blocked
        text = f"{problem}. {remedy} Use policy='none' if this is intended."
        warnings.warn(text, OffloadWarning, stacklevel=levels_to_user())


def why_blocked(pipeline: Pipeline) -> tuple[str, str] | None:
    """Return why files have to cross the link whole, and what to write instead; None if they need not."""
    blocking = pipeline.max_cut
    if blocking > 1 or blocking == len(pipeline) or any(map(looks_ahead, legal_cuts(pipeline))):
        return None
    op = pipeline.ops[blocking]
    reason = f" ({op.reason})" if isinstance(op, Call) else ""
    problem = (
        f"no op that saves much can run near storage, and whole files cross the link: step {blocking}, "
        f"{title(op)}, runs on the trainer only{reason}, and so does everything after it"
    )
    return problem, _remedy(op, blocking)


def _remedy(op: Op, position: int) -> str:
    if position == 0:
        return f"Start with {Decode.name()}() and a crop."
    if isinstance(op, Views):
        return "Write its views as ops, or give torchvision transforms as Pipeline.from_torchvision(Views([view, …]))."
    name = type(op.function).__name__ if isinstance(op, Call) else ""
    if name in _CONVERSIONS:
        return f"Put {name} after the resize, on pictures, or put a crop such as RandomResizedCrop before or after it."
    return (
        "If training allows it, put a torchvision crop or resize before it, such as RandomResizedCrop; if it makes "
        "several views, write them as sophon.ops.Views([view, …])."
    )
