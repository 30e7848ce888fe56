"""Translates torchaudio transforms for which an op gives the same bits, by class and attributes; others run unchanged.

torchaudio's spectrograms and resampling are not among them: their bits depend on the processor. Sophon has its own ops
for these, which differ from torchaudio's in rounding (`ops.MelSpectrogram`, `ops.MFCC`) or in the filter
(`ops.Resample`), and give the same bits everywhere.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sophon.errors import ConfigError
from sophon.pipeline import ops
from sophon.pipeline.code import is_altered
from sophon.pipeline.op import Op
from sophon.pipeline.spec import Kind, Spec

_MODULE = "torchaudio.transforms"
_AXES = 3  # channels, bands, frames


def _volume(transform: Any, spec: Spec) -> Op | None:
    is_plain = spec.kind is Kind.AUDIO and transform.gain_type == "amplitude"
    return ops.Gain(float(transform.gain), clip=True) if is_plain else None


def _mask(op: type[ops.TimeMask]) -> Callable[[Any, Spec], Op | None]:
    def build(transform: Any, spec: Spec) -> Op | None:
        if spec.kind is not Kind.TENSOR or len(spec.shape) != _AXES or transform.iid_masks:
            return None
        return op(int(transform.mask_param), p=float(transform.p))

    return build


_ROWS: dict[str, Callable[[Any, Spec], Op | None]] = {
    "Vol": _volume,
    "TimeMasking": _mask(ops.TimeMask),
    "FrequencyMasking": _mask(ops.FrequencyMask),
}


def op_for(function: Any, spec: Spec) -> Op | None:
    """Return the op that gives the same result as a torchaudio transform for a value of this spec, if there is one."""
    cls = type(function)
    build = _ROWS.get(cls.__name__)
    is_its_own = cls.__module__ == _MODULE or cls.__module__.startswith(f"{_MODULE}.")
    if build is None or not is_its_own or is_altered(function):
        return None
    try:
        return build(function, spec)
    except (AttributeError, TypeError, ValueError, ConfigError):
        return None  # a different release of torchaudio: the transform runs unchanged
