"""Preprocessing of a sample: ops, the pipeline they form, and the randomness they share."""

from sophon.pipeline import ops
from sophon.pipeline.call import Call
from sophon.pipeline.op import Op
from sophon.pipeline.ops.tensor import Tensor
from sophon.pipeline.part import Box, Part
from sophon.pipeline.pipeline import Pipeline
from sophon.pipeline.region import can_crop_early, first_crop, needed_box
from sophon.pipeline.registry import OPS, op_from_spec, register
from sophon.pipeline.rng import Key, Rng
from sophon.pipeline.spec import ENCODED, Kind, Spec, Value, spec_of
from sophon.pipeline.trace import Trace

__all__ = [
    "ENCODED",
    "OPS",
    "Box",
    "Call",
    "Key",
    "Kind",
    "Op",
    "Part",
    "Pipeline",
    "Rng",
    "Spec",
    "Tensor",
    "Trace",
    "Value",
    "can_crop_early",
    "first_crop",
    "needed_box",
    "op_from_spec",
    "ops",
    "register",
    "spec_of",
]
